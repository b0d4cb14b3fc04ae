"""Start tasks: a `Grant` brings the time and the room in each pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from late.model.task import HELD_US
from late.scheduler import events_effects as m
from late.scheduler.core.reads import requeue_unclaimed, start_opened
from late.scheduler.core.state import CoreState
from late.scheduler.core.transitions import come_due, expire, park, release_key
from late.scheduler.limits.limits import LOCAL_POOL
from late.scheduler.task_state import Entry

FOREGROUND_US = 600_000_000
"""A shard in which foreground has run within this time makes room for more of it."""


def grant(
    core: CoreState,
    rooms: dict[str, int],
    background: Mapping[str, int],
    care: m.Care,
    effects: list[m.Effect],
) -> None:
    """Start what may start now: so many attempts fit into each pool of `rooms`, and so many of the
    background into each of `background`."""
    ready, suspects = core.ready_queues, core.suspects
    ready.open(core.now_us, rooms, background)
    for entry in core.timers.pop_due(core.now_us):
        come_due(core, entry)
    if core.look_due:
        park_long_held(core)
    if core.runs_look_due:
        note_long_runs(core)
    if core.stopped or not core.recovered or max(rooms.values()) <= 0:
        return
    if len(rooms) > 1:
        requeue_unclaimed(core, effects)
    started: list[Entry] = []
    for entry in suspects.next_marked(max(0, rooms[LOCAL_POOL]), care):
        start_if(core, ready.admit(entry), entry, started)
    put_off = None
    if core.wary_until_us >= 0:
        wary_until_us, now_us = core.wary_until_us, core.now_us
        put_off = partial(suspects.defers, care=care, until_us=wary_until_us, now_us=now_us)
    else:
        start_all(core, ready.unlimited(), started)
    while (next_one := ready.next(put_off)) is not None:
        start(core, next_one, started)
    for entry in suspects.next_trial(care):  # one more than there is room, or it might never start
        start_if(core, ready.admit(entry, extra=True), entry, started)
    if core.running > (sum(core.background.values()) if core.background else 0):
        core.foreground_at_us = core.now_us
    dispatch(core, started, effects)


def start_if(core: CoreState, admitted: bool, entry: Entry, started: list[Entry]) -> None:
    """Start a task that had to wait for its mark, or put it back among the ready ones."""
    if admitted:
        start(core, entry, started)
    else:
        core.ready_queues.push(entry)


def start(core: CoreState, entry: Entry, started: list[Entry]) -> None:
    """Count the task as started: it runs at once, or as soon as its mark is in the journal."""
    if entry.state != "ready":
        core.ready_queues.undo(entry)
        return  # cancelled or put off while it was queued
    if (core.limits.any or entry.expires_at_us is not None) and expire(core, entry):
        core.ready_queues.undo(entry)
        release_key(core, entry)
        return
    entry.move("running")
    core.window.cover(entry)
    core.starts(entry)
    wary_us = core.wary_until_us
    if wary_us >= 0 and core.suspects.is_wary_of(entry, wary_us, core.now_us):
        core.suspects.mark(entry, core.now_us)
    else:
        started.append(entry)


def start_all(core: CoreState, entries: Sequence[Entry], started: list[Entry]) -> None:
    """Do as `start` for each, where no task is under suspicion: the way of nearly all."""
    plain = not core.limits.any
    for entry in entries:
        if plain and entry.state == "ready" and entry.expires_at_us is None:
            entry.state = "running"  # `move` would ask once more
            core.running += 1
            if entry.options.priority < 0:
                core.background[LOCAL_POOL] += 1
            started.append(entry)
        else:
            start(core, entry, started)
    core.window.cover_all(started)


def dispatch(core: CoreState, entries: Sequence[Entry], effects: list[m.Effect]) -> None:
    """Hand these tasks to the dispatcher."""
    attempts = [entry.attempt(core.lease) for entry in entries]
    if core.limits.any:
        attempts = [core.limits.timed(attempt) for attempt in attempts]
    if attempts:
        effects.append(m.Dispatch(attempts))


def note_long_runs(core: CoreState) -> None:
    """See which tasks have run for long without a word of that in the journal.

    A death is counted for the tasks that the journal has as started. A quick task is told of by its
    end, so it pays nothing for that.
    """
    core.runs_looked_at_us = core.now_us
    running = core.window.unwritten_starts()
    core.long_run = core.long_run or not running.isdisjoint(core.ran_on)
    core.ran_on = running


def park_long_held(core: CoreState) -> None:
    """Move tasks that wait behind their key for long from the window to the timer table."""
    core.looked_at_us = core.now_us
    start_opened(core)
    core.drain.look()
    pressed = len(core.window) > core.settings.window - core.settings.page_size
    since_us = core.now_us - (0 if pressed else core.settings.park_after_us)
    most = core.settings.limited_max
    if core.ready_queues.limited > most or (core.ready_queues.limited and pressed):
        for entry, again_us, reason in core.ready_queues.surplus(most // 2):
            park(core, entry, again_us, reason, holds=True)
    if pressed and core.ready_queues.limited:  # Else no other tenant behind it would be read.
        for entry, again_us, reason in core.ready_queues.tenants_surplus(most // 2):
            park(core, entry, again_us, reason, holds=True)
    # Else the foreground behind it would not be read. Where none came for long, the log may wait:
    # a large backlog of background alone costs no row of the timer table.
    if pressed and core.now_us - core.foreground_at_us < FOREGROUND_US:
        for entry, again_us, reason in core.ready_queues.background_surplus(most // 2):
            park(core, entry, again_us, reason, holds=True)
    for entry in core.keys.park_waiting(since_us, core.now_us, core.is_ready):
        if entry.timer_key is not None and entry.timer_key[0] == HELD_US:
            del core.timers.parked[entry.record.task_id]  # its row is as it must be
            entry.move("parked")
        else:
            park(core, entry, HELD_US, "held", holds=True)
