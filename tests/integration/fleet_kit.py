"""Several workers in the process of a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import late
from late.config import load
from late.worker.worker import Worker

SHARDS = 8
PATIENCE_S = 200.0
"""The emulator has one transaction at a time, for all tests that run beside each other."""


@asynccontextmanager
async def working(*apps: late.App) -> AsyncIterator[list[Worker]]:
    """One worker per app, each with shards of its own once the others have joined."""
    workers = [Worker(app, settings=load(concurrency=8, lease_ttl_s=3.0)) for app in apps]
    for worker in workers:
        await worker.start()
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not all(worker.scheduler.cores for worker in workers):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        yield workers
    finally:
        for worker in workers:
            worker.ask_to_stop()
        await asyncio.gather(*(worker.wait() for worker in workers))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
