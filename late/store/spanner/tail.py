"""The tail of the Spanner store: ranges of keys by the Read API, at one timestamp.

A round of the tail is **one read over the ranges of all shards**. Rows come in the order of the
primary key, that is shard by shard; if the read is full, the next one reads the shards that it did
not reach. An idle worker with eight shards makes one call per poll, not eight, and a busy shard
cannot starve the others.

The cursor is the timestamp of the read and never that of the last row. A shard with nothing new
is left out: its old cursor means the same as the new one.

Key ranges and not SQL: the emulator scans the whole table for a statement, and Spanner must plan
it. A range is a seek to its first row, whatever the number of consumed rows below.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from google.api_core import exceptions as api
from google.cloud.spanner_v1 import KeyRange, KeySet

from late.model.task import Cursor, OpenTask, Parked, Record, ShardId, TaskId
from late.store.base import Page, cursor_within
from late.store.spanner.cursor import (
    SpannerCursor,
    beyond,
    cursor_at,
    moment_of,
    nanoseconds,
    parse,
    timestamp,
)
from late.store.spanner.row_codec import LOG, LOG_COLUMNS, TIMER_COLUMNS, parked_of, record_of

WINDOW_NS = 60 * 1_000_000_000
"""An older window is replaced by a new one. Any read at or above a cursor's window is gap-free; one
at the window's own timestamp can be served by the nearest replica, but Spanner keeps old versions
for only an hour."""


class SpannerTail:
    """Reads pages. Safe to use from several threads.

    Args:
        staleness_s: the largest age of the data read. 0 is a strong read, which asks the leader.
            With more the nearest replica can answer; Spanner then chooses the timestamp, which
            becomes the cursor, so that nothing is lost but only seen later.
    """

    def __init__(self, staleness_s: float) -> None:
        self._staleness = timedelta(seconds=staleness_s)
        self._guard = threading.Lock()
        self._newest_ns = 0

    def read(self, database: Any, cursors: Mapping[ShardId, Cursor], limit: int) -> list[Page]:
        """Read the next page of each shard that has one; see `Store.read`."""
        windows: dict[int | None, dict[ShardId, SpannerCursor]] = {}
        for shard_id in sorted(cursors):
            place = parse(cursors[shard_id])
            # Compared with Spanner's own timestamps, never with a clock of this machine. Before the
            # first read, a window may be one that an earlier owner opened days ago.
            newest_ns = self._newest_ns
            recent = place.window and newest_ns and place.window > newest_ns - WINDOW_NS
            windows.setdefault(place.window if recent else None, {})[shard_id] = place
        pages: list[Page] = []
        for window, places in windows.items():
            while places:
                try:
                    pages += self._step(database, window, places, limit)
                except (api.FailedPrecondition, api.OutOfRange):
                    # The worker did not read for an hour: the versions of its window are gone. A
                    # new window serves the cursor as well; only a strong read is never too old.
                    if window is None:
                        raise
                    window = None
        return pages

    def _step(
        self, database: Any, window: int | None, places: dict[ShardId, SpannerCursor], limit: int
    ) -> list[Page]:
        """Read once, and take the finished shards out of `places`."""
        ranges = [beyond(shard_id, place) for shard_id, place in places.items()]
        with database.snapshot(**self._bound(window)) as snapshot:
            result = snapshot.read(LOG, LOG_COLUMNS, KeySet(ranges=ranges), limit=limit)
            found: dict[int, list[Record]] = {}
            count = 0
            for row in result:
                count += 1
                record = record_of(row)
                found.setdefault(record.shard_id, []).append(record)
        read_ns = window or nanoseconds(result.metadata.transaction.read_timestamp)
        with self._guard:
            self._newest_ns = max(self._newest_ns, read_ns)
        full = count == limit
        last = max(found) if full else None
        pages = []
        for shard_id in list(places):
            if last is not None and shard_id > last:
                break
            place = places.pop(shard_id)
            records = found.get(shard_id, [])
            if shard_id == last:
                pages.append(_full_page(shard_id, records, read_ns))
            elif read_ns >= place.position and (records or place.window is not None):
                # A read with bounded staleness may be below the cursor: then it finds nothing and
                # proves nothing, not even for ties at the cursor's own timestamp.
                end = cursor_at(read_ns)
                pages.append(Page(shard_id, records, end, str(read_ns), False, read_ns // 1_000))
        return pages

    def _bound(self, window: int | None) -> dict[str, Any]:
        if window is not None:
            return {"read_timestamp": moment_of(window)}
        return {"max_staleness": self._staleness} if self._staleness else {}


def _full_page(shard_id: ShardId, records: list[Record], read_ns: int) -> Page:
    end = cursor_within(str(read_ns), records[-1])
    return Page(shard_id, records, end, str(read_ns), True, read_ns // 1_000)


def fetch(database: Any, shard_id: ShardId, keys: Sequence[OpenTask]) -> list[Record]:
    """Read the records of `keys` that are still in the log."""
    if not keys:
        return []
    wanted = [[shard_id, timestamp(key.position), key.task_id] for key in keys]
    with database.snapshot() as snapshot:
        return [record_of(row) for row in snapshot.read(LOG, LOG_COLUMNS, KeySet(keys=wanted))]


def due(
    database: Any, group: str, shard_id: ShardId, until_us: int, limit: int, after: tuple[int, str]
) -> list[Parked]:
    """Read parked tasks by due time; see `Store.due`."""
    due_range = KeyRange(
        start_open=[group, shard_id, *after], end_closed=[group, shard_id, until_us]
    )
    with database.snapshot() as snapshot:
        rows = snapshot.read("late_timer", TIMER_COLUMNS, KeySet(ranges=[due_range]), limit=limit)
        return [parked_of(row) for row in rows]


def of_ids(
    database: Any, group: str, shard_id: ShardId, task_ids: Sequence[TaskId], limit: int
) -> list[Parked]:
    """Read parked tasks by id, through the index."""
    prefixes = [[group, shard_id, task_id] for task_id in task_ids]
    ranges = [KeyRange(start_closed=prefix, end_closed=prefix) for prefix in prefixes]
    with database.snapshot(multi_use=True) as snapshot:
        index = snapshot.read(
            "late_timer",
            ("due_at_us", "task_id"),
            KeySet(ranges=ranges),
            index="late_timer_task",
            limit=limit,
        )
        keys = [[group, shard_id, *row] for row in index]
        rows = snapshot.read("late_timer", TIMER_COLUMNS, KeySet(keys=keys)) if keys else ()
        return [parked_of(row) for row in rows]


def held(database: Any, group: str, shard_id: ShardId, held_key: str, limit: int) -> list[Parked]:
    """Read parked tasks of one ordering key, by (sequence, task_id): the order of the index."""
    prefix = [group, shard_id, held_key]
    with database.snapshot() as snapshot:
        index = snapshot.read(
            "late_timer",
            ("due_at_us", "task_id"),
            KeySet(ranges=[KeyRange(start_closed=prefix, end_closed=prefix)]),
            index="late_timer_held",
            limit=limit,
        )
        keys = [[group, shard_id, *row] for row in index]
    if not keys:
        return []
    moment = index.metadata.transaction.read_timestamp
    with database.snapshot(read_timestamp=moment) as snapshot:
        rows = snapshot.read("late_timer", TIMER_COLUMNS, KeySet(keys=keys))
        found = [parked_of(row) for row in rows]
    return sorted(found, key=lambda parked: (parked.record.sequence, parked.record.task_id))
