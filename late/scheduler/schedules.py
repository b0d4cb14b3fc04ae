"""Fire the recurring tasks that live in one shard.

A tick takes effect in a settlement: the task's row is inserted into the log, and the schedule's
`next_due_at_us` moves on, only if it still is the one that the tick was computed from. So there is
exactly one task per tick, whoever crashes: the fence keeps a second owner out, the comparison
keeps a stale copy of the schedule out.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from late.errors import InvalidCron
from late.model.cron import dues_us
from late.model.task import Schedule, TaskId
from late.model.ticks import fires_at_us, tick
from late.model.worker_report import ScheduleSlips
from late.payload.terms import is_bound
from late.store.base import Tick

GRACE_US = 60_000_000
"""With catch-up `skip`, a tick up to this late still fires: a take-over is not a downtime."""
MISSED_MAX = 10_000
"""More missed ticks than this are not looked at one by one: the oldest are left out."""
TASKS_MAX = 1_000
"""Tasks of one settlement's ticks, beyond those of one schedule: databases bound a transaction."""


class ShardSchedules:
    """The schedules of one shard, as last read, moved on by the ticks that were settled."""

    def __init__(self) -> None:
        self._schedules: dict[str, Schedule] = {}
        self.next_due_us: int | None = None
        """The time at which the next schedule is due, or None."""
        self.slips: dict[str, ScheduleSlips] = {}
        """By schedule: its ticks that did not go as planned, since this worker has the shard."""

    def replace(self, schedules: Sequence[Schedule]) -> None:
        """Take the database's view. A view that is older than a tick settled meanwhile is
        harmless: its tick would not match and inserts nothing."""
        self._schedules = {s.name: s for s in schedules}
        self._look()

    def _look(self) -> None:
        dues = [_fires_us(each) for each in self._schedules.values()]
        self.next_due_us = min((due for due in dues if due is not None), default=None)

    def take_due(self, now_us: int) -> tuple[Tick, ...]:
        """Fire the schedules that are due, and move them on; ascending by name.

        After a long downtime only so many at once: the others are still due.
        """
        ticks: list[Tick] = []
        for name in sorted(self._schedules):
            if sum(len(tick.tasks) for tick in ticks) >= TASKS_MAX:
                break
            schedule = self._schedules[name]
            fires_us = _fires_us(schedule)
            if fires_us is not None and fires_us <= now_us:
                tick = fire(schedule, now_us)
                ticks.append(tick)
                self._note(schedule, tick, now_us)
                self._schedules[name] = msgspec.structs.replace(
                    schedule,
                    next_due_at_us=tick.next_due_at_us,
                    open_task_id=tick.tasks[-1].task_id if tick.tasks else schedule.open_task_id,
                )
        self._look()
        return tuple(ticks)

    def _note(self, schedule: Schedule, tick: Tick, now_us: int) -> None:
        late_us = now_us - fires_at_us(schedule, tick.due_at_us)
        if not (tick.skipped or tick.overlaps or late_us > GRACE_US):
            return
        had = self.slips.get(schedule.name, ScheduleSlips(schedule.name))
        self.slips[schedule.name] = ScheduleSlips(
            schedule.name,
            skipped=had.skipped + tick.skipped,
            overlaps=had.overlaps + tick.overlaps,
            late=had.late + (late_us > GRACE_US),
            at_us=now_us,
            late_us=late_us,
            overlap=schedule.overlap,
            open_task_id=schedule.open_task_id or "",
            rule=schedule.rule,
        )

    def ended(self, name: str, task_id: TaskId) -> None:
        """Note that a tick's task has ended."""
        schedule = self._schedules.get(name)
        if schedule is not None and schedule.open_task_id == task_id:
            self._schedules[name] = msgspec.structs.replace(schedule, open_task_id=None)


def _fires_us(schedule: Schedule) -> int | None:
    """Return when the next tick is fired; None: never, or not while it is paused."""
    due_us = schedule.next_due_at_us
    return None if schedule.paused or due_us is None else fires_at_us(schedule, due_us)


def fire(schedule: Schedule, now_us: int) -> Tick:
    """Return the tick of a schedule that is due at `now_us`, by its catch-up and overlap policies.

    Catch-up decides what becomes of the times missed since `next_due_at_us`: `skip` runs only a
    time at most `GRACE_US` ago, `latest` runs the last one, `all` the last `catch_up_max`.
    Overlap decides what happens while the task of the last tick is unfinished: `allow` runs both,
    `skip` leaves this tick out, `queue` runs them one after the other (an ordering key).
    """
    due = schedule.next_due_at_us
    assert due is not None
    assert fires_at_us(schedule, due) <= now_us
    try:
        upcoming = dues_us(schedule.rule, schedule.zone, anchor_us=schedule.anchor_us, after_us=due)
        missed = [due]
        following = None
        for moment in upcoming:
            if fires_at_us(schedule, moment) > now_us:
                following = moment
                break
            missed.append(moment)
            if len(missed) > MISSED_MAX:
                del missed[: MISSED_MAX // 2]
    except InvalidCron:
        # The row was changed by hand: it never fires again until it is mended.
        return Tick(schedule.name, due, None, ())
    if schedule.catch_up == "all":
        chosen = missed[-schedule.catch_up_max :]
    elif schedule.catch_up == "latest" or now_us - fires_at_us(schedule, missed[-1]) <= GRACE_US:
        chosen = missed[-1:]
    else:
        chosen = []
    if schedule.overlap == "skip":
        chosen = [] if schedule.open_task_id is not None else chosen[-1:]
    bound = is_bound(schedule.payload)
    return Tick(
        schedule=schedule.name,
        due_at_us=due,
        next_due_at_us=following,
        tasks=tuple(tick(schedule, moment, is_bound=bound) for moment in chosen),
        skipped=len(missed) - len(chosen),
        overlaps=schedule.open_task_id is not None,
    )
