"""PostgreSQL 13 and newer, on psycopg 3.

**Why the tail is gap-free.** A row's position is its transaction's `xid8`, and a lower one may
commit later, so positions are only the order within a page. The cursor is a whole snapshot: a
read returns what the snapshot of this very statement sees and the cursor's does not. What a
transaction has written is either seen as a whole or not at all, so the difference of two
snapshots neither skips nor waits: not for long transactions, not for prepared ones.

**Connections.** One for the tail, so that reading never waits for writing, and a few for the rest.
Each call opens what it needs and drops what is in doubt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from late.errors import ConfigError
from late.model.task import AttemptError, Cursor, OpenTask, Parked, Record, ShardId, TaskId
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
from late.store.common.groups import ACTIVE
from late.store.postgres import journal
from late.store.postgres import statements as sql
from late.store.postgres.connection import Links, connect, conninfo_of, translated
from late.store.postgres.cursor import FIRST_ID
from late.store.postgres.guard import Guard
from late.store.postgres.prune import Pruner
from late.store.postgres.rebase import rebase
from late.store.postgres.tail import Tail

FEATURES = Features(
    # Two transactions that commit one after the other may have xids the other way round.
    commit_order=False,
    delay_counts_from="insert",
    time_resolution_s=0.000001,
    poll_min_s=0.005,
    group_commit=True,
    batch_size_max=1_000,
)

_errors_of = msgspec.json.Decoder(tuple[AttemptError, ...]).decode
_names_of = msgspec.json.Decoder(tuple[str, ...]).decode


class PostgresStore:
    """One database of PostgreSQL. Safe to call concurrently, from one event loop.

    Args:
        url: `postgresql://...` or `postgresql+psycopg://...`; a PgBouncer in transaction mode in
            front is fine.
        connections: most connections that are open at once, 3 or more: one that reads the log,
            one that settles, the others for the rest.
        durable: hand out only tasks whose commit is on disk; see `postgres_tail.Tail`.
        deployment: what `late_meta` must say under `deployment`; None takes what is there.

    Raises:
        ConfigError: the URL cannot be read.
    """

    def __init__(
        self,
        url: str,
        *,
        connections: int = 4,
        durable: bool = True,
        deployment: str | None = None,
    ) -> None:
        if connections < 3:
            raise ConfigError(f"connections must be 3 or more, not {connections}")
        self._conninfo = conninfo_of(url)
        guard = Guard(deployment)
        self._tail = Tail(durable=durable)
        self._reading = Links(self._conninfo, 1, guard)
        # A settlement never queues behind loads: after a backlog there may be one for each of a
        # thousand ordering keys, and what has run and is not settled would run again after a kill.
        self._settling = Links(self._conninfo, 1, guard)
        self._working = Links(self._conninfo, connections - 2, guard)

    @property
    def features(self) -> Features:
        return FEATURES

    async def open(self) -> None:
        """Connect and run the guards. Calling it twice is fine.

        Raises:
            SchemaMismatch: no schema, or one of another version.
            StoreRefused: a standby, a restored or copied database, a server older than 13.
            StoreUnavailable: no connection.
        """
        self._reading.open()
        self._settling.open()
        self._working.open()
        for links in (self._working, self._settling):
            async with links.use() as connection:
                await connection.execute(sql.CLOCK)

    async def close(self) -> None:
        """Close all connections. Calling it twice, or before `open`, is fine."""
        await self._reading.close()
        await self._settling.close()
        await self._working.close()

    async def now(self) -> int:
        """The database's clock, microseconds since the Unix epoch."""
        (row,) = await self._rows(sql.CLOCK, {})
        return int(row[0])

    async def read(self, cursors: Mapping[ShardId, Cursor], limit: int) -> list[Page]:
        """The next page of each shard, see `Store.read`; one statement per distinct window.

        All shards that have caught up share a window, so as a rule it is one statement.
        """
        if not cursors:
            return []
        async with self._reading.use() as connection:
            return await self._tail.read(connection, cursors, limit)

    async def fetch(self, shard_id: ShardId, keys: Sequence[OpenTask]) -> list[Record]:
        """The records of `keys` that are still in the log, in no order."""
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
        """Parked tasks by due time, of one ordering key, or by id; see `Store.due`."""
        statement, values = due_query(group, shard_id, until_us, limit, after, held_key, task_ids)
        rows = await self._rows(statement, values)
        return [parked_of(row) for row in rows]

    async def settle(self, settlements: Sequence[Settlement]) -> list[SettleResult]:
        """Write settlements; see `Store.settle`. One transaction for all where none is refused."""
        if not settlements:
            return []
        async with self._settling.use() as connection:
            return await journal.settle(connection, settlements)

    async def prune(self, *, journal_keep_s: float) -> PruneReport:
        """Remove what every group has settled; see `Store.prune`."""
        return await Pruner(self._working).run(journal_keep_s)

    async def rebase(self) -> None:
        """Adopt a restored or copied database. For operators, with producers stopped.

        Raises every epoch, frees every shard and claims the database; what was settled stays
        settled. Calling it twice is fine; the store need not be open.
        """
        with translated():
            async with (
                await connect(self._conninfo) as connection,
                await connect(self._conninfo) as burner,
            ):
                await rebase(connection, burner)

    async def heartbeat(self, worker: WorkerInfo, ttl_s: float) -> Membership:
        """Say that the worker lives, and see who else does; see `Store.heartbeat`.

        All statements in one implicit transaction and one round trip.
        """
        values = {
            "id": worker.worker_id,
            "ttl": round(ttl_s * 1_000_000),
            "address": worker.address,
            "groups": msgspec.json.encode(worker.groups).decode(),
            "capacity": worker.capacity,
            "version": worker.version,
        }
        async with self._working.use() as connection:
            async with connection.pipeline():
                await connection.execute(sql.NO_JIT)
                await connection.execute(sql.HEARTBEAT if ttl_s > 0 else sql.LEAVE, values)
                asked = [
                    await connection.execute(statement)
                    for statement in (sql.CLOCK, sql.WORKERS, sql.LEASES, sql.SHARDS, ACTIVE)
                ]
            rows: list[list[Any]] = [await cursor.fetchall() for cursor in asked]
        clock, workers, leases, shards, active = rows
        return Membership(
            now_us=clock[0][0],
            workers=tuple(
                WorkerInfo(worker_id, address, _names_of(groups), capacity, version)
                for worker_id, address, groups, capacity, version in workers
            ),
            leases=tuple(LeaseView(*row) for row in leases),
            shards=tuple(ShardId(shard_id) for (shard_id,) in shards),
            groups=frozenset(name for (name,) in active),
        )

    async def acquire(self, worker_id: str, shards: Sequence[tuple[str, ShardId]]) -> list[Lease]:
        """Take those of `shards` that are free; see `Store.acquire`."""
        async with self._working.use() as connection:
            return await journal.acquire(connection, worker_id, shards)

    async def release(self, leases: Sequence[Lease]) -> None:
        """Give leases back; those held under another epoch by now are left alone."""
        if leases:
            async with self._working.use() as connection:
                await journal.release(connection, leases)

    async def _rows(self, statement: str, values: Mapping[str, Any]) -> list[Any]:
        async with (
            self._working.use() as connection,
            connection.cursor(binary=True) as cursor,
        ):
            await cursor.execute(statement, values)
            return await cursor.fetchall()


def due_query(
    group: str,
    shard_id: ShardId,
    until_us: int,
    limit: int,
    after: tuple[int, str],
    held_key: str | None,
    task_ids: Sequence[TaskId],
) -> tuple[str, dict[str, object]]:
    """The statement of `Store.due` and its parameters; CockroachDB's are the same."""
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


def parked_of(row: Any) -> Parked:
    """A timer from a row of `sql.DUE`."""
    due_at_us, reason, attempts, deaths, held_key, errors, *record = row
    return Parked(
        record=Record(*record),
        due_at_us=due_at_us,
        reason=reason,
        attempts=attempts,
        deaths=deaths,
        held_key=held_key,
        errors=_errors_of(errors) if errors else (),
    )
