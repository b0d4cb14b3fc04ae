"""Tell an outage from tasks that fail. Pure.

The handlers of one name need the same things: a database, a service. While these are away the tasks
of that name fail, and a failure says nothing of the one task. So for each name in a queue the last
`REMEMBERED` tasks are looked at, in the order in which they first ended an attempt:

    outage = at least `FAILED_MIN` of them fail, and nine of ten,
             or the latest `FAILED_MIN` fail and none has worked for `SILENCE_US`;
             and the name has worked before, or nothing else in its queue works here

It is looked for in the tasks of this worker, and in those of all workers together: each tells with
its heartbeat of the names that fail somewhere, so that two failures on each of ten workers are an
outage too. A worker sees its own at once, and that of all after two or three heartbeats.

Nine of ten, because what fails mostly ends sooner than what works: where one of five fails, half of
the last ends may be failures for a moment.

A task that fails again is not one more: of a thousand tasks twenty may fail for ever, and when the
others are done only these are tried. A name that never worked beside others that do is at fault: a
handler with a defect.

What ends well is counted one by one, in the order of all ends, while a task fails; otherwise by the
usage of each settlement, so that it costs nothing per task.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple

from late.clock import was_set_back
from late.model.task import Outcome, Record, TaskId, Usage
from late.store.base import NameEnds

REMEMBERED = 20
FAILED_MIN = 5
WORKED_SHARE = 0.1
SILENCE_US = 1_000_000
FLEET_SILENCE_US = 5_000_000
"""It takes some heartbeats until a worker knows what has worked in another."""
FORGOTTEN_US = 1_800_000_000
"""A failure counts for so long: its task may have moved to another worker with its shard."""
LATELY_US = 60_000_000
FAILING_MAX = 1_000
"""Failing tasks are remembered up to this number for each name."""
REPORTED_MAX = 50
"""A worker tells of this many names: some 5 KB in a heartbeat."""
PAUSE_PART = 1 / 16
"""A pause between two tries is this part of the time since the outage began: so it is over soon
after a short one, and what is away for long is left alone."""
PAUSE_MIN_US, PAUSE_MAX_US = 50_000, 5_000_000
LOOKED_US = 60_000_000
"""An outage of this age holds tasks back for as long as any other limit does."""
NAMES_MAX = 10_000
"""Names are remembered up to this number, and beyond it those of which tasks failed."""


class Name(NamedTuple):
    """The tasks that fail or work as one."""

    group: str
    queue: str
    task: str


class Outage(NamedTuple):
    """The outage of one name as this worker sees it."""

    name: Name
    since_us: int
    error: str
    """The error of the last attempt that failed here; empty if only other workers saw one."""
    error_at_us: int


class Ends:
    """The last tasks of one name: whether each failed the last time, and since when it does."""

    def __init__(self) -> None:
        self._last: deque[TaskId | None] = deque(maxlen=REMEMBERED)
        """Those that failed, by their ids; None for one that ended well."""
        self._failing: dict[TaskId, tuple[int, int]] = {}
        """The times at which they failed first and last, in order of the last: also of tasks that
        `_last` has dropped."""
        self._worked_us = 0
        """The time at which the latest one ended well."""
        self.proven = False
        """True once a task has ended well."""
        self.error = ""
        """The error of the last attempt that failed."""
        self.error_at_us = 0

    def add_failed(self, task_id: TaskId, now_us: int, *, counts: bool) -> None:
        known = self._failing.pop(task_id, None)
        if known is None and counts:
            self._last.append(task_id)
        self._failing[task_id] = (now_us if known is None else known[0], now_us)
        if len(self._failing) > FAILING_MAX:
            self.forget(next(iter(self._failing)))

    def add_worked(self, count: int, now_us: int) -> None:
        self.proven, self._worked_us = True, now_us
        self._last.extend([None] * min(count, REMEMBERED))

    def forget(self, task_id: TaskId) -> None:
        """Forget a task that fails no longer. It ignores others."""
        if self._failing.pop(task_id, None) is not None and task_id in self._last:
            self._last.remove(task_id)

    def move(self, by_us: int) -> None:
        """Move all times: the clock was set."""
        if self.proven:
            self._worked_us += by_us
        if self.error_at_us:
            self.error_at_us += by_us
        self._failing = {
            t: (first + by_us, last + by_us) for t, (first, last) in self._failing.items()
        }

    def summary(self, name: Name, now_us: int) -> NameEnds:
        """Return how the last tasks ended, of `name`; failures of long ago are forgotten."""
        while self._failing:
            task_id, (_, at_us) = next(iter(self._failing.items()))
            if at_us >= now_us - FORGOTTEN_US:
                break
            self.forget(task_id)
        worked = self._last.count(None)
        times: list[int] = []
        for end in reversed(self._last):
            if end is None or len(times) == FAILED_MIN:
                break
            times.append(self._failing[end][0])
        return NameEnds(*name, len(self._last) - worked, worked, self._worked_us, tuple(times))

    @property
    def failed(self) -> bool:
        return bool(self._failing)


def most_fail(ends: Sequence[NameEnds], now_us: int, *, silence_us: int) -> bool:
    """Return whether enough of the last tasks of one name fail, in the workers that tell of it."""
    failed = sum(each.failed for each in ends)
    worked = sum(each.worked for each in ends)
    worked_us = max(each.worked_us for each in ends)
    if failed < FAILED_MIN:
        return False
    if worked <= WORKED_SHARE * (failed + worked):
        return True
    later = sum(at_us >= worked_us for each in ends for at_us in each.failed_us)
    return later >= FAILED_MIN and now_us - worked_us >= silence_us


class Outages:
    """The outages that one worker sees."""

    def __init__(self) -> None:
        self._ends: dict[Name, Ends] = {}
        self._failing: set[Name] = set()
        """The names of which a task failed."""
        self._out: dict[Name, int] = {}
        """The names that are in an outage, and the times at which these began."""
        self._others: dict[Name, list[NameEnds]] = {}
        """It has what the other workers told last."""
        self.changed: list[tuple[Name, bool]] = []
        """The outages that began (True) and ended (False) since `take_changes`."""
        self._now_us = 0

    @property
    def out(self) -> Set[Name]:
        """The names that were in an outage when it was last judged."""
        return self._out.keys()

    def pause_us(self, name: Name, now_us: int) -> int:
        """Return how long nothing of a name starts after an attempt that has failed."""
        pause_us = round(self._age_us(name, now_us) * PAUSE_PART)
        return min(max(pause_us, PAUSE_MIN_US), PAUSE_MAX_US)

    def sooner_us(self, name: Name, at_us: int, now_us: int) -> int:
        """Return when to look at a parked task of a name, where a limit would have it at `at_us`.

        Nearer where the outage is young: so all go on after twice the time that it takes.
        """
        part = min(1.0, self._age_us(name, now_us) / LOOKED_US)
        return min(at_us, now_us + max(SILENCE_US, round((at_us - now_us) * part)))

    def _age_us(self, name: Name, now_us: int) -> int:
        return max(0, now_us - self._out.get(name, now_us))

    @property
    def watches(self) -> bool:
        """True while a failure is remembered: only then every task that is done is to be told."""
        return bool(self._failing)

    def failed(
        self, group: str, record: Record, now_us: int, *, error: str = "", counts: bool = True
    ) -> bool:
        """Take in a failed attempt; return whether it is one of an outage.

        Args:
            error: its error, for those who look.
            counts: the task had not failed before, or had failed in an outage: other failures are
                no news, and many of them come at once with a shard of another worker.
        """
        self._pass_time(now_us)
        name = Name(group, record.queue, record.name)
        ends = self._of(name)
        ends.add_failed(record.task_id, self._now_us, counts=counts)
        ends.error, ends.error_at_us = error, self._now_us
        self._failing.add(name)
        self._judge(name)
        return name in self._out

    def done(self, group: str, outcomes: Iterable[Outcome], now_us: int) -> None:
        """Count tasks that are done. To be called while it `watches`, and before each failure."""
        self._pass_time(now_us)
        touched: set[Name] = set()
        for outcome in outcomes:
            record = outcome.attempt.record
            name = Name(group, record.queue, record.name)
            ends = self._of(name)
            ends.forget(record.task_id)
            ends.add_worked(1, self._now_us)
            touched.add(name)
        for name in sorted(touched & self._failing):
            self._judge(name)

    def settled(self, group: str, usages: Iterable[Usage], now_us: int) -> None:
        """Count the tasks that are done, by the usage of a settlement: for names that are not
        watched. Those of them that `done` has counted count twice, which shows no outage."""
        self._pass_time(now_us)
        for usage in usages:
            name = Name(group, usage.queue, usage.name)
            if usage.outcome == "done" and name not in self._failing:
                self._of(name).add_worked(usage.count, self._now_us)

    def exchange(self, told: Iterable[NameEnds], now_us: int) -> tuple[NameEnds, ...]:
        """Take in what the other workers tell now; return what to tell them.

        That is of the names that fail here, and of those that fail elsewhere and are known here.
        """
        self._pass_time(now_us)
        self._others = {}
        for each in told:
            self._others.setdefault(Name(each.group, each.queue, each.task), []).append(each)
        # Who says only what works was asked, and asks nobody: else it would never end.
        asked = {name for name, ends in self._others.items() if any(each.failed for each in ends)}
        names = self._failing | (asked & self._ends.keys())
        for name in sorted(self._failing):
            self._judge(name)
        # All workers choose the same ones where there are too many.
        return tuple(
            self._ends[name].summary(name, self._now_us) for name in sorted(names)[:REPORTED_MAX]
        )

    def names(self, now_us: int) -> frozenset[Name]:
        """Return the names that are in an outage."""
        self._pass_time(now_us)
        for name in list(self._failing):
            self._judge(name)
        return frozenset(self._out)

    def present(self, now_us: int) -> list[Outage]:
        """Return the outages, ascending by name."""
        return [
            Outage(name, self._out[name], self._ends[name].error, self._ends[name].error_at_us)
            for name in sorted(self.names(now_us))
        ]

    def failed_lately(self, now_us: int) -> list[Outage]:
        """Return the names of which an attempt failed here within a minute, also if its task has
        worked since, and which are in no outage: the latest failure first."""
        self._pass_time(now_us)
        found = [
            Outage(name, now_us, ends.error, ends.error_at_us)
            for name, ends in self._ends.items()
            if ends.error_at_us > max(0, now_us - LATELY_US) and name not in self._out
        ]
        return sorted(found, key=lambda each: (-each.error_at_us, each.name))

    def take_changes(self) -> list[tuple[Name, bool]]:
        """Take out the outages that began (True) and ended (False) since the last call."""
        changed, self.changed = self.changed, []
        return changed

    def _pass_time(self, now_us: int) -> None:
        """Go on to the present. Where the clock was set back, all is as long ago as it was."""
        if was_set_back(now_us, self._now_us):
            by_us = now_us - self._now_us
            self._out = {name: since_us + by_us for name, since_us in self._out.items()}
            for ends in self._ends.values():
                ends.move(by_us)
            self._now_us = now_us
        self._now_us = max(self._now_us, now_us)

    def _of(self, name: Name) -> Ends:
        if name not in self._ends and len(self._ends) >= NAMES_MAX:
            self._ends = {each: self._ends[each] for each in self._failing}
        return self._ends.get(name) or self._ends.setdefault(name, Ends())

    def _works_beside(self, name: Name) -> bool:
        """Tell whether another name of the same queue works."""
        return any(
            ends.proven and other not in self._out
            for other, ends in self._ends.items()
            if other[:2] == name[:2] and other != name
        )

    def _judge(self, name: Name) -> None:
        ends, others = self._ends[name], self._others.get(name, [])
        mine = ends.summary(name, self._now_us)
        out = most_fail([mine], self._now_us, silence_us=SILENCE_US) or (
            bool(others) and most_fail([mine, *others], self._now_us, silence_us=FLEET_SILENCE_US)
        )
        proven = ends.proven or any(each.worked_us for each in others)
        out = out and (proven or not self._works_beside(name))
        if out != (name in self._out):
            if out:
                self._out[name] = self._now_us
            else:
                del self._out[name]
            self.changed.append((name, out))
        if not ends.failed:
            self._failing.discard(name)
