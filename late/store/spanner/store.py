"""Cloud Spanner, on Google's own client.

**Why the tail is gap-free.** A commit gets a timestamp, and a read at T sees every commit at or
before T and none after; what commits later gets a timestamp above T. So T, as Spanner returns it
with the rows, is a cursor. See `tail.py`.

Every call runs in a thread with a deadline (`connection.py`); no call leaves a transaction open.
The tail and pruning use a client of low priority, calls that a caller waits for one of high
priority.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from late.clock import DatabaseClock
from late.errors import StoreClosed
from late.model.ids import id_before
from late.model.task import Cursor, OpenTask, Parked, Record, ShardId, TaskId
from late.schema.spanner.address import options_of
from late.store.base import (
    JOURNAL_DETAIL_S,
    JOURNAL_MINUTE_S,
    Features,
    Lease,
    Membership,
    Page,
    PruneReport,
    Settlement,
    SettleResult,
    WorkerInfo,
)
from late.store.common.compaction import PROBE, Compacted, Stretch
from late.store.compactor import Compactor
from late.store.spanner import guard, journal, membership, prune, rebase, stages, tail
from late.store.spanner.client import place_of
from late.store.spanner.connection import SpannerClients
from late.store.spanner.prune import JournalRange, SettledShard

T = TypeVar("T")

FEATURES = Features(
    commit_order=True,
    delay_counts_from="commit",
    time_resolution_s=0.000_001,
    poll_min_s=0.010,
    # Each poll is a strong read. A silence of more than a minute halves what they cost: see
    # `docs/spanner.md`.
    poll_max_s=2.0,
    # Shards may live on different servers: one transaction over several costs more, not less.
    group_commit=False,
    batch_size_max=1_000,
)
CLOCK_AGE_MAX_S = 10.0
"""The largest age of a reading of the database's clock that is written into a row."""


