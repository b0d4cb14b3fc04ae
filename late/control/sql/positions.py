"""Find where in the log a group begins to read: at the beginning, now, or at a moment.

A cursor is private to its store and cannot be computed from a time. So a **moment** is two things:
a cursor that covers nothing which was created at the moment or later, and the moment itself, which
is kept with the group (`late_group.from_us`): older records are passed over one by one, so that the
line is exact by `created_at_us`. The cursor only spares the reading of what lies far behind, and
comes from the journals, which remember where every group once stood.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Text,
    and_,
    cast,
    column,
    func,
    select,
    text,
)

from late.control.sql import beyond_cursor
from late.control.sql.per_shard import ROWS, union_rows
from late.control.sql.rows import COCKROACH, SPANNER, log_of, now_us
from late.errors import ConfigError
from late.model.task import Reads
from late.schema.engine import reading, translated
from late.schema.tables import group, settlement
from late.store.common.groups import reads_of

BEGINNING, NOW = "beginning", "now"
MARGIN_US = 1_000_000
"""A settlement must be so much older than the moment for its cursor to be taken: a record's time
and the journal's may be those of two machines of the database."""
_LAG_US = 20_000
SEEN: Mapping[str, ColumnElement[Any]] = {
    "postgresql": cast(func.pg_current_snapshot(), Text),
    "sqlite": text("select seq from sqlite_sequence where name = 'late_task'")
    .columns(column("seq"))
    .scalar_subquery(),
}
"""Columns with a cursor that covers what the statement sees. On Spanner SQL cannot ask for it."""


def checked(start: str | int, now: int) -> str | int:
    """A place to start from: `beginning`, `now`, or a moment in microseconds.

    Raises:
        ConfigError: another word, or a moment that has not come.
    """
    if isinstance(start, str) and start not in (BEGINNING, NOW):
        raise ConfigError(f"start from {start[:64]!r}: beginning, now, or a time")
    if isinstance(start, int) and not 0 <= start <= now:
        raise ConfigError("that time has not come: tasks that are not written cannot be left out")
    return start


def from_us(start: str | int) -> int | None:
    """Return the moment to keep with the group."""
    return start if isinstance(start, int) else None


def head(engine: Engine) -> str:
    """A cursor that covers what is committed now, and nothing that commits after this call.

    What is being written at this moment by open transactions is not covered: it will be read.
    """
    name = engine.dialect.name
    if name == SPANNER:
        with translated(), engine.connect() as connection:
            return seen_by(connection)
    with reading(engine) as connection:
        if name != COCKROACH:
            return seen_by(connection)
        at = now_us(connection) - _LAG_US
    with reading(engine) as connection:
        return _closed(connection, at)


def seen_by(connection: Connection) -> str:
    """Return a cursor that covers what a statement sees here. In a transaction it is the snapshot
    of all its statements; on Spanner it is that of a strong read beside it. Not for CockroachDB."""
    if connection.dialect.name == SPANNER:
        return _read_timestamp(connection)
    return str(connection.execute(select(SEEN[connection.dialect.name])).scalar() or "")


def _read_timestamp(connection: Connection) -> str:
    """Return the timestamp of a strong read by the driver itself: SQL cannot ask for it."""
    from late.store.spanner.cursor import cursor_at, nanoseconds

    driver: Any = connection.connection.driver_connection
    with driver.database.snapshot() as snapshot:
        result = snapshot.execute_sql("SELECT 1")
        list(result)
        return cursor_at(nanoseconds(result.metadata.transaction.read_timestamp))


def _closed(connection: Connection, at: int) -> str:
    """No later commit gets below the timestamp of a read of the whole log."""
    seconds = f"{at // 1_000_000}.{at % 1_000_000:06d}"
    connection.execute(text(f"set transaction as of system time '{seconds}'"))
    connection.execute(text("select count(*) from late_task"))
    return f"{at},{at}"


def before(
    connection: Connection, shard_ids: Sequence[int], moment_us: int, groups: Sequence[str]
) -> dict[int, str]:
    """Return for each shard a cursor that covers nothing created at `moment_us` or later.

    It is the beginning where no journal reaches back so far.
    """
    places = [(name, shard_id) for name in groups for shard_id in shard_ids]
    # Cursors from before a rebase are those of another database. A statement of its own: Spanner's
    # emulator would look for the last rebase once more for each row of the journal.
    rebased = [
        select(func.coalesce(func.max(settlement.c.seq), 0).label("seq")).where(
            *_journal(place), settlement.c.owner == "rebase"
        )
        for place in places
    ]
    adopted = {row.leg: row.seq for row in union_rows(connection, rebased, rows=ROWS // 4)}
    legs = [
        select(settlement.c.settled_at_us, settlement.c.cursor)
        .where(
            *_journal(place),
            settlement.c.seq > adopted.get(leg, 0),
            settlement.c.settled_at_us < moment_us - MARGIN_US,
        )
        .order_by(settlement.c.seq.desc())
        .limit(1)
        for leg, place in enumerate(places)
    ]
    best: dict[int, tuple[int, str]] = dict.fromkeys(shard_ids, (0, ""))
    # Where no journal reaches back so far, a leg goes through all of its journal.
    for row in union_rows(connection, legs, rows=ROWS // 4):
        shard_id = places[row.leg][1]
        best[shard_id] = max(best[shard_id], (row.settled_at_us, row.cursor))
    return {shard_id: cursor for shard_id, (_, cursor) in best.items()}


def _journal(place: tuple[str, int]) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return settlement.c.consumer_group == place[0], settlement.c.shard_id == place[1]


def registered(connection: Connection, name: str | None = None) -> dict[str, Reads]:
    """Return what each registered group reads; or only the one of that name."""
    query = select(group.c.name, group.c.queues, group.c.from_us, group.c.replay_us)
    rows = connection.execute(query if name is None else query.where(group.c.name == name))
    return {row[0]: reads_of(*row[1:]) for row in rows}


def taken(connection: Connection, reads: Reads) -> list[ColumnElement[bool]]:
    """`Reads.takes` as conditions on the log."""
    log = log_of(connection)
    conditions: list[ColumnElement[bool]] = []
    if reads.from_us:
        conditions.append(log.c.created_at_us >= reads.from_us)
    if reads.queues is not None:
        conditions.append(log.c.queue.in_(sorted(reads.queues)))
    return conditions


def ahead(connection: Connection, shard_id: int, cursor: str, reads: Reads) -> ColumnElement[bool]:
    """Return the condition that a group which stands at `cursor` will read a row of the log."""
    return and_(beyond_cursor.beyond(connection, shard_id, cursor), *taken(connection, reads))
