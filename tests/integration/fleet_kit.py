"""Several workers in the process of a test."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from unittest import mock

import late
from late.config import load
from late.tailer import placement
from late.worker.worker import Worker

SHARDS = 8
PATIENCE_S = 200.0
"""The emulator has one transaction at a time, for all tests that run beside each other."""


@asynccontextmanager
async def working(*apps: late.App) -> AsyncIterator[list[Worker]]:
    """One worker per app, each with shards of its own once the others have joined."""
    ids = ids_with_shards(apps[0].group, len(apps))
    with mock.patch("late.worker.worker.secrets.token_hex", side_effect=ids):
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


def ids_with_shards(group: str, number: int) -> list[str]:
    """Random ids, for each of which placement has a shard. It has none for one pair in 128."""
    while True:
        ids = [secrets.token_hex(8) for _ in range(number)]
        weights = {f"w-{id_}": 1.0 for id_ in ids}
        owners = {placement.owner(f"{group}/{shard}", weights) for shard in range(SHARDS)}
        if owners == weights.keys():
            return ids


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
