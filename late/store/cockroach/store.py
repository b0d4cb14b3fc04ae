"""CockroachDB v23.1 and newer, on psycopg 3. **Experimental: it has never run on a real node.**

Its parts are tested on their own: the arithmetic of the cursors against a model of a store with
commit timestamps, the statements on PostgreSQL with a column that stands in for the timestamp, the
retries against forced errors. That CockroachDB does with all this what its documentation says is
taken on trust, and said at the start of every worker. See `docs/design/0006-cockroachdb.md`.

**Why the tail is gap-free.** See `cockroach_cursor`: passes over ranges of the primary key, each
up to a fixed timestamp that no later commit in the range can get below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from late.errors import ConfigError, StoreError
from late.model.task import SHARDS_MAX, Cursor, OpenTask, Parked, Record, ShardId, TaskId
from late.store.base import (
    Features,
    Lease,
    LeaseView,
    Membership,
    Page,
    PruneReport,
    Settlement,
    SettleResult,
    WorkerInfo,
)
from late.store.cockroach import journal, tail
from late.store.cockroach import statements as sql
from late.store.cockroach.connection import (
    NAME,
    CockroachLinks,
    Guard,
    checked,
    cluster_of,
    connect,
    conninfo_of,
    rows_of,
)
from late.store.cockroach.prune import Pruner
from late.store.common.groups import ACTIVE
from late.store.postgres import statements as postgres_sql
from late.store.postgres.connection import Connection, translate
from late.store.postgres.store import due_query, parked_of

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

_names_of = msgspec.json.Decoder(tuple[str, ...]).decode


class CockroachStore:
    """One database of CockroachDB. Safe to call concurrently, from one event loop.

    Args:
        url: `cockroachdb://...` or `cockroachdb+psycopg://...`, as SQLAlchemy writes it.
        connections: most connections that are open at once, 3 or more: one that reads the log,
            one that settles, the others for the rest.
        deployment: what `late_meta` must say under `deployment`; None takes what is there.

    Raises:
        ConfigError: the URL cannot be read.
    """

    def __init__(self, url: str, *, connections: int = 4, deployment: str | None = None) -> None:
        if connections < 3:
            raise ConfigError(f"connections must be 3 or more, not {connections}")
        self._conninfo = conninfo_of(url)
        guard = Guard(deployment)
        self._handed = tail.Handed()
        self._settler = journal.Settler(self._handed)
        self._reading = CockroachLinks(self._conninfo, 1, guard)
        self._settling = CockroachLinks(self._conninfo, 1, guard)
        self._working = CockroachLinks(self._conninfo, connections - 2, guard)

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
        self._reading.open()
        self._settling.open()
        self._working.open()
        for links in (self._working, self._settling):
            async with links.use() as connection:
                await connection.execute(postgres_sql.CLOCK)

    async def close(self) -> None:
        """Close all connections. Calling it twice, or before `open`, is fine."""
        await self._reading.close()
        await self._settling.close()
        await self._working.close()

    async def now(self) -> int:
        """A gateway's clock, microseconds since the Unix epoch: one of the cluster's."""
        async with self._working.use() as connection:
            ((now_us,),) = await rows_of(connection, postgres_sql.CLOCK)
        return int(now_us)

    async def read(self, cursors: Mapping[ShardId, Cursor], limit: int) -> list[Page]:
        """The next page of each shard, see `Store.read`: two round trips for all of them."""
        if not cursors:
            return []
        async with self._reading.use() as connection:
            return await tail.read(connection, cursors, limit, self._handed)

    async def fetch(self, shard_id: ShardId, keys: Sequence[OpenTask]) -> list[Record]:
        """The records of `keys` that are still in the log, in no order."""
        if not keys:
            return []
        async with self._working.use() as connection:
            return await tail.fetch(connection, shard_id, keys, self._handed)

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
        """Parked tasks by due time, of one ordering key, or by id; see `Store.due`."""
        statement, values = due_query(group, shard_id, until_us, limit, after, held_key, task_ids)
        async with (
            self._working.use() as connection,
            connection.cursor(binary=True) as cursor,
        ):
            await cursor.execute(statement, values)
            return [parked_of(row) for row in await cursor.fetchall()]

    async def settle(self, settlements: Sequence[Settlement]) -> list[SettleResult]:
        """Write settlements; see `Store.settle`. One transaction each, see `cockroach_journal`."""
        async with self._settling.use() as connection:
            return [await self._settler.settle(connection, each) for each in settlements]

    async def prune(self, *, journal_keep_s: float) -> PruneReport:
        """Remove what every group has settled; see `Store.prune`."""
        return await Pruner(self._working).run(journal_keep_s)

    async def rebase(self) -> None:
        """Adopt a restored or copied database. For operators, with producers stopped."""
        try:
            async with await connect(self._conninfo) as connection:
                await checked(connection)
                await journal.rebase(connection, await cluster_of(connection))
        except StoreError:
            raise
        except Exception as error:
            raise translate(error, NAME) from error

    async def heartbeat(self, worker: WorkerInfo, ttl_s: float) -> Membership:
        """Say that the worker lives, and see who else does; see `Store.heartbeat`."""
        values = {
            "id": worker.worker_id,
            "ttl": round(ttl_s * 1_000_000),
            "address": worker.address,
            "groups": msgspec.json.encode(worker.groups).decode(),
            "capacity": worker.capacity,
            "version": worker.version,
        }
        async with self._working.use() as connection:
            said = postgres_sql.HEARTBEAT if ttl_s > 0 else postgres_sql.LEAVE
            async with connection.pipeline():
                await connection.execute(said, values)
                asked = [
                    await connection.execute(statement)
                    for statement in (
                        postgres_sql.CLOCK,
                        postgres_sql.WORKERS,
                        postgres_sql.LEASES,
                        sql.LANES,
                        ACTIVE,
                    )
                ]
            rows: list[list[Any]] = [await cursor.fetchall() for cursor in asked]
            clock, workers, leases, lanes, active = rows
            shards = await _shards(connection, lanes, leases)
        return Membership(
            now_us=clock[0][0],
            workers=tuple(
                WorkerInfo(worker_id, address, _names_of(groups), capacity, version)
                for worker_id, address, groups, capacity, version in workers
            ),
            leases=tuple(LeaseView(*row) for row in leases),
            shards=shards,
            groups=frozenset(name for (name,) in active),
        )

    async def acquire(self, worker_id: str, shards: Sequence[tuple[str, ShardId]]) -> list[Lease]:
        """Take those of `shards` that are free; see `Store.acquire`."""
        async with self._working.use() as connection:
            return await journal.acquire(connection, worker_id, shards)

    async def release(self, leases: Sequence[Lease]) -> None:
        """Give leases back; those held under another epoch by now are left alone."""
        for lease in leases:
            self._handed.forget(lease.shard_id)
            async with self._working.use() as connection:
                await journal.release(connection, lease)


async def _shards(
    connection: Connection, lanes: list[Any], leases: list[Any]
) -> tuple[ShardId, ...]:
    """Every shard of a lane, and every other that holds records, timers or schedules (a lane that
    was made smaller): a look into each gap between the lanes, one step down the index per shard
    found."""
    shards = {shard for first, count in lanes for shard in range(first, first + count)}
    shards |= {row[0] for row in await rows_of(connection, sql.SCHEDULED)}
    for group, shard, *_ in leases:
        # Timers are written by owners only, so that there was a lease.
        if shard not in shards and await rows_of(connection, sql.TIMED, (group, shard)):
            shards.add(shard)
    low = 0
    for first, count in [*sorted(lanes), (SHARDS_MAX, 0)]:
        while low < first:
            found = await rows_of(connection, sql.LOGGED, (low, first))
            if not found:
                break
            shards.add(found[0][0])
            low = found[0][0] + 1
        low = max(low, first + count)
    return tuple(ShardId(shard) for shard in sorted(shards))
