"""Conditions of SQL for the part of the log beyond a cursor.

A cursor is private to its store, so this is the one place of the control plane where the
dialects differ: each asks its store's own reader of the text.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Connection,
    DateTime,
    FromClause,
    Numeric,
    and_,
    cast,
    func,
    literal,
    literal_column,
    not_,
    or_,
    tuple_,
)
from sqlalchemy.types import TypeEngine, UserDefinedType

from late.control.sql.rows import COCKROACH, SPANNER, log_of
from late.errors import StoreError
from late.model.task import Cursor
from late.schema.column_types import TaskIdType, Xid8


class _Snapshot(UserDefinedType[str]):
    """PostgreSQL's `pg_snapshot`, for casts."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "pg_snapshot"

    def bind_processor(self, dialect: Any) -> Any:
        return None


WINDOW: tuple[TypeEngine[Any], ...] = (
    BigInteger(),
    Xid8(),
    _Snapshot(),
    _Snapshot(),
    Xid8(),
    TaskIdType(),
)
"""A shard, the floor of a cursor, its snapshots before and after, and the key of its page."""
_BLIND = "1:1:"
"""A snapshot that sees no row."""


def beyond(connection: Connection, shard_id: int, cursor: str) -> ColumnElement[bool]:
    """Return the condition that a row of the log is of this shard and not covered by `cursor`.

    Raises:
        StoreError: not a cursor of this store.
    """
    log = log_of(connection)
    if connection.dialect.name == "postgresql":
        values = zip(window_of(shard_id, cursor), WINDOW, strict=True)
        return beyond_window(log, *(cast(value, of) for value, of in values))
    if connection.dialect.name == SPANNER:
        return and_(log.c.shard_id == shard_id, _beyond_timestamp(log, cursor))
    if connection.dialect.name == COCKROACH:
        return and_(log.c.shard_id == shard_id, _beyond_passes(log, cursor))
    from late.store.sqlite.cursor import position_of

    try:
        position = position_of(cursor)
    except ValueError as error:
        raise StoreError(f"not a cursor of the SQLite store: {cursor[:200]!r}") from error
    return and_(log.c.shard_id == shard_id, log.c.seq > position)


def beyond_window(
    log: FromClause, shard_id: Any, floor: Any, prev: Any, cur: Any, xid: Any, task_id: Any
) -> ColumnElement[bool]:
    """Return the same condition as `beyond`, from values of `window_of`."""
    read = and_(_visible(log, cur), tuple_(log.c.xid, log.c.task_id) <= tuple_(xid, task_id))
    # The floor follows from the others; it is what the index can use.
    mine = log.c.shard_id == shard_id, log.c.xid >= floor
    return and_(*mine, not_(_visible(log, prev)), not_(read))


def window_of(shard_id: int, cursor: str) -> tuple[int | str, ...]:
    """A shard and a cursor of PostgreSQL as values of `WINDOW`, whatever the cursor is."""
    from late.store.postgres.cursor import parse

    window = parse(Cursor(cursor))
    xid, task_id = window.key
    prev, cur = window.prev or _BLIND, window.cur or _BLIND
    return shard_id, str(window.floor), prev, cur, str(xid), task_id


def _beyond_timestamp(log: FromClause, cursor: str) -> ColumnElement[bool]:
    from late.store.spanner.cursor import moment_of, parse

    place = parse(cursor)
    moment = literal(moment_of(place.position), DateTime(timezone=True))
    later = log.c.created_at > moment
    if place.task_id is None:
        return later
    return or_(later, and_(log.c.created_at == moment, log.c.task_id > place.task_id))


def _beyond_passes(log: FromClause, cursor: str) -> ColumnElement[bool]:
    from late.store.cockroach.cursor import parse

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


def _visible(log: FromClause, snapshot: ColumnElement[Any]) -> ColumnElement[bool]:
    return func.pg_visible_in_snapshot(log.c.xid, snapshot, type_=Boolean).is_(True)


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
