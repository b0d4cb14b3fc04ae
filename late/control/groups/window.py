"""Replay a window: a group runs again what was enqueued from T until U, and goes on where it is.

A task of the window that the group has settled is copied from the log to its timers, due at the
rate of the replay, as a redrive puts dead letters there. It keeps its id, so it is in one place as
before, and no other group sees it. What waits, runs, is parked or is a dead letter is not copied.

The copy is made in slices, each of which is a transaction with the progress of the replay in
`late_meta`. A slice is only made when the tasks of the one before are soon due. So a replay that is
killed, or left, stops within seconds; the same call goes on, and copies nothing twice.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, Row, delete, insert, select

from late.control import audit
from late.control.groups import groups, rehearsal, replay, settings
from late.control.groups.groups import WINDOW_KEY
from late.control.groups.window_rows import Walk, cancelled, settled, timer_of
from late.control.sql import log_keys, positions
from late.control.sql.last_settlement import Journal, journals
from late.control.sql.log_keys import Key
from late.control.sql.rows import now_us, open_of
from late.control.sql.shards import survey
from late.control.views import Count
from late.errors import ConfigError, Conflict
from late.model.group_settings import GroupSettings
from late.model.task import DEFAULT_GROUP, Reads
from late.schema.engine import EPOCH, reading, write
from late.schema.tables import meta, timer
from late.store.common.groups import is_shadow, reads_of

SLICE = 250
"""Tasks that one transaction copies, at most: each may have a payload of 1 MiB."""
SLICE_S = 10.0
"""A slice is the tasks of so much time, at most."""
AHEAD_US = 5_000_000
"""A slice is made when the one before ends within this time."""
TRIES = 5


class WindowReplay(msgspec.Struct, frozen=True):
    """The state of a replay of a window; with `dry_run` what is left of it."""

    group: str
    since_us: int
    until_us: int
    rate: float
    dry_run: bool
    copied: Count
    """Tasks that were put back in all; with `dry_run` those that would be."""
    queues: Mapping[str, Count]
    """The same by queue, of this call alone."""
    cancelled: int
    """Tasks of this call that were left out, as a cancel of them is in the log."""
    finished: bool
    wait_s: float = 0.0
    """So long the next call has nothing to do."""
    kept_us: int | None = None
    """The time at which the first task of the log was enqueued: older ones are not kept."""


class Progress(msgspec.Struct):
    """The progress of a replay, as it is kept."""

    since_us: int
    until_us: int
    copied: int = 0
    due_us: int = 0
    """The next task that is copied is due then, or later."""
    keys: dict[int, Key] = {}
    """By shard: the last row that was looked at."""
    done: set[int] = set()
    """Shards that were looked at to their end."""
    finished_us: int | None = None
    rate: float = 0.0
    cancelled: bool = False
    """An operator has ended it before its end."""


class _Changed(Exception):
    """The group, or the progress, changed between the look and the change."""


class _Slice(msgspec.Struct):
    """The findings of one look at the log."""

    shard_ids: Sequence[int]
    reset: tuple[int | None, int | None]
    """The last reset of the group: what it reads again must not be copied."""
    kept: str | None
    """The progress as it was read."""
    progress: Progress
    rows: list[dict[str, Any]]
    """Timers to insert, without their due times."""
    queues: Counter[str]
    capped: set[str]
    cancelled: int
    now_us: int
    kept_us: int | None


def replay_window(
    engine: Engine,
    name: str,
    since_us: int,
    until_us: int,
    *,
    rate: float,
    dry_run: bool = False,
    again: bool = False,
) -> WindowReplay:
    """Copy the next slice of a window; call it until `finished`, each time after `wait_s`.

    Args:
        rate: tasks that fall due in a second.
        again: forget the last replay of a window, finished or not. Only for the first call.

    Raises:
        ConfigError: there is no such group, or the window or the rate is not valid.
        Conflict: it is a shadow; or another window is unfinished, or this one is finished.
    """
    if until_us <= since_us:
        raise ConfigError("the window ends before it begins: give a later end")
    replay.check(rate)
    for _ in range(TRIES):
        with reading(engine) as connection:
            window = Progress(since_us, until_us)
            found = _look(connection, name, window, rate, dry_run=dry_run, again=again)
        if dry_run or found.progress.due_us > found.now_us + AHEAD_US:
            return _view(name, found, rate, dry_run=dry_run)
        try:
            found.progress = write(engine, partial(_copy, name=name, found=found, rate=rate))
        except _Changed:
            continue
        return _view(name, found, rate, dry_run=False)
    raise Conflict(f"group {name!r} changes all the time: try again")


def _view(name: str, found: _Slice, rate: float, *, dry_run: bool) -> WindowReplay:
    progress = found.progress
    queues = {queue: Count(n, queue in found.capped) for queue, n in sorted(found.queues.items())}
    left_us = progress.due_us - found.now_us - AHEAD_US
    finished = progress.finished_us is not None and not dry_run
    return WindowReplay(
        name, progress.since_us, progress.until_us, rate, dry_run,
        sum(queues.values(), start=Count()) if dry_run else Count(progress.copied),
        queues, found.cancelled, finished,
        0.0 if finished else max(0.0, left_us / 1_000_000), found.kept_us,
    )  # fmt: skip


# --- the look -------------------------------------------------------------------------------------


def _look(
    connection: Connection, name: str, window: Progress, rate: float, *, dry_run: bool, again: bool
) -> _Slice:
    row = groups.known(connection, name, lock=False)
    now = now_us(connection)
    if is_shadow(row.paused):
        raise Conflict(f"group {name!r} is a shadow: it replays nothing")
    if window.until_us > now:
        raise ConfigError("the end of the window has not come: give one in the past")
    oldest = settings.all_of(connection).get(name, GroupSettings()).max_age_s
    if oldest is not None and window.since_us < now - oldest * 1_000_000:
        raise ConfigError(
            f"group {name!r} skips what is older than {oldest:g} s, and so most of this window:"
            " take its max_age back first"
        )
    kept = connection.execute(select(meta.c.value).where(meta.c.key == WINDOW_KEY + name)).scalar()
    progress = _begun(name, kept, window, again=again)
    every = survey(connection).every
    found = _Slice(
        every, (row.from_us, row.replay_us), kept, progress, [], Counter(), set(), 0, now,
        rehearsal.kept_since(connection, every),
    )  # fmt: skip
    if dry_run or progress.due_us <= now + AHEAD_US:
        reads = Reads(reads_of(row.queues, None, None).queues)
        _fill(connection, name, reads, found, rate, dry_run=dry_run)
    return found


def _begun(name: str, kept: str | None, window: Progress, *, again: bool) -> Progress:
    """Return the progress of the window, which may begin here."""
    if kept is None or again:
        return window
    last = msgspec.json.decode(kept, type=Progress)
    same = (last.since_us, last.until_us) == (window.since_us, window.until_us)
    if same and last.finished_us is not None:
        ended = (
            "had the replay of this window cancelled after"
            if last.cancelled
            else "has replayed this window,"
        )
        raise Conflict(
            f"group {name!r} {ended} {last.copied} tasks: give --again to do it once more"
        )
    if same or last.finished_us is not None:
        return last if same else window
    raise Conflict(
        f"group {name!r} has an unfinished replay of {_time(last.since_us)} to"
        f" {_time(last.until_us)}: give these times to go on, or --again to begin another"
    )


def _time(us: int) -> str:
    return (EPOCH + timedelta(microseconds=us)).isoformat().replace("+00:00", "Z")


def _fill(
    connection: Connection, name: str, reads: Reads, found: _Slice, rate: float, *, dry_run: bool
) -> None:
    """Read the next tasks of the shards, each of which gives its part."""
    progress = found.progress
    left = [shard_id for shard_id in found.shard_ids if shard_id not in progress.done]
    size = max(1, min(SLICE, int(rate * SLICE_S)))
    part = math.ceil(size / max(1, len(left)))
    if dry_run:
        part = max(rehearsal.LOOKED_MIN, rehearsal.LOOKED // max(1, len(left)))
    known = sorted({DEFAULT_GROUP, name, *positions.registered(connection)})
    fresh = [shard_id for shard_id in left if shard_id not in progress.keys]
    starts = positions.before(connection, fresh, progress.since_us, known) if fresh else {}
    last = journals(connection)
    for shard_id in left:
        if not dry_run and len(found.rows) >= size:
            break
        journal, key = last.get((name, shard_id), Journal()), progress.keys.get(shard_id)
        span = progress.since_us, progress.until_us
        walk = Walk(name, shard_id, journal, *span, starts.get(shard_id, ""), key, reads)
        rows = settled(connection, walk, part, payloads=not dry_run)
        if len(rows) < part:
            progress.done.add(shard_id)
            progress.keys.pop(shard_id, None)
        else:
            progress.keys[shard_id] = log_keys.key_of(connection, rows[-1])
            found.capped |= {row.queue for row in rows}
        _take(connection, walk, rows, found, dry_run=dry_run)
    if len(progress.done) == len(set(found.shard_ids)):
        progress.finished_us = found.now_us


def _take(
    connection: Connection,
    walk: Walk,
    rows: Sequence[Row[Any]],
    found: _Slice,
    *,
    dry_run: bool,
) -> None:
    """Take those of the rows that have ended, and that nobody has cancelled."""
    opened = {str(task.task_id) for task in open_of(walk.last.open)}
    ended = [row for row in rows if str(row.task_id) not in opened]
    gone = cancelled(connection, walk) if ended else set()
    for row in ended:
        if str(row.task_id) in gone:
            found.cancelled += 1
            continue
        found.queues[row.queue] += 1
        if not dry_run:
            found.rows.append(timer_of(connection, walk.group, row))


# --- the change -----------------------------------------------------------------------------------


def _copy(connection: Connection, *, name: str, found: _Slice, rate: float) -> Progress:
    """Insert the timers of a slice, note the progress, and return it."""
    row = groups.known(connection, name)
    key = WINDOW_KEY + name
    kept = connection.execute(select(meta.c.value).where(meta.c.key == key)).scalar()
    if (row.from_us, row.replay_us) != found.reset or kept != found.kept:
        raise _Changed
    before = found.progress
    after = msgspec.structs.replace(before, copied=before.copied + len(found.rows), rate=rate)
    step_us = 1_000_000 / rate
    first_us = max(now_us(connection), before.due_us)
    rows = sorted(found.rows, key=lambda each: (each["created_at_us"], each["sequence"]))
    timers = [{**each, "due_at_us": first_us + round(n * step_us)} for n, each in enumerate(rows)]
    if timers:
        connection.execute(insert(timer), timers)
        after.due_us = first_us + round(len(timers) * step_us)
    connection.execute(delete(meta).where(meta.c.key == key))
    connection.execute(insert(meta).values(key=key, value=msgspec.json.encode(after).decode()))
    if before.due_us == 0:
        _note(connection, name, "group.replay", after, rate)
    if after.finished_us is not None:
        _note(connection, name, "group.replayed", after, rate)
    return after


def _note(connection: Connection, name: str, action: str, window: Progress, rate: float) -> None:
    after = {
        "from_us": window.since_us, "until_us": window.until_us, "rate": rate,
        "copied": window.copied,
    }  # fmt: skip
    audit.record(connection, action=action, subject=f"group:{name}", after=after)
