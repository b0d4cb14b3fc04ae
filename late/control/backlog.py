"""Rows of the log beyond a group's cursor: counted up to a limit, so that a look at a log of a
hundred million rows costs what a look at a few thousand does.

A cursor is private to its store, so this is the one place of the control plane where the
dialects differ: each asks its store's own reader of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Connection,
    DateTime,
    FromClause,
    Numeric,
    Row,
    and_,
    cast,
    func,
    literal,
    literal_column,
    not_,
    or_,
    select,
    tuple_,
)
from sqlalchemy.types import UserDefinedType

from late.control.rows import COCKROACH, SPANNER, log_of
from late.errors import StoreError
from late.schema.tables import TaskIdType, Xid8, timer
from late.task import HELD_US, Cursor, OpenTask

KEYS_CHUNK = 500


class _Snapshot(UserDefinedType[str]):
    """PostgreSQL's `pg_snapshot`, for casts."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "pg_snapshot"

    def bind_processor(self, dialect: Any) -> Any:
        return None


def beyond(connection: Connection, shard_id: int, cursor: str) -> ColumnElement[bool]:
    """Whether a row of the log is of this shard and not covered by `cursor`.

    Raises:
        StoreError: not a cursor of this store.
    """
    log = log_of(connection)
    if connection.dialect.name == "postgresql":
        return and_(log.c.shard_id == shard_id, _beyond_snapshot(log, cursor))
    if connection.dialect.name == SPANNER:
        return and_(log.c.shard_id == shard_id, _beyond_timestamp(log, cursor))
    if connection.dialect.name == COCKROACH:
        return and_(log.c.shard_id == shard_id, _beyond_passes(log, cursor))
    from late.store.sqlite_sql import position_of

    try:
        position = position_of(cursor)
    except ValueError as error:
        raise StoreError(f"not a cursor of the SQLite store: {cursor[:200]!r}") from error
    return and_(log.c.shard_id == shard_id, log.c.seq > position)


def _beyond_snapshot(log: FromClause, cursor: str) -> ColumnElement[bool]:
    from late.store.postgres_cursor import parse

    window = parse(Cursor(cursor))
    # The first condition follows from the others; it is what the index can use.
    conditions = [log.c.xid >= literal(window.floor, Xid8)]
    if window.prev:
        conditions.append(not_(_visible(log, window.prev)))
    if window.cur is not None:
        xid, task_id = window.key
        key = tuple_(literal(xid, Xid8), literal(task_id, TaskIdType))
        read = tuple_(log.c.xid, log.c.task_id) <= key
        conditions.append(not_(and_(_visible(log, window.cur), read)))
    return and_(*conditions)


def _beyond_timestamp(log: FromClause, cursor: str) -> ColumnElement[bool]:
    from late.store.spanner_rows import moment_of, place_of

    place = place_of(cursor)
    moment = literal(moment_of(place.position), DateTime(timezone=True))
    later = log.c.created_at > moment
    if place.task_id is None:
        return later
    return or_(later, and_(log.c.created_at == moment, log.c.task_id > place.task_id))


def _beyond_passes(log: FromClause, cursor: str) -> ColumnElement[bool]:
    from late.store.cockroach_cursor import parse

    window = parse(Cursor(cursor))
    moment: ColumnElement[Any] = literal_column("crdb_internal_mvcc_timestamp", Numeric)

    def upto(us: int) -> ColumnElement[bool]:
        return moment <= literal_column(f"{us}000")

    recent = log.c.task_id >= literal(window.recent_from, TaskIdType)
    covered = or_(upto(window.swept), and_(upto(window.seen), recent))
    if window.until is not None:
        passed = and_(upto(window.until), log.c.task_id <= literal(window.key, TaskIdType))
        covered = or_(covered, passed if window.sweep else and_(passed, recent))
    return not_(covered)


