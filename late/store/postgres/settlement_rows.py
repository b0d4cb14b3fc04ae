"""Rows that settlements write, as one JSON text for each statement.

Arrays, one for each column, took psycopg several times as long: with quotes in texts a third of the
worker's time for a task with a history.
"""

from __future__ import annotations

import msgspec

from late.model.task import DeadLetter, Parked, ShardId
from late.store.common.columns import carried


class JournalRow(msgspec.Struct):
    """A row of the journal, as `sql.SETTLE` takes it."""

    reached: str
    """The transaction that the server had reached when the cursor was made."""
    consumer_group: str
    shard_id: int
    seq: int
    settlement_id: str
    epoch: int
    owner: str
    cursor: str
    open: str
    usage: str | None
    suspects: str | None


class Step(msgspec.Struct):
    """A row of a task's history, as `sql.HISTORY` takes it."""

    consumer_group: str
    task_id: str
    place: int
    at_us: int
    event: str
    worker: str
    detail: str | None


class EndedKey(msgspec.Struct):
    """A unique key of a task that has ended, as `sql.RELEASE_UNIQUE` and `END_UNIQUE` take it."""

    unique_key: str
    task_id: str


class TimerKey(msgspec.Struct):
    """The key of a row of the timer table, as `sql.UNPARK` takes it."""

    consumer_group: str
    shard_id: int
    due_at_us: int
    task_id: str


class Carried(msgspec.Struct):
    """The columns that timers and dead letters share; see `carried`."""

    position: int
    sequence: int
    queue: str
    name: str
    payload: bytes
    headers: str | None
    options: str | None
    created_at_us: int
    attempts: int
    deaths: int
    errors: str | None


class Timer(Carried, kw_only=True):
    """A row of the timer table, as `sql.PARK` takes it."""

    consumer_group: str
    shard_id: int
    due_at_us: int
    task_id: str
    reason: str
    held_key: str | None


class Dead(Carried, kw_only=True):
    """A dead letter, as `sql.BURY` takes it."""

    consumer_group: str
    shard_id: int
    task_id: str
    reason: str


class ResultRow(msgspec.Struct):
    """A row of the results, as `sql.RESULT` takes it."""

    consumer_group: str
    task_id: str
    value: bytes
    ttl_us: int


def timer(group: str, shard_id: ShardId, task: Parked) -> Timer:
    """Make the row of a task that is parked."""
    return Timer(
        *carried(task),
        consumer_group=group,
        shard_id=shard_id,
        due_at_us=task.due_at_us,
        task_id=task.record.task_id,
        reason=task.reason,
        held_key=task.held_key,
    )


def dead_letter(group: str, shard_id: ShardId, task: DeadLetter) -> Dead:
    """Make the row of a task that dies."""
    return Dead(
        *carried(task),
        consumer_group=group,
        shard_id=shard_id,
        task_id=task.record.task_id,
        reason=task.reason,
    )
