"""The rows of the log that a replay of a window copies, and their rows of the timer table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Row, exists, literal, not_, select

from late.control.sql import beyond_cursor, log_keys, positions
from late.control.sql.last_settlement import Journal
from late.control.sql.log_keys import Key
from late.control.sql.rows import log_of, now_us
from late.errors import DecodeError
from late.model.task import CONTROL_QUEUE, Reads, Record, ShardId, TaskId
from late.payload.command import decode
from late.schema.tables import dead, timer

_CANCEL = "late.cancel"


class Walk(NamedTuple):
    """A group's way through one shard."""

    group: str
    shard_id: int
    last: Journal
    since_us: int
    until_us: int
    start: str
    """A cursor that covers nothing of the window."""
    key: Key | None
    """The last row that was looked at, if one was."""
    reads: Reads


def settled(
    connection: Connection, walk: Walk, limit: int, *, payloads: bool
) -> Sequence[Row[Any]]:
    """Read the next rows of a shard that the group's cursor covers, and that are nowhere else."""
    log = log_of(connection)
    elsewhere = [
        exists(
            select(literal(1)).where(
                table.c.consumer_group == walk.group,
                table.c.shard_id == walk.shard_id,
                table.c.task_id == log.c.task_id,
            )
        )
        for table in (timer, dead)
    ]
    query = select(*(column for column in log.c if payloads or column.name != "payload")).where(
        log.c.shard_id == walk.shard_id,
        beyond_cursor.beyond(connection, walk.shard_id, walk.start)
        if walk.key is None
        else log_keys.after(connection, walk.key),
        log_keys.between(connection, walk.since_us, walk.until_us),
        not_(beyond_cursor.beyond(connection, walk.shard_id, walk.last.cursor)),
        log.c.queue != CONTROL_QUEUE,
        *positions.taken(connection, walk.reads),
        *(not_(each) for each in elsewhere),
    )
    ordered = query.order_by(*beyond_cursor.order_of(connection)).limit(limit)
    return connection.execute(ordered).all()


def cancelled(connection: Connection, walk: Walk) -> set[str]:
    """Return the tasks of a shard that were to be cancelled: a reset reads these commands again."""
    log = log_of(connection)
    rows = connection.execute(
        select(log.c.task_id, log.c.payload).where(
            log.c.shard_id == walk.shard_id,
            log.c.queue == CONTROL_QUEUE,
            log.c.name == _CANCEL,
            log_keys.between(connection, walk.since_us, now_us(connection) + 1),
        )
    )
    found = set()
    for task_id, payload in rows:
        record = Record(
            ShardId(walk.shard_id),
            0,
            TaskId(str(task_id)),
            CONTROL_QUEUE,
            _CANCEL,
            payload,
            None,
            None,
            0,
            0,
        )
        try:
            command = decode(record)
        except DecodeError:
            continue
        if command is not None and command.group in (None, walk.group):
            found.add(str(command.task_id))
    return found


def timer_of(connection: Connection, group: str, row: Row[Any]) -> dict[str, Any]:
    """Return the row of the timer table of a task that is replayed, without its due time."""
    position, sequence = log_keys.place_of(connection, row)
    options = {} if row.options is None else msgspec.json.decode(row.options)
    return {
        "consumer_group": group,
        "shard_id": row.shard_id,
        "task_id": str(row.task_id),
        "reason": "delay",
        "held_key": None,
        "position": position,
        "sequence": sequence,
        "queue": row.queue,
        "name": row.name,
        "payload": row.payload,
        "headers": row.headers,
        "options": msgspec.json.encode({**options, "replay": True}).decode(),
        "created_at_us": row.created_at_us,
        "attempts": 0,
        "deaths": 0,
        "errors": None,
    }
