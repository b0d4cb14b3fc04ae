"""Columns, keys and cursors of the Spanner store: pure, nothing here makes a call.

A position is the commit timestamp of the row in nanoseconds since the epoch. A read at the
timestamp T sees exactly the commits at or before T, so **T is what a cursor covers**, never the
timestamp of the last row: two transactions may commit with the same timestamp.

Texts of a cursor:

- the empty string: nothing is covered;
- `T`: every row that was committed at or before T;
- `T@position,task_id`: inside the window that was read at T: the rows up to and including this
  key. Whatever commits later lies above T, so no row can come in before the key any more.
"""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec
from google.api_core.datetime_helpers import DatetimeWithNanoseconds
from google.cloud.spanner_v1 import KeyRange

from late.errors import StoreError
from late.model.task import (
    AttemptError,
    Cursor,
    DeadLetter,
    NewTask,
    OpenTask,
    Parked,
    Record,
    Usage,
)

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
    "usage", "settled_at_us", "suspects",
)  # fmt: skip

NOW = "UNIX_MICROS(CURRENT_TIMESTAMP())"
"""The database's clock in microseconds, in SQL."""

_SECOND_NS = 1_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CURSOR = re.compile(r"(\d{1,19})(?:@(\d{1,19}),([0-9a-f-]{36}))?\Z")


class Place(msgspec.Struct, frozen=True):
    """A cursor taken apart."""

    position: int
    task_id: str | None
    """None: every row of that position is covered."""
    window: int | None
    """The read timestamp of the window that this place is inside of."""

    @property
    def key(self) -> tuple[int, str]:
        """For comparing places: how far this one is. `~` is above every task id."""
        return (self.position, "~" if self.task_id is None else self.task_id)


@lru_cache(maxsize=4096)
def place_of(cursor: str) -> Place:
    """Take a cursor apart.

    Raises:
        StoreError: not a cursor of this store.
    """
    if cursor == "":
        return Place(0, None, None)
    match = _CURSOR.match(cursor)
    if match is None:
        raise StoreError(f"not a cursor of the Spanner store: {cursor[:200]!r}")
    window, position, task_id = match.groups()
    if position is None:
        return Place(int(window), None, None)
    return Place(int(position), task_id, int(window))


def cursor_at(read_ns: int) -> Cursor:
    """A cursor that covers every commit at or before this timestamp."""
    return Cursor(str(read_ns))


def nanoseconds(moment: datetime) -> int:
    """A timestamp of Spanner as nanoseconds since the epoch, exactly."""
    since = moment - _EPOCH
    part = getattr(moment, "nanosecond", 0) or moment.microsecond * 1_000
    return (since.days * 86_400 + since.seconds) * _SECOND_NS + part


def timestamp(ns: int) -> str:
    """Nanoseconds since the epoch as Spanner's text of a timestamp, for keys."""
    seconds, part = divmod(ns, _SECOND_NS)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{part:09d}Z"


def moment_of(ns: int) -> DatetimeWithNanoseconds:
    """Nanoseconds since the epoch as the client wants a read timestamp."""
    moment: DatetimeWithNanoseconds = DatetimeWithNanoseconds.from_rfc3339(timestamp(ns))
    return moment


def beyond(shard_id: int, place: Place) -> KeyRange:
    """The rows of one shard that `place` does not cover."""
    if place.position == 0:
        return KeyRange(start_closed=[shard_id], end_closed=[shard_id])
    start: list[Any] = [shard_id, timestamp(place.position)]
    # An open prefix leaves out every row that begins with it: ties at `position` are covered.
    if place.task_id is not None:
        start.append(place.task_id)
    return KeyRange(start_open=start, end_closed=[shard_id])


def record_of(row: list[Any]) -> Record:
    """A row of `LOG_COLUMNS`."""
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
    """BYTES travel as base64."""
    return base64.b64encode(payload).decode()


def task_row(task: NewTask, created_at: object) -> tuple[object, ...]:
    """A new row of `LOG_COLUMNS`; `created_at` is the mark for the commit timestamp."""
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


def carried(task: Parked | DeadLetter) -> tuple[object, ...]:
    record = task.record
    return (
        record.position,
        record.sequence,
        record.queue,
        record.name,
        bytes_in(record.payload),
        record.headers,
        record.options,
        record.created_at_us,
        task.attempts,
        task.deaths,
        msgspec.json.encode(task.errors).decode() if task.errors else None,
    )


def parked_of(row: list[Any]) -> Parked:
    """A row of `TIMER_COLUMNS`."""
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
        _errors_decoder.decode(errs) if errs else (),
    )


def open_text(open_tasks: tuple[OpenTask, ...]) -> str:
    return msgspec.json.encode(open_tasks).decode()


def usage_text(usage: tuple[Usage, ...]) -> str | None:
    return msgspec.json.encode(usage).decode() if usage else None


_errors_decoder = msgspec.json.Decoder(tuple[AttemptError, ...])
open_of = msgspec.json.Decoder(tuple[OpenTask, ...]).decode
groups_of = msgspec.json.Decoder(tuple[str, ...]).decode
