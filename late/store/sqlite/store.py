"""SQLite: the embedded store, on the driver of the standard library.

**Why the tail is gap-free.** One writer at a time holds the write lock from before it takes its
rowid until its commit, so that rowid order is commit order, and AUTOINCREMENT never gives a rowid
twice. All rows that a reader at rowid n has not seen are above n, now and later. The cursor is n.

One thread owns the connection: `connection.py`.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from late.model.task import Cursor, OpenTask, Parked, Record, ShardId, TaskId
from late.schema import held_files
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
from late.store.common.columns import parked_of
from late.store.compactor import Compactor
from late.store.sqlite import guard, journal, membership, prune, rebase, stages, tail
from late.store.sqlite import statements as sql
from late.store.sqlite.connection import ConnectionThread
from late.store.sqlite.tail import Cursors, Row, SqliteTail
from late.store.sqlite.write_lock import clock

T = TypeVar("T")

FEATURES = Features(
    commit_order=True,
    # created_at_us is the time of the insert statement; there is no commit time to be had.
    delay_counts_from="insert",
    time_resolution_s=0.001,
    poll_min_s=0.005,
    poll_stream_s=0.001,
    group_commit=True,
    batch_size_max=1_000,
)


class SqliteStore:
    """One SQLite file. Safe to call concurrently, from one event loop after another.

    Not across a fork: the child has no thread and must not use the parent's connection
    (`StoreClosed`). Several stores on one file, in one process or many, are the normal case.

    Args:
        url: `sqlite:///relative.db` or `sqlite:////absolute/path.db`.

    Raises:
        ConfigError: the URL names no file, or carries options.
    """

    features = FEATURES

    def __init__(self, url: str) -> None:
        self._url = url
        self._path = guard.path_of(url)
        self._thread = ConnectionThread(url)
        self._on_connection = self._thread.on_connection
        self._tail = SqliteTail()  # the thread's
        self._compactor = Compactor()
        self._outlines: journal.Outlines = {}  # the thread's
        self._held: held_files.FileId | None = None
        self._beats: dict[str, int] = {}
        """The end that each worker's last heartbeat has written; the thread's."""

    async def open(self) -> None:
        """Connect and run the guards. Calling it twice is fine.

        Raises:
            SchemaMismatch: no file, no schema, or one of another version.
            StoreRefused: a check failed, see `guard.py`.
        """
        await self._thread.open(self._connect)

    def _connect(self) -> sqlite3.Connection:
        file = held_files.hold(self._path)  # before it is open: `guard.connect` compares afterwards
        try:
            connection = self._checked()
        except BaseException:
            self._release(file)
            raise
        self._held = file
        return connection

    def _checked(self) -> sqlite3.Connection:
        connection = guard.connect(self._path, self._url)
        try:
            guard.check_positions(connection, self._url)
            guard.check_identity(connection, self._path, self._url)
        except BaseException:
            connection.close()
            raise
        return connection

    def _release(self, file: held_files.FileId | None) -> None:
        if file is not None:
            held_files.release(self._path)

    async def rebase(self) -> None:
        """Adopt a restored or copied file, or a log whose counter fell back. For operators.

        Raises every epoch, frees every shard and claims the file. Cursors stay: log and journal
        are in the same file and agree. Calling it twice is fine; the store need not be open.
        """
        await self._thread.run(lambda: rebase.rebase(self._path, self._url))

    async def read(self, cursors: Mapping[ShardId, Cursor], limit: int) -> list[Page]:
        """Read the next page of each shard that has one; shards with nothing new are left out."""
        pages: list[Page] = []
        left: Cursors = list(cursors.items())

        def part(connection: sqlite3.Connection) -> bool:
            nonlocal left
            found, left = self._tail.read(left, limit, connection)
            pages.extend(found)
            return bool(left)

        # In parts: settlements use this thread, too, and a worker stops starting tasks when too
        # many finished ones wait to be settled.
        await self._thread.in_parts(part)
        return pages

    async def fetch(self, shard_id: ShardId, keys: Sequence[OpenTask]) -> list[Record]:
        """Read the records of `keys` that are still in the log, in no order."""

        def fetch(connection: sqlite3.Connection) -> list[Record]:
            found = []
            for key in keys:
                found += tail.by_row(connection, sql.FETCH, (key.position, shard_id, key.task_id))
            return found

        return await self._on_connection(fetch)

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

        def due(connection: sqlite3.Connection) -> list[Parked]:
            if task_ids:
                wanted = json.dumps(list(task_ids))
                rows = tail.rows(connection, sql.DUE_OF, (group, shard_id, wanted, limit))
            elif held_key is None:
                values: Row = (group, shard_id, *after, until_us, limit)
                rows = tail.rows(connection, sql.DUE, values)
            else:
                rows = tail.rows(connection, sql.DUE_HELD, (group, shard_id, held_key, limit))
            return [parked_of(row) for row in rows]

        return await self._on_connection(due)

    async def settle(self, settlements: Sequence[Settlement]) -> list[SettleResult]:
        """Write settlements; see `Store.settle`. One transaction for all if none is refused."""

        def settle(connection: sqlite3.Connection) -> list[SettleResult]:
            if any(each.ticks or each.ended_stages for each in settlements):
                self._tail.forget()
            return journal.settle(connection, settlements, self._outlines)

        return await self._on_connection(settle) if settlements else []

    async def prune(
        self,
        *,
        journal_keep_s: float,
        journal_detail_s: float = JOURNAL_DETAIL_S,
        journal_minute_s: float = JOURNAL_MINUTE_S,
    ) -> PruneReport:
        """Remove the rows that every group has settled; see `Store.prune`.

        In batches, each a transaction of its own and then a pause as long as it took: a writer that
        waits for the lock sleeps and asks again, and without a gap would never find it free.
        Cancelling it between two batches is fine.
        """
        tasks = 0
        for todo in await self._on_connection(prune.settled_ranges):
            while (deleted := await self._paced(prune.delete_batch, todo)) is not None:
                tasks += deleted
        settlements = 0
        for group, shard_id, first, keep in await self._on_connection(
            lambda connection: prune.old_settlements(connection, journal_keep_s)
        ):
            for before in (*range(first + prune.BATCH, keep, prune.BATCH), keep):
                settlements += await self._paced(prune.delete_settlements, group, shard_id, before)
        compacted = await self._compactor.run(
            await self._on_connection(prune.journals),
            partial(self._paced, prune.compact),
            now_us=await self.now(),
            detail_s=journal_detail_s,
            minute_s=journal_minute_s,
        )
        while await self._paced(stages.prune, journal_keep_s):
            pass
        workers = await self._on_connection(prune.delete_workers)
        while await self._paced(prune.shrink):
            pass
        return PruneReport(
            tasks=tasks, settlements=settlements, workers=workers, compacted=compacted
        )

    async def heartbeat(self, worker: WorkerInfo, ttl_s: float) -> Membership:
        """Record that the worker lives for `ttl_s` from now; 0 means that it leaves.

        Raises:
            DatabaseReplaced: the path leads to another file than the one that is open, or to none;
                or an earlier state was restored into it.
        """

        def heartbeat(connection: sqlite3.Connection) -> Membership:
            held_files.check(self._path)
            # If this one fails, nobody knows whether it was written.
            last_us = self._beats.pop(worker.worker_id, None)
            found = membership.heartbeat(connection, worker, ttl_s, last_us)
            if ttl_s > 0:
                self._beats[worker.worker_id] = found.now_us + round(ttl_s * 1_000_000)
            return found

        return await self._on_connection(heartbeat)

    async def acquire(self, worker_id: str, shards: Sequence[tuple[str, ShardId]]) -> list[Lease]:
        """Take the free ones of `shards`; see `Store.acquire`."""
        return await self._on_connection(
            lambda connection: journal.acquire(connection, worker_id, shards)
        )

    async def release(self, leases: Sequence[Lease]) -> None:
        """Give leases back; those held under another epoch by now are left alone."""
        await self._on_connection(lambda connection: journal.release(connection, leases))

    async def now(self) -> int:
        """Read the database's clock, in microseconds since the Unix epoch, in steps of 1 ms."""
        return await self._on_connection(clock)

    async def close(self) -> None:
        """Close the connection after the calls before it. Twice, or before `open`, is fine."""
        try:
            await self._thread.close()
        finally:
            file, self._held = self._held, None
            self._release(file)

    async def _paced(self, step: Callable[..., T], *args: object) -> T:
        """Run one step of a prune, then pause as long as it took."""
        begun = time.monotonic()
        result = await self._on_connection(lambda connection: step(connection, *args))
        await asyncio.sleep(time.monotonic() - begun)
        return result
