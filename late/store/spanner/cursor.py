"""Cursors of the Spanner store: the timestamps up to which the log was read, and ranges of keys.

A position is the commit timestamp of the row in nanoseconds since the epoch. A read at the
timestamp T sees exactly the commits at or before T, so **T is what a cursor covers**, never the
timestamp of the last row: two transactions may commit with the same timestamp.

Texts of a cursor:

- the empty string: nothing is covered;
- `T`: every row that was committed at or before T;
- `T@position,task_id`: inside the window that was read at T: the rows up to and including this
  key. Whatever commits later lies above T, so no row can appear before the key any more.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec
from google.api_core.datetime_helpers import DatetimeWithNanoseconds
from google.cloud.spanner_v1 import KeyRange

from late.errors import StoreError
from late.model.task import Cursor

_SECOND_NS = 1_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CURSOR = re.compile(r"(\d{1,19})(?:@(\d{1,19}),([0-9a-f-]{36}))?\Z")


class SpannerCursor(msgspec.Struct, frozen=True):
    """A parsed cursor."""

    position: int
    task_id: str | None
    """The last covered task of that position; None: every row of it is covered."""
    window: int | None
    """The read timestamp of the window that the cursor is inside of; None between windows."""

    @property
    def key(self) -> tuple[int, str]:
        """The key for comparing cursors. `~` is above every task id."""
        return (self.position, "~" if self.task_id is None else self.task_id)


@lru_cache(maxsize=4096)
def parse(cursor: str) -> SpannerCursor:
    """Parse a cursor.

    Raises:
        StoreError: not a cursor of this store.
    """
    if cursor == "":
        return SpannerCursor(0, None, None)
    match = _CURSOR.match(cursor)
    if match is None:
        raise StoreError(f"not a cursor of the Spanner store: {cursor[:200]!r}")
    window, position, task_id = match.groups()
    if position is None:
        return SpannerCursor(int(window), None, None)
    return SpannerCursor(int(position), task_id, int(window))


def cursor_at(read_ns: int) -> Cursor:
    """Return a cursor that covers every commit at or before this timestamp."""
    return Cursor(str(read_ns))


def nanoseconds(moment: datetime) -> int:
    """Convert a timestamp of Spanner to nanoseconds since the epoch, exactly."""
    since = moment - _EPOCH
    part = getattr(moment, "nanosecond", 0) or moment.microsecond * 1_000
    return (since.days * 86_400 + since.seconds) * _SECOND_NS + part


def timestamp(ns: int) -> str:
    """Convert nanoseconds since the epoch to Spanner's text of a timestamp, for keys."""
    seconds, part = divmod(ns, _SECOND_NS)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{part:09d}Z"


def moment_of(ns: int) -> DatetimeWithNanoseconds:
    """Convert nanoseconds since the epoch to a read timestamp of the client."""
    moment: DatetimeWithNanoseconds = DatetimeWithNanoseconds.from_rfc3339(timestamp(ns))
    return moment


def beyond(shard_id: int, place: SpannerCursor) -> KeyRange:
    """Return the range of the rows of one shard that `place` does not cover."""
    if place.position == 0:
        return KeyRange(start_closed=[shard_id], end_closed=[shard_id])
    start: list[Any] = [shard_id, timestamp(place.position)]
    # An open prefix leaves out every row that begins with it: ties at `position` are covered.
    if place.task_id is not None:
        start.append(place.task_id)
    return KeyRange(start_open=start, end_closed=[shard_id])
