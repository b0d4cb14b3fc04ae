"""Guards of the PostgreSQL store: they refuse unsafe databases, on every new connection.

Positions and cursors are transaction ids of one cluster. In a copy with another counter they are
wrong numbers: new rows count as read, old ones lie in the future. In a copy within the cluster they
are right, and the same tasks would run in both. So a database is adopted once (`identity`, the
cluster's system identifier, and `database_oid`, which a rename keeps and no other database of the
cluster has), and a copy is refused until an operator runs `late rebase`.

A physical copy (a snapshot of the disk, a promoted standby, a restore to a point in time) has both
marks of its original. Nothing inside tells it from an original that went on after a fail-over.
"""

from __future__ import annotations

import msgspec
import psycopg
from psycopg.rows import TupleRow

from late.errors import SchemaMismatch, ServerInRecovery, StoreRefused
from late.model.task import Cursor
from late.schema import version
from late.store.postgres import cursor as postgres_cursor
from late.store.postgres.connection import Connection, allow_plans, rows_of
from late.store.postgres.timeline import STARTED, Timeline

VERSION_MIN = 130000

# The role may lack the right to `pg_control_system`; then the counters are the only guard.
_STATE = f"""
select pg_is_in_recovery(), pg_snapshot_xmax(pg_current_snapshot())::text,
       case when has_function_privilege('pg_control_system()', 'execute')
            then (select system_identifier::text from pg_control_system()) end,
       current_database(), (select oid::text from pg_database where datname = current_database()),
       case when not pg_is_in_recovery()
            then left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) || '/' || {STARTED} end,
       (select json_object_agg(key, value)::text from late_meta), pg_backend_pid()
"""
_CURSORS = """
select e.consumer_group, e.shard_id, p.cursor from late_lease e cross join lateral (
  select s.cursor from late_settlement s
   where s.consumer_group = e.consumer_group and s.shard_id = e.shard_id
   order by s.seq desc limit 1) p
"""
# The last row of each shard, one step down the index each.
_LAST_ROWS = """
with recursive shard (id) as (
  select min(l.shard_id) from late_task l
  union all
  select (select min(l.shard_id) from late_task l where l.shard_id > s.id)
    from shard s where s.id is not null)
select s.id, l.xid::text from shard s cross join lateral (
  select l.xid from late_task l where l.shard_id = s.id order by l.xid desc limit 1) l
"""
_ADOPT = """
insert into late_meta (key, value) values (%s, %s) on conflict (key) do nothing
"""
POSITION_MAX = """
insert into late_meta as m (key, value)
values ('position_max', pg_snapshot_xmax(pg_current_snapshot())::text)
on conflict (key) do update set value = excluded.value
 where m.value::numeric < excluded.value::numeric
"""


class ServerState:
    """The state of the database and its server, read on a new connection."""

    def __init__(self, row: TupleRow) -> None:
        self.in_recovery, xmax, self.system, self.database, self.oid, self.timeline, meta = row[:7]
        self.pid = row[7]
        self.xmax = int(xmax)
        self.meta: dict[str, str] = msgspec.json.decode(meta) if meta else {}

    @property
    def marks(self) -> dict[str, str]:
        """The entries of `late_meta` that tell this database from a copy of it."""
        marks = {"identity": self.system, "database_oid": self.oid}
        return {key: mark for key, mark in marks.items() if mark is not None}


async def state_of(connection: Connection) -> ServerState:
    """Read the state and check all that even a rebase cannot repair.

    Raises:
        SchemaMismatch: no schema, or one of another version.
        StoreRefused: a server that is too old, or in recovery; a database that is not UTF8.
    """
    server = connection.info.server_version
    if server < VERSION_MIN:
        raise StoreRefused(f"PostgreSQL {server // 10000} is too old: late needs 13 or newer")
    version.check_encoding(connection.info.parameter_status("server_encoding"))
    try:
        cursor = await connection.execute(_STATE)
        row = await cursor.fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        raise SchemaMismatch(
            f"database {connection.info.dbname!r} has no schema of late: run `late migrate URL`"
        ) from None
    assert row is not None
    state = ServerState(row)
    version.check(
        state.meta.get("schema_version"),
        oldest=state.meta.get(version.OLDEST_KEY),
        where=f"database {state.database!r}",
    )
    if state.in_recovery:
        raise ServerInRecovery(
            f"database {state.database!r} is a standby: its snapshots miss running transactions "
            "and would lose tasks; connect to the primary"
        )
    return state


