"""CockroachDB v23.1 and newer, on psycopg 3. **Experimental: it has never run on a real node.**

Its parts are tested on their own: the arithmetic of the cursors against a model of a store with
commit timestamps, the statements on PostgreSQL with a column that stands in for the timestamp, the
retries against forced errors. That CockroachDB behaves as its documentation says has not been
tested, and every worker says so at its start. See `docs/design/0006-cockroachdb.md`.

**Why the tail is gap-free.** See `cursor.py`: passes over ranges of the primary key, each
up to a fixed timestamp that no later commit in the range can get below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from late.errors import StoreError
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
from late.store.cockroach import journal, membership, tail
from late.store.cockroach.connection import NAME, connect, conninfo_of
from late.store.cockroach.guard import CockroachGuard, checked, cluster_of
from late.store.cockroach.prune import CockroachPruner
from late.store.cockroach.rebase import rebase
from late.store.common.columns import parked_of
from late.store.compactor import Compactor
from late.store.postgres import statements as postgres_sql
from late.store.postgres import timers
from late.store.postgres.connection import StorePools, rows_of, translate

FEATURES = Features(
    # Within a pass the order is that of the ids, which producers make.
    commit_order=False,
    delay_counts_from="insert",
    time_resolution_s=0.000001,
    # Each poll scans the recent range of every shard.
    poll_min_s=0.050,
    group_commit=False,
    batch_size_max=1_000,
    experimental=True,
    # The largest offset between the clocks of two nodes before one of them stops itself.
    lease_margin_min_s=0.5,
)


class CockroachStore:
    """One database of CockroachDB. Safe to call concurrently, from one event loop.

    Args:
        url: `cockroachdb://...` or `cockroachdb+psycopg://...`, as SQLAlchemy writes it.
        connections: most connections that are open at once, 3 or more.
        deployment: the value of `deployment` in `late_meta`; None accepts any.

    Raises:
        ConfigError: the URL cannot be read, or `connections` is below 3.
    """

    def __init__(self, url: str, *, connections: int = 4, deployment: str | None = None) -> None:
        self._conninfo = conninfo_of(url)
        self._rows_read = tail.RowsRead()
        self._settler = journal.CockroachSettler(self._rows_read)
        make = partial(connect, self._conninfo)
        self._pools = StorePools(make, connections, CockroachGuard(deployment), NAME)
        self._compactor = Compactor()

    @property
    def features(self) -> Features:
        return FEATURES

    async def open(self) -> None:
        """Connect and run the guards. Calling it twice is fine.

        Raises:
            SchemaMismatch: no schema, or one of another version.
            StoreRefused: another server, one that is too old, a restored or copied database.
            StoreUnavailable: no connection.
        """
        await self._pools.open()

    async def close(self) -> None:
        """Close all connections. Calling it twice, or before `open`, is fine."""
        await self._pools.close()

    async def now(self) -> int:
        """Read a gateway's clock, in microseconds since the Unix epoch: one of the cluster's."""
        async with self._pools.working.use() as connection:
            ((now_us,),) = await rows_of(connection, postgres_sql.CLOCK)
        return int(now_us)

    async def read(self, cursors: Mapping[ShardId, Cursor], limit: int) -> list[Page]:
        """Read the next page of each shard, see `Store.read`: two round trips for all of them."""
        if not cursors:
            return []
        async with self._pools.reading.use() as connection:
            return await tail.read(connection, cursors, limit, self._rows_read)

    async def fetch(self, shard_id: ShardId, keys: Sequence[OpenTask]) -> list[Record]:
        """Read the records of `keys` that are still in the log, in no order."""
        if not keys:
            return []
        async with self._pools.working.use() as connection:
            return await tail.fetch(connection, shard_id, keys, self._rows_read)

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
        query = timers.due_query(group, shard_id, until_us, limit, after, held_key, task_ids)
        async with (
            self._pools.working.use() as connection,
            connection.cursor(binary=True) as cursor,
        ):
            await cursor.execute(*query)
            return [parked_of(row) for row in await cursor.fetchall()]

    async def settle(self, settlements: Sequence[Settlement]) -> list[SettleResult]:
        """Write settlements; see `Store.settle`. One transaction each, see `journal.py`."""
        async with self._pools.settling.use() as connection:
            return [await self._settler.settle(connection, each) for each in settlements]

    async def prune(
        self,
        *,
        journal_keep_s: float,
        journal_detail_s: float = JOURNAL_DETAIL_S,
        journal_minute_s: float = JOURNAL_MINUTE_S,
    ) -> PruneReport:
        """Remove the rows that every group has settled; see `Store.prune`."""
        pruner = CockroachPruner(self._pools.working, self._compactor)
        return await pruner.run(journal_keep_s, journal_detail_s, journal_minute_s)

    async def rebase(self) -> None:
        """Adopt a restored or copied database. For operators, with producers stopped."""
        try:
            async with await connect(self._conninfo) as connection:
                await checked(connection)
                await rebase(connection, await cluster_of(connection))
        except StoreError:
            raise
        except Exception as error:
            raise translate(error, NAME) from error

    async def heartbeat(self, worker: WorkerInfo, ttl_s: float) -> Membership:
        """Record that the worker lives and read the fleet; see `Store.heartbeat`."""
        async with self._pools.working.use() as connection:
            return await membership.heartbeat(connection, worker, ttl_s)

    async def acquire(self, worker_id: str, shards: Sequence[tuple[str, ShardId]]) -> list[Lease]:
        """Take the free ones of `shards`; see `Store.acquire`."""
        async with self._pools.working.use() as connection:
            return await journal.acquire(connection, worker_id, shards)

    async def release(self, leases: Sequence[Lease]) -> None:
        """Give leases back; those held under another epoch by now are left alone."""
        for lease in leases:
            self._rows_read.forget(lease.shard_id)
            async with self._pools.working.use() as connection:
                await journal.release(connection, lease)
