"""Builders and readers that the tests share; they speak to the seam only."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import msgspec

from late.model.ids import new_id
from late.model.task import (
    Cursor,
    DeadLetter,
    NewTask,
    OpenTask,
    Parked,
    Record,
    ShardId,
    TaskId,
)
from late.store.base import Lease, Membership, Settlement, SettleResult, Store, WorkerInfo
from late.tailer.placement import announced

if TYPE_CHECKING:
    from tests.conformance.backends import Raw

BEGINNING = Cursor("")
PATIENCE_S = 120.0
"""Only a broken store reaches it."""


def task(shard: int = 0, payload: bytes = b"{}", **changes: Any) -> NewTask:
    """A task to insert."""
    given = {"queue": "default", "name": "count"} | changes
    return NewTask(shard_id=shard, task_id=new_id(shard), payload=payload, **given)


def ids(tasks: Collection[NewTask | Record | Parked]) -> list[TaskId]:
    return [t.record.task_id if isinstance(t, Parked) else t.task_id for t in tasks]


def open_of(record: Record) -> OpenTask:
    return OpenTask(record.position, record.task_id)


def worker(name: str = "w1", groups: tuple[str, ...] = ("default",)) -> WorkerInfo:
    return WorkerInfo(worker_id=name, address=f"{name}:1", groups=groups, version="1")


def counting(name: str) -> WorkerInfo:
    """A worker of this version, which counts its changes where the store keeps numbers."""
    return msgspec.structs.replace(worker(name), version=announced("1"))


def names(seen: Membership) -> list[str]:
    return [each.worker_id for each in seen.workers]


async def read_all(
    store: Store,
    wanted: Collection[NewTask | Record],
    *,
    cursor: Cursor = BEGINNING,
    limit: int = 100,
) -> tuple[list[Record], Cursor]:
    """Tail the shard of `wanted` until every one of them was seen: the records in the order of
    reading, and the cursor behind them. What a store hands out late (until it is durable) is
    waited for; what it never hands out fails.
    """
    (shard,) = {ShardId(t.shard_id) for t in wanted}
    missing = set(ids(wanted))
    found: list[Record] = []
    async with asyncio.timeout(PATIENCE_S):
        while missing:
            pages = await store.read({shard: cursor}, limit)
            for page in pages:
                assert page.shard_id == shard
                assert len(page.records) <= limit
                found += page.records
                missing.difference_update(ids(page.records))
                cursor = page.cursor
            if not any(page.records for page in pages):
                await asyncio.sleep(store.features.poll_min_s)
    return found, cursor


async def until(store: Store, moment_us: int) -> None:
    """Wait until the database's own clock has passed `moment_us`: nobody can announce that."""
    async with asyncio.timeout(PATIENCE_S):
        while (now_us := await store.now()) <= moment_us:  # noqa: ASYNC110
            await asyncio.sleep((moment_us - now_us) / 1_000_000 + store.features.poll_min_s)


class Owner:
    """A worker that holds one shard: makes settlements that follow one another."""

    def __init__(self, store: Store, lease: Lease) -> None:
        self.store = store
        self.lease = lease
        self.seq = lease.seq
        self.cursor = lease.cursor
        self.open = lease.open

    def next(self, **changes: Any) -> Settlement:
        """The settlement after the last one; `changes` are its fields."""
        given: dict[str, Any] = {"cursor": self.cursor, "open": self.open} | changes
        return Settlement(
            settlement_id=uuid.uuid4().hex,
            group=self.lease.group,
            shard_id=self.lease.shard_id,
            seq=self.seq + 1,
            epoch=self.lease.epoch,
            owner=self.lease.owner,
            **given,
        )

    def accept(self, settlement: Settlement) -> None:
        self.seq, self.cursor, self.open = settlement.seq, settlement.cursor, settlement.open

    async def settle(self, **changes: Any) -> SettleResult:
        settlement = self.next(**changes)
        (result,) = await self.store.settle([settlement])
        if result is SettleResult.SETTLED:
            self.accept(settlement)
        return result


async def own(
    store: Store, shard: int = 0, *, name: str = "w1", group: str = "default", ttl_s: float = 60.0
) -> Owner:
    """A live worker that has just taken the shard."""
    await store.heartbeat(worker(name), ttl_s)
    (lease,) = await store.acquire(name, [(group, ShardId(shard))])
    return Owner(store, lease)


def record(shard: int = 0, **changes: Any) -> Record:
    """A record as if it had been read, for what only carries one."""
    given: dict[str, Any] = {
        "shard_id": shard,
        "position": 1,
        "task_id": new_id(shard),
        "queue": "default",
        "name": "count",
        "payload": b"{}",
        "headers": None,
        "options": None,
        "created_at_us": 1_700_000_000_000_001,
        "sequence": 1,
    }
    return Record(**(given | changes))


def parked(due_at_us: int, *, of: Record | None = None, **changes: Any) -> Parked:
    given: dict[str, Any] = {"reason": "delay"} | changes
    return Parked(record=of or record(), due_at_us=due_at_us, **given)


def dead(of: Record | None = None, **changes: Any) -> DeadLetter:
    given: dict[str, Any] = {"reason": "failed", "attempts": 3, "deaths": 0} | changes
    return DeadLetter(record=of or record(), **given)


def schedule(
    raw: Raw, name: str, due_at_us: int | None, open_task_id: str | None = None, *, shard: int = 0
) -> None:
    """Insert a schedule of every minute."""
    raw.execute(
        "insert into late_schedule (name, shard_id, rule, zone, catch_up, catch_up_max, overlap,"
        " queue, task_name, payload, anchor_us, next_due_at_us, open_task_id, updated_at_us)"
        " values (?, ?, '* * * * *', 'UTC', 'latest', 1, 'skip', 'default', 'count', ?, 0, ?, ?,"
        " 0)",
        name,
        shard,
        b"{}",
        due_at_us,
        open_task_id,
    )