def _visible(log: FromClause, snapshot: str) -> ColumnElement[bool]:
    seen = func.pg_visible_in_snapshot(log.c.xid, cast(snapshot, _Snapshot), type_=Boolean)
    return seen.is_(True)


def order_of(connection: Connection) -> tuple[ColumnElement[Any], ...]:
    """The order in which the log is read: along its key."""
    log = log_of(connection)
    if connection.dialect.name == "postgresql":
        return (log.c.xid, log.c.task_id)
    if connection.dialect.name == SPANNER:
        return (log.c.created_at, log.c.task_id)
    if connection.dialect.name == COCKROACH:
        return (log.c.task_id,)
    return (log.c.seq,)


def per_queue(
    connection: Connection,
    shard_id: int,
    cursor: str,
    limit: int,
    among: Sequence[ColumnElement[bool]] = (),
) -> Sequence[Row[tuple[str, int, int]]]:
    """(queue, rows, oldest created_at_us) over the first `limit` rows beyond `cursor`, of those
    that meet the conditions `among`."""
    log = log_of(connection)
    first = (
        select(log.c.queue, log.c.created_at_us)
        .where(beyond(connection, shard_id, cursor), *among)
        .order_by(*order_of(connection))
        .limit(limit)
        .subquery()
    )
    return connection.execute(
        select(first.c.queue, func.count(), func.min(first.c.created_at_us)).group_by(first.c.queue)
    ).all()


def held(
    connection: Connection, name: str, shard_id: int, limit: int
) -> Sequence[Row[tuple[str, int]]]:
    """(queue, rows) over the first `limit` parked tasks of a group and shard that wait behind their
    ordering key, but not those whose first one waits for a time of its own."""
    first = timer.alias()
    rests = (
        select(first.c.task_id)
        .where(
            first.c.consumer_group == name,
            first.c.shard_id == shard_id,
            first.c.held_key == timer.c.held_key,
            first.c.due_at_us < HELD_US,
        )
        .exists()
    )
    found = (
        select(timer.c.queue)
        .where(
            timer.c.consumer_group == name,
            timer.c.shard_id == shard_id,
            timer.c.due_at_us >= HELD_US,
            timer.c.held_key.is_not(None),
            not_(rests),
        )
        .limit(limit)
        .subquery()
    )
    return connection.execute(select(found.c.queue, func.count()).group_by(found.c.queue)).all()


def by_keys(
    connection: Connection, shard_id: int, keys: Sequence[OpenTask]
) -> list[Row[tuple[str, int]]]:
    """(queue, created_at_us) of those of `keys` that are still in the log."""
    log = log_of(connection)
    found: list[Row[tuple[str, int]]] = []
    for start in range(0, len(keys), KEYS_CHUNK):
        chunk = keys[start : start + KEYS_CHUNK]
        found += connection.execute(
            select(log.c.queue, log.c.created_at_us).where(
                log.c.shard_id == shard_id, _is_one_of(connection, chunk)
            )
        ).all()
    return found


def ids_among(
    connection: Connection, keys: Sequence[OpenTask], condition: ColumnElement[bool]
) -> set[str]:
    """The ids of those of `keys` whose row is in the log and meets `condition`."""
    log = log_of(connection)
    found: set[str] = set()
    for start in range(0, len(keys), KEYS_CHUNK):
        chunk = keys[start : start + KEYS_CHUNK]
        statement = select(log.c.task_id).where(condition, _is_one_of(connection, chunk))
        found.update(connection.execute(statement).scalars())
    return found


def _is_one_of(connection: Connection, keys: Sequence[OpenTask]) -> ColumnElement[bool]:
    log = log_of(connection)
    if connection.dialect.name == "postgresql":
        return tuple_(log.c.xid, log.c.task_id).in_([(k.position, k.task_id) for k in keys])
    if connection.dialect.name in (SPANNER, COCKROACH):
        # Ids are unique; the shard is in the statement already.
        return log.c.task_id.in_([key.task_id for key in keys])
    return log.c.seq.in_([key.position for key in keys])
