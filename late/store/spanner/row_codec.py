"""The columns of the Spanner store, and rows as values. It makes no calls."""

from __future__ import annotations

import base64
from typing import Any

from late.model.task import (
    DeadLetter,
    NewTask,
    Parked,
    Record,
)
from late.store.common.columns import carried, errors_of
from late.store.spanner.cursor import nanoseconds

LOG = "late_task"
LOG_COLUMNS = (
    "shard_id", "created_at", "task_id", "queue", "name", "payload", "headers", "options"
)  # fmt: skip
_CARRIED = (
    "position", "sequence", "queue", "name", "payload", "headers", "options", "created_at_us",
    "attempts", "deaths", "errors",
)  # fmt: skip
TIMER_COLUMNS = (
    "consumer_group", "shard_id", "due_at_us", "task_id", "reason", "held_key", *_CARRIED
)  # fmt: skip
DEAD_COLUMNS = ("consumer_group", "shard_id", "dead_at_us", "task_id", "reason", *_CARRIED)
JOURNAL_COLUMNS = (
    "consumer_group", "shard_id", "seq", "settlement_id", "epoch", "owner", "cursor", "open",
    "usage", "suspects", "settled_at_us",
)  # fmt: skip

NOW = "UNIX_MICROS(CURRENT_TIMESTAMP())"
"""The database's clock in microseconds, in SQL."""


def record_of(row: list[Any]) -> Record:
    """Build a record from a row of `LOG_COLUMNS`."""
    shard_id, created_at, task_id, queue, name, payload, headers, options = row
    position = nanoseconds(created_at)
    return Record(
        shard_id,
        position,
        task_id,
        queue,
        name,
        base64.b64decode(payload),
        headers,
        options,
        position // 1_000,
        position,
    )


def bytes_in(payload: bytes) -> str:
    """Encode a payload for a BYTES column, which is sent as base64."""
    return base64.b64encode(payload).decode()


def task_row(task: NewTask, created_at: object) -> tuple[object, ...]:
    """Build a row of `LOG_COLUMNS`; `created_at` is the mark for the commit timestamp."""
    return (
        task.shard_id,
        created_at,
        task.task_id,
        task.queue,
        task.name,
        bytes_in(task.payload),
        task.headers,
        task.options,
    )


def carried_row(task: Parked | DeadLetter) -> tuple[object, ...]:
    """Build the columns of `_CARRIED`."""
    row = carried(task)
    return (*row[:4], bytes_in(row[4]), *row[5:])


def parked_of(row: list[Any]) -> Parked:
    """Build a timer from a row of `TIMER_COLUMNS`."""
    _, shard_id, due_at_us, task_id, reason, held_key, *rest = row
    position, sequence, queue, name, payload, headers, options, created, tries, deaths, errs = rest
    payload = base64.b64decode(payload)
    return Parked(
        Record(
            shard_id, position, task_id, queue, name, payload, headers, options, created, sequence
        ),
        due_at_us,
        reason,
        tries,
        deaths,
        held_key,
        errors_of(errs),
    )
