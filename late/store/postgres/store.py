"""PostgreSQL 13 and newer, on psycopg 3.

**Why the tail is gap-free.** A row's position is its transaction's `xid8`, and a lower one may
commit later, so positions are only the order within a page. The cursor is a whole snapshot: a
read returns the rows that the snapshot of this very statement sees and the cursor's does not. A
snapshot sees all rows of a transaction or none, so the difference of two snapshots neither skips a
row nor waits, not even for long or prepared transactions.

**Connections.** See `StorePools`. Each call opens the connection that it needs, and closes it after
any doubt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from late.model.task import Cursor, OpenTask, Parked, Record, ShardId, TaskId
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
from late.store.postgres import journal
from late.store.postgres import statements as sql
from late.store.postgres.connection import StorePools, connect, conninfo_of, translated
from late.store.postgres.cursor import FIRST_ID
from late.store.postgres.guard import PostgresGuard
from late.store.postgres.membership import PostgresFleet
from late.store.postgres.prune import PostgresPruner
from late.store.postgres.rebase import rebase
from late.store.postgres.tail import PostgresTail
from late.store.postgres.timeline import Timeline

FEATURES = Features(
    # Two transactions that commit one after the other may have xids the other way round.
    commit_order=False,
    delay_counts_from="insert",
    time_resolution_s=0.000001,
    poll_min_s=0.005,
    poll_stream_s=0.0015,
    group_commit=True,
    batch_size_max=1_000,
)


class Pruner(Protocol):
    """Prunes once, with a store's connections; see `Store.prune`."""

    async def run(
        self, journal_keep_s: float, journal_detail_s: float, journal_minute_s: float
    ) -> PruneReport: ...


class PostgresStore:
    """One database of PostgreSQL. Safe to call concurrently, from one event loop.

    Args:
        url: `postgresql://...` or `postgresql+psycopg://...`; a PgBouncer in transaction mode in
            front is fine.
        connections: most connections that are open at once, 3 or more.
        durable: return only tasks whose commit is on disk; see `PostgresTail`.
        deployment: the value of `deployment` in `late_meta`; None accepts any.

    Raises:
        ConfigError: the URL cannot be read, or `connections` is below 3.
    """

    features = FEATURES

    def __init__(
        self,
        url: str,
        *,
        connections: int = 4,
        durable: bool = True,
        deployment: str | None = None,
    ) -> None:
        self._conninfo = conninfo_of(url)
        make = partial(connect, self._conninfo)
        timeline = Timeline()
        guard = PostgresGuard(deployment, timeline)
        self._pools = StorePools(make, connections, guard)
        self._tail = PostgresTail(durable=durable, timeline=timeline, guard=guard)
        self._pruner: Pruner = PostgresPruner(self._pools.working, Compactor())
        self._fleet = PostgresFleet()

    async def open(self) -> None:
        """Connect and run the guards. Calling it twice is fine.

        Raises:
            SchemaMismatch: no schema, or one of another version.
            StoreRefused: a standby, a restored or copied database, a server older than 13.
            StoreUnavailable: no connection.
        """
        await self._pools.open()

    async def close(self) -> None:
        """Close all connections. Calling it twice, or before `open`, is fine."""
        await self._pools.close()

    async def now(self) -> int:
        """Read the database's clock, in microseconds since the Unix epoch."""
        (row,) = await self._rows(sql.CLOCK, {})
        return int(row[0])

    async def read(self, cursors: Mapping[ShardId, Cursor], limit: int) -> list[Page]:
        """Read the next page of each shard, see `Store.read`; one statement per distinct window.

        All shards that have caught up share a window, so usually it is one statement.
        """
        if not cursors:
            return []
        async with self._pools.reading.use() as connection:
            return await self._tail.read(connection, cursors, limit)

    async def fetch(self, shard_id: ShardId, keys: Sequence[OpenTask]) -> list[Record]:
        """Read the records of `keys` that are still in the log, in no order."""
        if not keys:
            return []
        values = {
            "shard": shard_id,
            "xids": "{" + ",".join(str(key.position) for key in keys) + "}",
            "ids": [key.task_id for key in keys],
        }
        return [Record(*row) for row in await self._rows(sql.FETCH, values)]

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
        query = _due_query(group, shard_id, until_us, limit, after, held_key, task_ids)
        return [parked_of(row) for row in await self._rows(*query)]

    async def settle(self, settlements: Sequence[Settlement]) -> list[SettleResult]:
        """Write settlements; see `Store.settle`. One transaction for all if none is refused."""
        if not settlements:
            return []
        async with self._pools.settling.use() as connection:
            return await journal.settle(connection, settlements)

    async def prune(
        self,
        *,
        journal_keep_s: float,
        journal_detail_s: float = JOURNAL_DETAIL_S,
        journal_minute_s: float = JOURNAL_MINUTE_S,
    ) -> PruneReport:
        """Remove the rows that every group has settled; see `Store.prune`."""
        return await self._pruner.run(journal_keep_s, journal_detail_s, journal_minute_s)

    async def rebase(self) -> None:
        """Adopt a restored or copied database. For operators, with producers stopped.

        Raises every epoch, frees every shard and claims the database; settled tasks stay settled.
        Calling it twice is fine; the store need not be open.
        """
        with translated():
            async with (
                await connect(self._conninfo) as connection,
                await connect(self._conninfo) as burner,
            ):
                await rebase(connection, burner)

    async def heartbeat(self, worker: WorkerInfo, ttl_s: float) -> Membership:
        """Record that the worker lives and read the fleet; see `Store.heartbeat`."""
        async with self._pools.working.use() as connection:
            return await self._fleet.heartbeat(connection, worker, ttl_s)

    async def acquire(self, worker_id: str, shards: Sequence[tuple[str, ShardId]]) -> list[Lease]:
        """Take the free ones of `shards`; see `Store.acquire`."""
        async with self._pools.working.use() as connection:
            return await journal.acquire(connection, worker_id, shards)

    async def release(self, leases: Sequence[Lease]) -> None:
        """Give leases back; those held under another epoch by now are left alone."""
        if leases:
            async with self._pools.working.use() as connection:
                await journal.release(connection, leases)

    async def _rows(self, statement: str, values: Mapping[str, Any]) -> list[Any]:
        async with (
            self._pools.working.use() as connection,
            connection.cursor(binary=True) as cursor,
        ):
            await cursor.execute(statement, values)
            return await cursor.fetchall()


def _due_query(
    group: str,
    shard_id: ShardId,
    until_us: int,
    limit: int,
    after: tuple[int, str],
    held_key: str | None,
    task_ids: Sequence[TaskId],
) -> tuple[str, dict[str, object]]:
    """Return the statement of `Store.due` and its parameters; `parked_of` reads its rows."""
    by_time = sql.DUE if held_key is None else sql.DUE_HELD
    return sql.DUE_OF if task_ids else by_time, {
        "group": group,
        "shard": shard_id,
        "until": until_us,
        "limit": limit,
        "after": after[0],
        "after_id": after[1] or FIRST_ID,
        "key": held_key,
        "ids": list(task_ids),
    }
