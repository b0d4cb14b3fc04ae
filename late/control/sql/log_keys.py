"""Walk the log of a shard along its key, which differs by dialect, from where a walk was left."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, DateTime, Row, and_, literal, or_

from late.control.sql.rows import COCKROACH, SPANNER, log_of
from late.schema.column_types import TaskIdType, Xid8
from late.schema.engine import EPOCH

Key = tuple[int, str]
"""The place of a row in its shard, as JSON can carry it: a number, and the id."""


def key_of(connection: Connection, row: Row[Any]) -> Key:
    """Return the key of a row of the log."""
    numbers = {"postgresql": "xid", SPANNER: "created_at_us", COCKROACH: "created_at_us"}
    return int(getattr(row, numbers.get(connection.dialect.name, "seq"))), str(row.task_id)


def after(connection: Connection, key: Key) -> ColumnElement[bool]:
    """Return the condition that a row of a shard comes after a key."""
    log, (number, task_id) = log_of(connection), key
    dialect, last_id = connection.dialect.name, literal(task_id, TaskIdType)
    if dialect == COCKROACH:
        return log.c.task_id > last_id
    if dialect == "sqlite":
        return log.c.seq > number
    if dialect == SPANNER:
        first, place = log.c.created_at, _moment(number)
    else:
        first, place = log.c.xid, literal(number, Xid8)
    return and_(first >= place, or_(first > place, log.c.task_id > last_id))


def between(connection: Connection, since_us: int, until_us: int) -> ColumnElement[bool]:
    """Return the condition that a row was created at `since_us` or later, and before `until_us`."""
    log = log_of(connection)
    if connection.dialect.name == SPANNER:
        return and_(log.c.created_at >= _moment(since_us), log.c.created_at < _moment(until_us))
    return and_(log.c.created_at_us >= since_us, log.c.created_at_us < until_us)


def place_of(connection: Connection, row: Row[Any]) -> tuple[int, int]:
    """Return the position and the sequence that the store gives to the record of a row."""
    dialect = connection.dialect.name
    if dialect == "postgresql":
        return int(row.xid), row.created_at_us
    if dialect == SPANNER:
        return row.position, row.position
    if dialect == COCKROACH:
        from late.store.cockroach.cursor import position_of

        return position_of(str(row.task_id)), row.created_at_us
    return row.seq, row.seq


def _moment(us: int) -> ColumnElement[Any]:
    return literal(EPOCH + timedelta(microseconds=us), DateTime(timezone=True))
