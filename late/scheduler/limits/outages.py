"""Tell an outage from tasks that fail. Pure.

The handlers of one name need the same things: a database, a service. While these are away the tasks
of that name fail, and a failure says nothing of the one task. So for each name in a queue it is
remembered how the last `REMEMBERED` tasks ended their last attempt:

    outage = at least `FAILED_MIN` of them failed, and at least half

Tasks count and not attempts: five that fail again and again among many that end well are at fault
themselves. What ended well is counted per settlement, so that it costs nothing per task.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from late.model.task import Outcome, Record, TaskId, Usage

REMEMBERED = 20
FAILED_MIN = 5
FORGOTTEN_US = 1_800_000_000
"""A failure counts for so long: its task may have moved to another worker with its shard."""
NAMES_MAX = 10_000
"""Names are remembered up to this number, and beyond it those of which tasks failed."""
_WORKED = ("done", "discarded")


class Name(NamedTuple):
    """The tasks that fail or work as one."""

    group: str
    queue: str
    task: str


class Ends:
    """The last ends of tasks of one name: the number that went well, and when which one failed."""

    def __init__(self) -> None:
        self._worked = 0
        self._failed: dict[TaskId, int] = {}

    def add_failed(self, task_id: TaskId, now_us: int) -> None:
        self._failed.pop(task_id, None)
        self._failed[task_id] = now_us
        self._worked = min(self._worked, max(0, REMEMBERED - len(self._failed)))
        self._keep(REMEMBERED)

    def add_worked(self, count: int) -> None:
        """Tasks that ended well take the place of those that failed, the oldest first."""
        self._worked = min(REMEMBERED, self._worked + count)
        self._keep(REMEMBERED - self._worked)

    def forget(self, task_id: TaskId) -> None:
        self._failed.pop(task_id, None)

    def judge(self, now_us: int) -> bool:
        """Return whether this is an outage."""
        while self._failed and next(iter(self._failed.values())) < now_us - FORGOTTEN_US:
            self._keep(len(self._failed) - 1)
        return len(self._failed) >= max(FAILED_MIN, self._worked)

    def _keep(self, count: int) -> None:
        while len(self._failed) > count:
            del self._failed[next(iter(self._failed))]

    @property
    def failed(self) -> bool:
        return bool(self._failed)


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
        """True while a failure is remembered: only then `ended` has something to do."""
        return bool(self._failing)

    def failed(self, group: str, record: Record, now_us: int) -> bool:
        """Count a failed attempt; return whether it is one of an outage."""
        self._now_us = max(self._now_us, now_us)
        name = Name(group, record.queue, record.name)
        self._of(name).add_failed(record.task_id, self._now_us)
        self._failing.add(name)
        self._judge(name)
        return name in self._out

    def ended(self, group: str, outcomes: Iterable[Outcome]) -> None:
        """Note tasks that are done: one that failed before no longer counts as failed."""
        for outcome in outcomes:
            record = outcome.attempt.record
            name = Name(group, record.queue, record.name)
            if name in self._failing:
                self._ends[name].forget(record.task_id)
                self._judge(name)

    def worked(self, group: str, usages: Iterable[Usage]) -> None:
        """Count the tasks that ended well, by the usage of a settlement."""
        for usage in usages:
            if usage.outcome in _WORKED:
                name = Name(group, usage.queue, usage.name)
                self._of(name).add_worked(usage.count)
                if name in self._failing:
                    self._judge(name)

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

    def _judge(self, name: Name) -> None:
        ends = self._ends[name]
        out = ends.judge(self._now_us)
        if out != (name in self._out):
            (self._out.add if out else self._out.discard)(name)
            self._changed.append((name, out))
        if not ends.failed:
            self._failing.discard(name)