class PostgresGuard:
    """Check every new connection of one store, and adopt a database that nobody ran on yet.

    Args:
        deployment: the name that `late_meta` must have under `deployment`: physical clones keep
            the system identifier, and only this tells them apart. With None, the first connection
            decides, and later ones must find the same.
        timeline: of this process; the tail looks at the same one.
    """

    def __init__(self, deployment: str | None = None, timeline: Timeline | None = None) -> None:
        self._deployment = deployment
        self._timeline = timeline or Timeline()

    async def __call__(self, connection: Connection) -> None:
        """Check one connection.

        Raises:
            SchemaMismatch, StoreRefused: as `state_of`, and `StoreRefused` for a copy.
        """
        state = await state_of(connection)
        found = state.meta.get("deployment", "")
        if self._deployment is not None and found != self._deployment:
            raise StoreRefused(
                f"database {state.database!r} belongs to deployment {found!r} and not to "
                f"{self._deployment!r}: check the URL"
            )
        self._timeline.check(state.timeline, connection)
        await _check_copy(connection, state)
        for mark in state.marks.items() - state.meta.items():  # all are equal, or missing
            await connection.execute(_ADOPT, mark)
        if "position_max" not in state.meta:
            await connection.execute(POSITION_MAX)
        # A pooler gives a number of its own for the process, and another session for the next call.
        if state.pid == connection.info.backend_pid:
            allow_plans(connection)
        self._deployment = found


async def _check_copy(connection: Connection, state: ServerState) -> None:
    """Refuse a database whose transaction ids are not the ones that its rows were written with."""
    remedy = (
        "it is a restored or copied database; stop producers and run `late rebase URL` to adopt it"
    )
    name = f"database {state.database!r}"
    identity = state.meta.get("identity")
    if identity is not None and state.system is not None and identity != state.system:
        raise StoreRefused(
            f"{name} was adopted on cluster {identity} and is now on {state.system}: {remedy}"
        )
    oid = state.meta.get("database_oid", state.oid)
    if oid != state.oid:
        raise StoreRefused(
            f"{name} was adopted as database {oid} of its cluster and is now {state.oid}: {remedy}"
        )
    highest = int(state.meta.get("position_max", 0))
    if state.xmax < highest:
        raise StoreRefused(
            f"{name} is at transaction {state.xmax} and was at {highest} before: {remedy}"
        )
    # Others settle and insert at the same time, so the counter to compare with is read last.
    cursors = await rows_of(connection, _CURSORS)
    # Once adopted on this very cluster, only a forged row can be ahead of the counter. It is never
    # read, and must not stop workers from starting.
    rows = await rows_of(connection, _LAST_ROWS) if identity is None else []
    xmax = await _xmax(connection)
    for group, shard_id, text in cursors:
        seen = postgres_cursor.parse(Cursor(str(text))).xmax
        if seen > xmax:
            raise StoreRefused(
                f"{name} is at transaction {xmax}, and group {group!r} has read shard "
                f"{shard_id} up to {seen}: {remedy}"
            )
    for shard_id, xid in rows:
        if int(str(xid)) >= xmax:
            raise StoreRefused(
                f"{name} is at transaction {xmax}, and shard {shard_id} has a task of "
                f"transaction {xid}: {remedy}"
            )


async def _xmax(connection: Connection) -> int:
    rows = await rows_of(connection, "select pg_snapshot_xmax(pg_current_snapshot())::text")
    return int(str(rows[0][0]))
