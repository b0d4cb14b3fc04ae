"""What tests of consumer groups read, and what maintenance leaves of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from late.model.task import Record, ShardId, TaskId
from late.store.base import Lease, SettleResult, Store, taken
from late.store.postgres.partitions import WIDTH_MIN
from tests.conformance.kit import BEGINNING, Owner, own, read_all, until
from tests.integration.postgres_kit import use_up

SHARD = 3


async def lease_of(store: Store, group: str, shard: int = SHARD) -> Lease:
    """The shard as a worker of the group gets it."""
    (lease,) = await store.acquire("reader", [(group, ShardId(shard))])
    return lease


async def to_read(store: Store, lease: Lease, expected: int) -> list[TaskId]:
    """What a worker of the group reads, to the end of the log as it is now; at least `expected`
    records are waited for."""
    cursor, found = lease.cursor, []
    seen = len(await everything(store, lease.shard_id))
    async with asyncio.timeout(120):
        while True:
            pages = await store.read({lease.shard_id: cursor}, 2)
            for page in pages:
                cursor = page.cursor
                found += [record.task_id for record in taken(page, lease.reads).records]
            if not any(page.records for page in pages) and len(found) >= expected:
                return found
            assert seen >= expected


async def everything(store: Store, shard: ShardId) -> list[Record]:
    cursor, found = BEGINNING, []
    while pages := [p for p in await store.read({shard: cursor}, 100) if p.records]:
        found += pages[0].records
        cursor = pages[0].cursor
    return found


async def maintain(store: Store, url: str) -> None:
    """Prune when the partition of the log has been passed, where it goes by that."""
    if url.startswith("postgresql"):
        await asyncio.to_thread(use_up, url, WIDTH_MIN)
    await store.prune(journal_keep_s=100_000)


async def empty(store: Store, url: str) -> None:
    """Maintenance removes all of the log, at once or soon: CockroachDB reads a little in the
    past."""
    for _ in range(60):
        if not await everything(store, ShardId(SHARD)):
            return
        await until(store, await store.now() + 50_000)
        await maintain(store, url)
    raise AssertionError("maintenance leaves some of the log")


async def works(store: Store, tasks: Sequence[Any], group: str = "default") -> Owner:
    """A worker of the group that has read and settled `tasks`."""
    owner = await own(store, SHARD, group=group, name=f"w-{group}")
    _, cursor = await read_all(store, tasks)
    assert await owner.settle(cursor=cursor, open=()) is SettleResult.SETTLED
    return owner
