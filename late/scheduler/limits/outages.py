"""Tell an outage from tasks that fail. Pure.

The handlers of one name need the same things: a database, a service. While these are away the tasks
of that name fail, and a failure says nothing of the one task. So for each name in a queue the last
`REMEMBERED` tasks are looked at, in the order in which they first ended an attempt:

    outage = at least `FAILED_MIN` of them fail, and nine of ten,
             or the latest `FAILED_MIN` fail and none has worked for `SILENCE_US`;
             and the name has worked here before, or nothing else in its queue works

Nine of ten, because what fails mostly ends sooner than what works: where one of five fails, half of
the last ends may be failures for a moment.

A task that fails again is not one more: of a thousand tasks twenty may fail for ever, and when the
others are done only these are tried. A name that never worked beside others that do is at fault: a
handler with a defect.

What ends well is counted one by one, in the order of all ends, while a task fails; otherwise by the
usage of each settlement, so that it costs nothing per task.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from late.model.task import Outcome, Record, TaskId, Usage

REMEMBERED = 20
FAILED_MIN = 5
WORKED_SHARE = 0.1
SILENCE_US = 1_000_000
FORGOTTEN_US = 1_800_000_000
"""A failure counts for so long: its task may have moved to another worker with its shard."""
FAILING_MAX = 1_000
"""Failing tasks are remembered up to this number for each name."""
NAMES_MAX = 10_000
"""Names are remembered up to this number, and beyond it those of which tasks failed."""


class Name(NamedTuple):
    """The tasks that fail or work as one."""

    group: str
    queue: str
    task: str


class Ends:
    """The last tasks of one name: whether each failed the last time, and since when it does."""

    def __init__(self) -> None:
        self._last: deque[TaskId | None] = deque(maxlen=REMEMBERED)
        """Those that failed, by their ids; None for one that ended well."""
        self._failing: dict[TaskId, int] = {}
        """The times at which they failed, in this order: also of tasks that `_last` has dropped."""
        self._worked_us = 0
        """The time at which the latest one ended well."""
        self.proven = False
        """True once a task has ended well."""

    def add_failed(self, task_id: TaskId, now_us: int, *, counts: bool) -> None:
        if self._failing.pop(task_id, None) is None and counts:
            self._last.append(task_id)
        self._failing[task_id] = now_us
        if len(self._failing) > FAILING_MAX:
            self.forget(next(iter(self._failing)))

    def add_worked(self, count: int, now_us: int) -> None:
        self.proven, self._worked_us = True, now_us
        self._last.extend([None] * min(count, REMEMBERED))

    def forget(self, task_id: TaskId) -> None:
        """Forget a task that fails no longer. It ignores others."""
        if self._failing.pop(task_id, None) is not None and task_id in self._last:
            self._last.remove(task_id)

    def fail(self, now_us: int) -> bool:
        """Return whether enough of the last tasks failed."""
        while self._failing:
            task_id, at_us = next(iter(self._failing.items()))
            if at_us >= now_us - FORGOTTEN_US:
                break
            self.forget(task_id)
        worked = self._last.count(None)
        if len(self._last) - worked < FAILED_MIN:
            return False
        if worked <= WORKED_SHARE * len(self._last):
            return True
        latest = itertools.islice(reversed(self._last), FAILED_MIN)
        return None not in latest and now_us - self._worked_us >= SILENCE_US

    @property
    def failed(self) -> bool:
        return bool(self._failing)


class Outages:
    """The outages that one worker sees."""

    def __init__(self) -> None:
        self._ends: dict[Name, Ends] = {}
        self._failing: set[Name] = set()
        """The names of which a task failed."""
        self._out: set[Name] = set()
        self._changed: list[tuple[Name, bool]] = []
        self._now_us = 0

    @property
    def watches(self) -> bool:
        """True while a failure is remembered: only then every task that is done is to be told."""
        return bool(self._failing)

    def failed(self, group: str, record: Record, now_us: int, *, counts: bool = True) -> bool:
        """Take in a failed attempt; return whether it is one of an outage.

        Args:
            counts: the task had not failed before, or had failed in an outage: other failures are
                no news, and many of them come at once with a shard of another worker.
        """
        self._now_us = max(self._now_us, now_us)
        name = Name(group, record.queue, record.name)
        self._of(name).add_failed(record.task_id, self._now_us, counts=counts)
        self._failing.add(name)
        self._judge(name)
        return name in self._out

    def done(self, group: str, outcomes: Iterable[Outcome], now_us: int) -> None:
        """Count tasks that are done. To be called while it `watches`, and before each failure."""
        self._now_us = max(self._now_us, now_us)
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
        for usage in usages:
            name = Name(group, usage.queue, usage.name)
            if usage.outcome == "done" and name not in self._failing:
                self._of(name).add_worked(usage.count, now_us)

    def names(self, now_us: int) -> frozenset[Name]:
        """Return the names that are in an outage."""
        self._now_us = max(self._now_us, now_us)
        for name in list(self._failing):
            self._judge(name)
        return frozenset(self._out)

    def take_changes(self) -> list[tuple[Name, bool]]:
        """Take out the outages that began (True) and ended (False) since the last call."""
        changed, self._changed = self._changed, []
        return changed

    def _of(self, name: Name) -> Ends:
        if name not in self._ends and len(self._ends) >= NAMES_MAX:
            self._ends = {each: self._ends[each] for each in self._failing}
        return self._ends.setdefault(name, Ends())

    def _works_beside(self, name: Name) -> bool:
        """Tell whether another name of the same queue works."""
        return any(
            ends.proven and other not in self._out
            for other, ends in self._ends.items()
            if other[:2] == name[:2] and other != name
        )

    def _judge(self, name: Name) -> None:
        ends = self._ends[name]
        out = ends.fail(self._now_us) and (ends.proven or not self._works_beside(name))
        if out != (name in self._out):
            (self._out.add if out else self._out.discard)(name)
            self._changed.append((name, out))
        if not ends.failed:
            self._failing.discard(name)