class SpannerStore:
    """One Spanner database. Safe to call concurrently, from one event loop after another.

    Not across a fork: the child must make a store of its own (`StoreClosed`).

    Args:
        url: `spanner+spanner:///projects/P/instances/I/databases/D`, with `?staleness_s=2` for a
            tail that may lag by so many seconds and is served by the nearest replica, or with
            `&replica=us-east4` by that one.

    Raises:
        ConfigError: the URL is of another shape, or has an unknown option.
    """

    features = FEATURES

    def __init__(self, url: str) -> None:
        self._url, options = url.partition("?")[0], options_of(url)
        place_of(self._url)
        self._clients = SpannerClients(self._url, options.directed)
        self._tail = tail.SpannerTail(options.staleness_s)
        self._clock = DatabaseClock()
        self._opened = False
        self._checked = 0
        """The number of losses of sessions before the guards last ran."""
        self._opening = asyncio.Lock()
        # The key up to which each shard is known to have no settled rows.
        self._pruned: dict[int, prune.Key] = {}
        # The `seq` below which each journal is known to be empty, by (group, shard).
        self._journals: dict[tuple[str, int], int] = {}
        self._compactor = Compactor()

    async def open(self) -> None:
        """Connect and run the guards. Calling it again does nothing, unless the server has lost our
        sessions meanwhile: then it may be another one.

        Raises:
            SchemaMismatch: no schema, or one of another version.
            StoreRefused: no such database, no permission, another dialect, a restored copy.
        """
        async with self._opening:
            self._clients.require_open()
            losses = self._clients.losses
            if self._opened and self._checked == losses:
                return
            facts = await self._clients.call(guard.facts, self._url)
            ours = guard.identity_of(self._url)
            found = facts.get("identity")
            if found is None:
                found = await self._clients.write(guard.claim, ours)
            guard.check_identity(found, ours, self._url)
            self._opened, self._checked = True, losses

    async def rebase(self) -> None:
        """Adopt a restored or copied database. For operators; the store need not be open.

        Raises every epoch, frees every shard and claims the database. Calling it twice is fine.
        """
        await self._clients.call(guard.facts, self._url)
        # One transaction per shard, because one for thousands would take longer than a call may. If
        # it stops in the middle, the database is not claimed yet, and the rebase is run again.
        for lease in await self._clients.call(rebase.leases):
            await self._clients.write(rebase.free, *lease)
        await self._clients.write(rebase.adopt, guard.identity_of(self._url))

    async def read(self, cursors: Mapping[ShardId, Cursor], limit: int) -> list[Page]:
        """Read the next page of each shard that has one; shards with nothing new are left out."""
        pages = await self._opened_clients.call(self._tail.read, cursors, limit, role="background")
        if pages:
            self._clock.sample(max(page.now_us for page in pages), time.monotonic())
        return pages

    async def fetch(self, shard_id: ShardId, keys: Sequence[OpenTask]) -> list[Record]:
        """Read the records of `keys` that are still in the log, in no order."""
        return await self._opened_clients.call(tail.fetch, shard_id, keys)

    async def due(
        self,
        group: str,
        shard_id: ShardId,
        *,
        until_us: int,
        limit: int,
        after: tuple[int, str] = (0, ""),
        held_key: str | None = None,
        task_ids: Sequence[TaskId] = (),
    ) -> list[Parked]:
        """Read parked tasks by due time, of one ordering key, or by id; see `Store.due`."""
        clients = self._opened_clients
        if task_ids:
            return await clients.call(tail.of_ids, group, shard_id, task_ids, limit)
        if held_key is not None:
            return await clients.call(tail.held, group, shard_id, held_key, limit)
        if until_us < after[0]:
            return []
        return await clients.call(tail.due, group, shard_id, until_us, limit, after)

    async def settle(self, settlements: Sequence[Settlement]) -> list[SettleResult]:
        """Write settlements, each in a transaction of its own, side by side.

        An error of one leaves others settled: repeating the call is fine.
        """
        clients = self._opened_clients
        if not settlements:
            return []
        now_us = await self._now()
        return await _all(
            [clients.write(journal.settle, settlement, now_us) for settlement in settlements]
        )

    async def prune(
        self,
        *,
        journal_keep_s: float,
        journal_detail_s: float = JOURNAL_DETAIL_S,
        journal_minute_s: float = JOURNAL_MINUTE_S,
    ) -> PruneReport:
        """Remove the rows that every group has settled; see `Store.prune`. It may be cancelled."""
        clients = self._opened_clients
        background = partial(clients.call, role="background")
        plan = await background(prune.plan)
        tasks = settlements = 0
        for settled in plan.settled:
            tasks += await self._prune_shard(settled)
        horizon_us = plan.now_us - round(journal_keep_s * 1_000_000)
        for kept in plan.journals:
            settlements += await self._prune_journal(kept, horizon_us)
        compacted = await self._compactor.run(
            [(each.group, each.shard_id, each.last) for each in plan.journals],
            self._compact,
            now_us=plan.now_us,
            detail_s=journal_detail_s,
            minute_s=journal_minute_s,
        )
        while over := await background(stages.over, id_before(horizon_us)):
            await clients.write(stages.delete, over, role="background")
        workers = await clients.write(prune.delete_workers, role="background")
        return PruneReport(
            tasks=tasks, settlements=settlements, workers=workers, compacted=compacted
        )

    async def _compact(self, stretch: Stretch, limit: int) -> Compacted:
        if limit == PROBE:
            return await self._clients.call(prune.probe, stretch, role="background")
        return await self._clients.write(prune.compact, stretch, limit, role="background")

    async def _prune_shard(self, settled: SettledShard) -> int:
        after, deleted, more = self._pruned.get(settled.shard_id, (0, "")), 0, True
        while more:
            batch = await self._clients.call(prune.next_batch, settled, after, role="background")
            if batch.ranges:
                await self._clients.write(
                    prune.delete_batch, settled.shard_id, batch, role="background"
                )
            deleted += batch.rows
            after, more = batch.end, batch.full
        # The next round begins before the first row that had to stay.
        stay = min((task.position for task in settled.open), default=after[0] + 1)
        self._pruned[settled.shard_id] = min(after, (stay - 1, ""))
        return deleted

    async def _prune_journal(self, journal: JournalRange, horizon_us: int) -> int:
        place = (journal.group, journal.shard_id)
        deleted, more = 0, True
        # Usually no row is old enough, and the first row tells.
        limit = 1
        while more:
            journal = msgspec.structs.replace(journal, first=self._journals.get(place, 0))
            count, last, more = await self._clients.call(
                prune.old_settlements, journal, horizon_us, limit, role="background"
            )
            if limit == 1:
                limit = prune.BATCH
                continue
            if count:
                await self._clients.write(
                    prune.delete_settlements, journal, last, role="background"
                )
                self._journals[place] = last + 1
                deleted += count
        return deleted

    async def heartbeat(self, worker: WorkerInfo, ttl_s: float) -> Membership:
        """Record that the worker lives for `ttl_s` from now; 0 means that it leaves."""
        await self._opened_clients.write(membership.beat, worker, ttl_s)
        return await self._opened_clients.call(membership.membership)

    async def acquire(self, worker_id: str, shards: Sequence[tuple[str, ShardId]]) -> list[Lease]:
        """Take the free ones of `shards`; see `Store.acquire`."""
        clients = self._opened_clients
        taken = await _all([clients.write(journal.take, worker_id, *each) for each in shards])
        return [lease for lease in taken if lease is not None]

    async def release(self, leases: Sequence[Lease]) -> None:
        """Give leases back; those held under another epoch by now are left alone."""
        clients = self._opened_clients
        if leases:
            await clients.write(journal.release, leases)

    async def now(self) -> int:
        """Read the database's clock, in microseconds since the Unix epoch."""
        now_us = await self._opened_clients.call(membership.now)
        self._clock.sample(now_us, time.monotonic())
        return now_us

    async def _now(self) -> int:
        """Return a lower bound of the database's clock, without a call if one was made lately.

        It is for times that people read and for retention; leases ask in their transaction.
        """
        age_s = self._clock.age_s
        if age_s is None or age_s > CLOCK_AGE_MAX_S:
            return await self.now()
        return self._clock.now_us()

    async def close(self) -> None:
        """Close the connections. Twice, or before `open`, is fine."""
        await self._clients.close()

    @property
    def _opened_clients(self) -> SpannerClients:
        if not self._opened:
            raise StoreClosed(f"{self._url} is not open: call `await store.open()` first")
        return self._clients


async def _all(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Return every call's result, in order; raise the first error once all have ended."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results  # type: ignore[return-value]
