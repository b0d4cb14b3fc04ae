"""`late serve` as several processes: two owners, one of which dies, the interfaces, a consumer."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.integration.serve_kit import endpoints, until
from tests.support import sqlite
from tests.unit.api_kit import Client

CONSUMER = """
import os, sys, late
def work(task):
    os.write(1, b"%d\\n" % task.payload["n"])  # at once: print of two threads mixes their lines
late.Consumer(sys.argv[1], queues=["payments"], concurrency=2).run(work)
"""


@asynccontextmanager
async def started(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "LATE_LOG_JSON": "1"},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def serve(url: str, roles: str, *more: str) -> tuple[str, ...]:
    own = ("--roles", roles, "--http-port", "0", "--set", "lease_ttl_s=2.0", *more)
    return ("-m", "late.cli", "serve", "--url", url, "--pull", "payments", *own)


async def ports(process: asyncio.subprocess.Process) -> dict[str, int]:
    """Where it listens, by its log."""
    assert process.stderr is not None
    found: dict[str, int] = {}
    async with asyncio.timeout(120):
        while len(found) < 2:
            line = (await process.stderr.readline()).decode()
            assert line, "it ended"
            if '"api_served"' in line:
                about = json.loads(line)
                found[about["protocol"]] = int(about["port"])
    return found


async def test_tasks_survive_an_owner_that_dies(tmp_path: Path) -> None:
    url = sqlite.database(tmp_path / "queue.db")
    async with (
        started(*serve(url, "tail,dispatch")) as first,
        started(*serve(url, "tail,dispatch")) as second,
        started(*serve(url, "api", "--grpc-port", "0")) as front,
    ):
        found = await ports(front)
        call = Client(found["http"])

        async def both_there() -> bool:
            return len(await asyncio.to_thread(endpoints, url)) == 2

        await until(both_there)

        async def put(numbers: range) -> None:
            tasks = [{"queue": "payments", "name": "t", "payload": {"n": n}} for n in numbers]
            answer = await call("POST", "/v1/tasks", {"tasks": tasks})
            assert answer.status == 201, answer.body

        await put(range(40))
        async with started("-c", CONSUMER, f"127.0.0.1:{found['grpc']}") as consumer:
            assert consumer.stdout is not None
            done: set[int] = set()

            async def until_done(count: int) -> None:
                async with asyncio.timeout(120):
                    while len(done) < count:
                        line = await consumer.stdout.readline()
                        assert line, f"the consumer ended after {len(done)}"
                        done.add(int(line))

            await until_done(40)
            first.kill()
            await put(range(40, 80))
            await until_done(80)
            assert done == set(range(80))
            consumer.send_signal(signal.SIGTERM)
            async with asyncio.timeout(120):
                assert await consumer.wait() == 0
        for process in (front, second):
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(120):
                assert await process.wait() == 0
