"""`late serve` in an environment that has `late-queue[serve]` and nothing of the other extras."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

from tests.integration.test_serve_processes import started
from tests.support import sqlite
from tests.unit.api_kit import Client

OF_OTHER_EXTRAS = (
    "aiohttp", "celery", "cryptography", "django", "google", "grpc", "jwt", "openfeature",
    "opentelemetry", "pandas", "psycopg", "pyarrow", "pyspark", "uvloop", "watchfiles",
)  # fmt: skip
WITHOUT = f"""
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OF_OTHER_EXTRAS!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
from late.cli.main import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    "more", [(), ("--auth", "--signed-urls", "--api-changes")], ids=["plain", "with tokens"]
)
async def test_it_needs_no_other_extra(tmp_path: Path, more: tuple[str, ...]) -> None:
    url = sqlite.database(tmp_path / "queue.db")
    own = ("serve", "--url", url, "--pull", "payments", "--http-port", "0", *more)
    async with started("-c", WITHOUT, *own) as process:
        port = await http_port(process)
        answer = await Client(port)("GET", "/livez")
        assert answer.status == 200
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(120):
            assert await process.wait() == 0


async def http_port(process: asyncio.subprocess.Process) -> int:
    assert process.stderr is not None
    async with asyncio.timeout(120):
        while line := (await process.stderr.readline()).decode():
            if '"api_served"' in line and '"http"' in line:
                return int(json.loads(line)["port"])
    raise AssertionError("it ended before it served")
