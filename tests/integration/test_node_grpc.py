"""The gRPC handler in Node, called as a worker calls it. Its packages are npm's."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

import late
from tests.integration.push_kit import pool_of
from tests.node import NODE, needs_node
from tests.unit.dispatcher_kit import attempt

FOLDER = Path(__file__).parents[2] / "examples" / "node"
PACKAGES = FOLDER / "node_modules" / "@grpc" / "grpc-js"
SERVING = b"\x08\x01"
pytestmark = [
    needs_node,
    pytest.mark.skipif(
        not PACKAGES.exists(), reason="no @grpc/grpc-js: npm install in examples/node"
    ),
]


@asynccontextmanager
async def handler(**environment: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    process = await asyncio.create_subprocess_exec(
        str(NODE),
        str(FOLDER / "grpc-handler.mjs"),
        env={"PATH": os.environ["PATH"], "PORT": "0", **environment},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(120):
            yield process, json.loads(await process.stdout.readline())["port"]
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def target(port: int, token: str | None = "t") -> late.GrpcTarget:
    return late.GrpcTarget("node", (f"127.0.0.1:{port}",), token=token)


async def test_its_answers_mean_what_they_say() -> None:
    async with handler(LATE_TOKEN="t") as (process, port), pool_of(target(port)) as pool:
        sent = attempt("greet", payload=b'{"name": "Ada"}')
        assert (await pool.one(sent)).kind == "done"
        assert process.stdout is not None
        said = json.loads(await process.stdout.readline())
        key = f"default:{sent.record.task_id}"
        assert said == {"greeted": "Ada", "attempt": 1, "key": key}
        again = await pool.one(attempt("flaky", until_attempt=2))
        assert (again.kind, "not yet" in str(again.error)) == ("failed", True)
        assert (await pool.one(attempt("flaky", number=2, until_attempt=2))).kind == "done"
        assert (await pool.one(attempt("unheard_of"))).kind == "not_capable"
        broken = await pool.one(attempt("broken"))
        assert (broken.kind, "this one always fails" in str(broken.error)) == ("failed", True)
        assert (await pool.one(attempt("greet", payload=b"{"))).kind == "dead"
    # Given another token, nothing runs.
    async with handler(LATE_TOKEN="t") as (_, port), pool_of(target(port, "other")) as pool:
        assert "UNAUTHENTICATED" in str((await pool.one(attempt("greet"))).error)


async def test_it_says_when_it_stops() -> None:
    async with (
        handler() as (process, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await check(b"") == SERVING
        process.terminate()
        while await check(b"") == SERVING:  # noqa: ASYNC110 - another process tells no event
            await asyncio.sleep(0.05)
        assert process.returncode is None  # its callers have not heard yet
