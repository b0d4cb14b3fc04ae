"""The programs of docs/grpc.md, run against a server."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from pathlib import Path

from tests.integration.serve_kit import serving, until
from tests.support import sqlite

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "grpc.md"


async def start(program: str, at: str) -> asyncio.subprocess.Process:
    assert "127.0.0.1:7281" in program
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-uc",
        program.replace("127.0.0.1:7281", at),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )


async def test_the_programs_do_what_the_page_says(tmp_path: Path) -> None:
    consumer, producer, _ = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    url = sqlite.database(tmp_path / "queue.db")
    async with serving(url) as it:
        putting = await start(producer, it.at)
        async with asyncio.timeout(120):
            out, _ = await putting.communicate()
        assert putting.returncode == 0
        task_id = out.decode().split("'")[1]
        working = await start(consumer, it.at)
        assert working.stdout is not None
        async with asyncio.timeout(120):
            line = (await working.stdout.readline()).decode().strip()
        assert line == f"charge {{'trip': 7}} default:{task_id}"
        await until(lambda: it.is_settled(task_id))
        working.send_signal(signal.SIGTERM)
        async with asyncio.timeout(120):
            assert await working.wait() == 0


async def test_the_program_of_an_operator_prints_what_the_page_says(tmp_path: Path) -> None:
    text = PAGE.read_text().partition("## Operating")[2]
    (program,) = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    (printed,) = re.findall(r"^```text\n(.*?)^```$", text, re.M | re.S)
    url = sqlite.database(tmp_path / "queue.db")
    async with serving(url) as it, asyncio.timeout(200):
        running = await start(program, it.at)
        out, _ = await running.communicate()
        assert running.returncode == 0
    # The log of a quiet server may already be without the row.
    assert out.decode().replace("gone\n", "settled\n") == printed
