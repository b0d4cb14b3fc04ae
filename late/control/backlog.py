"""Rows of the log beyond a group's cursor: counted up to a limit, so that a look at a log of a
hundred million rows costs what a look at a few thousand does.

A cursor is private to its store, so this is the one place of the control plane where the two
dialects differ: each asks its store's own reader of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Table, and_, func, select, tuple_

from late.control.rows import log_of
from late.task import OpenTask

KEYS_CHUNK = 500


def beyond(connection: Connection, shard_id: int, cursor: str) -> ColumnElement[bool]:
    """Whether a row of the log is of this shard and not covered by `cursor`."""
    log = log_of(connection)
    if connection.dialect.name == "postgresql":
        return and_(log.c.shard_id == shard_id, _beyond_snapshot(log, cursor))
    from late.store.sqlite_sql import position_of

    return and_(log.c.shard_id == shard_id, log.c.seq > position_of(cursor))


def _beyond_snapshot(log: Table, cursor: str) -> ColumnElement[bool]:
    raise NotImplementedError


def order_of(connection: Connection) -> tuple[ColumnElement[Any], ...]:
    """The order in which the log is read: along its key."""
    log = log_of(connection)
    if connection.dialect.name == "postgresql":
        return (log.c.xid, log.c.task_id)
    return (log.c.seq,)


def per_queue(
    connection: Connection, shard_id: int, cursor: str, limit: int
) -> Sequence[Row[tuple[str, int, int]]]:
    """(queue, rows, oldest created_at_us) over the first `limit` rows beyond `cursor`."""
    log = log_of(connection)
    first = (
        select(log.c.queue, log.c.created_at_us)
        .where(beyond(connection, shard_id, cursor))
        .order_by(*order_of(connection))
        .limit(limit)
        .subquery()
    )
    return connection.execute(
        select(first.c.queue, func.count(), func.min(first.c.created_at_us)).group_by(first.c.queue)
    ).all()


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


def _is_one_of(connection: Connection, keys: Sequence[OpenTask]) -> ColumnElement[bool]:
    log = log_of(connection)
    if connection.dialect.name == "postgresql":
        return tuple_(log.c.xid, log.c.task_id).in_([(k.position, k.task_id) for k in keys])
    return log.c.seq.in_([key.position for key in keys])
