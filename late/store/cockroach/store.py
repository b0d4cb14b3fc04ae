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
from late.model.task import Cursor, OpenTask, Record, ShardId
from late.store.base import Features, Lease, Membership, Page, Settlement, SettleResult, WorkerInfo
from late.store.cockroach import journal, membership, tail
from late.store.cockroach.connection import NAME, connect, conninfo_of
from late.store.cockroach.guard import CockroachGuard, checked, cluster_of
from late.store.cockroach.prune import CockroachPruner
from late.store.cockroach.rebase import rebase
from late.store.compactor import Compactor
from late.store.postgres.connection import StorePools, translate
from late.store.postgres.store import PostgresStore

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


class CockroachStore(PostgresStore):
    """One database of CockroachDB. Safe to call concurrently, from one event loop. What is not here
    is as on PostgreSQL.

    Args:
        url: `cockroachdb://...` or `cockroachdb+psycopg://...`, as SQLAlchemy writes it.
        connections: most connections that are open at once, 3 or more.
        deployment: the value of `deployment` in `late_meta`; None accepts any.

    Raises:
        ConfigError: the URL cannot be read, or `connections` is below 3.
    """

    features = FEATURES

    def __init__(self, url: str, *, connections: int = 4, deployment: str | None = None) -> None:
        self._conninfo = conninfo_of(url)
        self._rows_read = tail.RowsRead()
        self._settler = journal.CockroachSettler(self._rows_read)
        make = partial(connect, self._conninfo)
        self._pools = StorePools(make, connections, CockroachGuard(deployment), NAME)
        self._pruner = CockroachPruner(self._pools.working, Compactor())

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

    async def settle(self, settlements: Sequence[Settlement]) -> list[SettleResult]:
        """Write settlements; see `Store.settle`. One transaction each, see `journal.py`."""
        async with self._pools.settling.use() as connection:
            return [await self._settler.settle(connection, each) for each in settlements]

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
