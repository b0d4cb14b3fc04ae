"""One task's row in the log, by its id. The log has no index by id: that would be another write for
every task. But an id says its shard, and when it was made.

So the rows of that shard are looked through that were inserted near that moment: within seconds of
it, then within a minute, then within ten. Where they are is found by halving, some twenty reads
along the key for each end, because the log is kept in about the order of inserts. What lies farther
away (a producer's clock that is wrong, an insert late in a long transaction) costs a look through
all of the shard's rows, which is done only where that is asked for: `everywhere`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, FromClause, Select, and_, select

from late.control.sql.rows import COCKROACH, SPANNER, log_of
from late.model.ids import made_at_us, shard_of

NEAR_US = (2_000_000, 60_000_000, 600_000_000)
"""Distances from the moment in the id at which a row is looked for, one after the other."""
_YEAR_9000_US = 221_845_392_000_000_000
"""An id may name a later time, but no database has one."""
BODY = ("payload", "headers")
"""The columns with what the producer sent: they are large, and not for everyone."""
Row = dict[str, Any]


def find_in_log(
    connection: Connection, task_id: str, *, everywhere: bool = False, bare: bool = False
) -> Row | None:
    """The row, if it is in the log near the moment that the id names; with `key_of` it can be asked
    for again.

    Args:
        everywhere: or anywhere else in its shard, all of which that may read.
        bare: without `BODY`.
    """
    shard_id = shard_of(task_id)
    query = select(*without_body(log_of(connection)) if bare else log_of(connection).c)
    query = query.where(log_of(connection).c.shard_id == shard_id)
    query = query.where(log_of(connection).c.task_id == task_id)
    if connection.dialect.name == COCKROACH:  # its key begins with shard and id
        found = _first(connection, query)
    else:
        found = _near(connection, query, task_id)
    if found is None and everywhere:
        found = _first(connection, query)
    return found


def without_body(table: FromClause) -> list[ColumnElement[Any]]:
    """Return the columns of a table of tasks, all but `BODY`."""
    return [column for column in table.c if column.name not in BODY]


def key_of(connection: Connection, row: Row) -> ColumnElement[bool]:
    """The condition that is true of this row alone, by the key of the log."""
    log = log_of(connection)
    dialect = connection.dialect.name
    names = {"postgresql": ("xid",), SPANNER: ("created_at",), COCKROACH: ()}.get(dialect, ("seq",))
    return and_(*(log.c[name] == row[name] for name in ("shard_id", *names, "task_id")))


def _near(connection: Connection, query: Select[Any], task_id: str) -> Row | None:
    shard_id = shard_of(task_id)
    made_us = min(made_at_us(task_id), _YEAR_9000_US)
    spans = [(max(0, made_us - near_us), made_us + near_us) for near_us in NEAR_US]
    of = _moments if connection.dialect.name == SPANNER else _places
    for among in of(connection, shard_id, spans):
        found = _first(connection, query.where(among))
        if found is not None:
            return found
    return None


def _moments(
    connection: Connection, shard_id: int, spans: Sequence[tuple[int, int]]
) -> Iterator[ColumnElement[bool]]:
    """Spanner's key is the time itself."""
    log = log_of(connection)
    for span in spans:
        since, until = (datetime.fromtimestamp(us / 1e6, UTC) for us in span)
        yield log.c.created_at.between(since, until)


def _places(
    connection: Connection, shard_id: int, spans: Sequence[tuple[int, int]]
) -> Iterator[ColumnElement[bool]]:
    """Conditions on the key of the log, one for each of `spans`, each of which lies within the
    next. None where the shard has no rows."""
    log = log_of(connection)
    place = log.c.xid if connection.dialect.name == "postgresql" else log.c.seq
    of_shard = select(place).where(log.c.shard_id == shard_id).limit(1)
    first: int | None = connection.execute(of_shard.order_by(place)).scalar()
    last: int | None = connection.execute(of_shard.order_by(place.desc())).scalar()
    if first is None or last is None:
        return

    def inserted(at: int) -> tuple[int, int] | None:
        """(place, time) of the first row from there on."""
        # Up to the last row: else PostgreSQL reads the empty partitions that lie ahead too.
        query = select(place, log.c.created_at_us).where(
            log.c.shard_id == shard_id, place.between(at, last)
        )
        row = connection.execute(query.order_by(place).limit(1)).first()
        return None if row is None else (row[0], row[1])

    start, end = last, first
    for since_us, until_us in spans:
        start = _halve(inserted, first, start, lambda us, at=since_us: us >= at)  # type: ignore[misc]
        end = _halve(inserted, max(start, end), last, lambda us, at=until_us: us > at)  # type: ignore[misc]
        yield place.between(start, end)
        if (start, end) == (first, last):
            return


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


def _first(connection: Connection, query: Select[Any]) -> Row | None:
    row = connection.execute(query).first()
    return None if row is None else dict(row._mapping)
