"""The examples of docs/http.md, run by a shell against a server, give what the page shows."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.integration.serve_kit import serving
from tests.support import sqlite

PAGE = Path(__file__).parents[2] / "docs" / "http.md"
BLOCK = re.compile(r"^```(sh|json)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FREE = {
    "task_id", "token", "receipt", "visible_until", "enqueued_at", "due_at", "command", "due_at_us",
    "audit_id",
}  # fmt: skip
"""What is another one each time."""
COUNTS = {"ready", "running", "parked", "oldest_s"}
"""What depends on the moment: a checkpoint may be on its way."""


def values(text: str) -> list[Any]:
    """JSON values, one after the other."""
    found, decoder, rest = [], json.JSONDecoder(), text.strip()
    while rest:
        value, end = decoder.raw_decode(rest)
        found.append(value)
        rest = rest[end:].strip()
    return found


def shape(value: Any) -> Any:
    """`value` without what changes from run to run."""
    if isinstance(value, list):
        return [shape(each) for each in value]
    if not isinstance(value, dict):
        return value
    found = {k: type(v).__name__ if k in FREE else shape(v) for k, v in value.items()}
    return {k: "..." if k in COUNTS else v for k, v in found.items()}


async def run(script: str, folder: Path, url: str) -> str:
    assert shutil.which("curl"), "the examples take curl"
    process = await asyncio.create_subprocess_exec(
        "bash",
        "-euc",
        script,
        cwd=folder,
        env={"LATE": url, "PATH": "/usr/bin:/bin"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(120):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


async def test_every_example_gives_what_the_page_shows(tmp_path: Path) -> None:
    blocks = BLOCK.findall(PAGE.read_text())
    url = sqlite.database(tmp_path / "queue.db")
    async with serving(url) as it:
        before = ""  # each runs in a shell of its own, with the definitions of those before
        checked = 0
        script = ""
        for kind, text in blocks:
            if kind == "sh":
                script = text
                if text.startswith(("LATE=", "RECEIPT=")):
                    before += "".join(f"{line}\n" for line in text.splitlines() if "$(" in line
                                      or line.startswith(("LATE=", "post()")))  # fmt: skip
                continue
            shown = await run(before + script, tmp_path, f"http://127.0.0.1:{it.call.port}")
            assert [shape(v) for v in values(shown)] == [shape(v) for v in values(text)], script
            checked += 1
    assert checked >= 7


def test_the_page_is_read_as_it_is_meant() -> None:
    assert values('1\n{"a": 2}') == [1, {"a": 2}]
    assert shape([{"task_id": "x", "attempt": 1}]) == [{"task_id": "str", "attempt": 1}]
    with pytest.raises(ValueError):
        values("nonsense")
