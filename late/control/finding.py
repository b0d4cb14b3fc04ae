"""One task's row in the log, by its id. The log has no index by id: that would be another write for
every task. But an id says its shard, and when it was made.

So the rows of that shard are looked through that were inserted within a minute of that moment.
Where they are is found by halving, some twenty reads along the key, because the log is kept in
about the order of inserts. *About* is enough: a task that is not there, because its producer's
clock was wrong or its transaction long, is looked for in all of the shard's rows.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, select

from late.control.rows import COCKROACH, SPANNER, log_of
from late.ids import made_at_us, shard_of

NEAR_US = 60_000_000
_YEAR_9000_US = 221_845_392_000_000_000
"""An id may name a later time, but no database has one."""
Row = dict[str, Any]


def logged(connection: Connection, task_id: str) -> Row | None:
    """The row, if it is in the log; with `key_of` it can be asked for again."""
    shard_id = shard_of(task_id)
    found = _near(connection, shard_id, task_id)
    return found or _anywhere(connection, shard_id, task_id)


def key_of(connection: Connection, row: Row) -> ColumnElement[bool]:
    """The condition that is true of this row alone, by the key of the log."""
    log = log_of(connection)
    dialect = connection.dialect.name
    names = {"postgresql": ("xid",), SPANNER: ("created_at",), COCKROACH: ()}.get(dialect, ("seq",))
    return and_(*(log.c[name] == row[name] for name in ("shard_id", *names, "task_id")))


def _near(connection: Connection, shard_id: int, task_id: str) -> Row | None:
    dialect, log = connection.dialect.name, log_of(connection)
    if dialect == COCKROACH:
        return None  # its key begins with shard and id
    made_us = min(made_at_us(task_id), _YEAR_9000_US)
    since_us, until_us = made_us - NEAR_US, made_us + NEAR_US
    if dialect == SPANNER:
        since, until = (datetime.fromtimestamp(us / 1e6, UTC) for us in (since_us, until_us))
        return _first(connection, shard_id, task_id, log.c.created_at.between(since, until))
    place = log.c.xid if dialect == "postgresql" else log.c.seq
    of_shard = select(place).where(log.c.shard_id == shard_id).limit(1)
    first: int | None = connection.execute(of_shard.order_by(place)).scalar()
    last: int | None = connection.execute(of_shard.order_by(place.desc())).scalar()
    if first is None or last is None:
        return None

    def inserted(at: int) -> tuple[int, int] | None:
        """(place, time) of the first row from there on."""
        query = select(place, log.c.created_at_us).where(log.c.shard_id == shard_id, place >= at)
        row = connection.execute(query.order_by(place).limit(1)).first()
        return None if row is None else (row[0], row[1])

    start = _halve(inserted, first, last, lambda us: us >= since_us)
    end = _halve(inserted, start, last, lambda us: us > until_us)
    return _first(connection, shard_id, task_id, place.between(start, end))


def _halve(
    inserted: Callable[[int], tuple[int, int] | None],
    low: int,
    high: int,
    reached: Callable[[int], bool],
) -> int:
    """A place behind all rows whose time has not `reached`, and not behind any other, as if times
    rose with places; `high` where none has."""
    while low < high:
        middle = (low + high) // 2
        row = inserted(middle)
        if row is None or row[0] > high or reached(row[1]):
            high = middle
        else:
            low = row[0] + 1
    return high


def _first(
    connection: Connection, shard_id: int, task_id: str, among: ColumnElement[bool] | None = None
) -> Row | None:
    log = log_of(connection)
    query = select(log).where(log.c.shard_id == shard_id, log.c.task_id == task_id)
    row = connection.execute(query if among is None else query.where(among)).first()
    return None if row is None else dict(row._mapping)


def _anywhere(connection: Connection, shard_id: int, task_id: str) -> Row | None:
    return _first(connection, shard_id, task_id)
