"""The conflicts of the last twenty minutes, added up by pair and row, within a bound.

A worker tells them in its report, which the page, the API and the findings read: two spans of ten
minutes, so that an operator sees what a change has helped.
"""

from __future__ import annotations

import heapq
import re
import threading
import time
from collections.abc import Callable, Iterator

from late.model.worker_report import ConflictReport

Key = tuple[str, str, str, str]
"""Kind, tag, tag of the other one, and place."""

SPAN_S = 600.0
"""The time of one span."""
TOLD_MAX = 20
"""The most lines that are told: the costliest."""
KEPT_MAX = 200
"""The most lines that are kept. Beyond them the row is left out, then the other, then the tag."""
_STEP_S = 60.0
_STEPS = round(SPAN_S / _STEP_S)
_TABLE_END = re.compile(r"[ (]")


class _Line:
    """The conflicts with one key."""

    __slots__ = ("attempt", "other_idle", "other_statement", "statement", "steps")

    def __init__(self) -> None:
        self.steps: dict[int, tuple[float, int]] = {}
        """Seconds lost and the number of conflicts, by minute."""
        self.attempt = 1
        self.statement = self.other_statement = ""
        self.other_idle = False

    def sum(self, first: int, last: int) -> tuple[float, int]:
        found = [each for step, each in self.steps.items() if first <= step <= last]
        return round(sum(lost_s for lost_s, _ in found), 3), sum(count for _, count in found)


class ConflictTally:
    """Adds up conflicts. Safe to use from any thread.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._lines: dict[Key, _Line] = {}
        self._forgotten: int | None = None
        """The minute in which what was too old was dropped last."""

    def add(
        self,
        key: Key,
        lost_s: float,
        count: int,
        attempt: int = 1,
        statement: str = "",
        other_statement: str = "",
        other_idle: bool = False,
    ) -> None:
        """Add conflicts that have ended now."""
        with self._lock:
            step = self._forget()
            line = self._line_of(key)
            before_s, before = line.steps.get(step, (0.0, 0))
            line.steps[step] = (before_s + lost_s, before + count)
            line.attempt = max(line.attempt, attempt)
            line.statement = statement or line.statement
            line.other_statement = other_statement or line.other_statement
            line.other_idle = other_idle

    def told(self) -> tuple[ConflictReport, ...]:
        """Return the lines for a report, the costliest first."""
        with self._lock:
            step = self._forget()
            found = [_told(key, line, step) for key, line in self._lines.items()]
        return tuple(heapq.nlargest(TOLD_MAX, found, key=lambda each: each.lost_s + each.before_s))

    def _forget(self) -> int:
        """Drop what is older than two spans, once in each minute; return the present one."""
        now = int(self._clock() // _STEP_S)
        if now == self._forgotten:
            return now
        self._forgotten = now
        oldest = now - 2 * _STEPS + 1
        for key, line in list(self._lines.items()):
            line.steps = {step: each for step, each in line.steps.items() if step >= oldest}
            if not line.steps:
                del self._lines[key]
        return now

    def _line_of(self, key: Key) -> _Line:
        found = next(
            each
            for each in _coarser(key)
            if each in self._lines or len(self._lines) < KEPT_MAX or not each[1]
        )
        return self._lines.setdefault(found, _Line())


def _coarser(key: Key) -> Iterator[Key]:
    """Yield the key, and then those under which it may be counted when there are too many."""
    kind, tag, other, place = key
    yield key
    yield kind, tag, other, _TABLE_END.split(place, maxsplit=1)[0]
    yield kind, tag, "", ""
    yield kind, "", "", ""


def _told(key: Key, line: _Line, step: int) -> ConflictReport:
    lost_s, count = line.sum(step - _STEPS + 1, step)
    before_s, before = line.sum(step - 2 * _STEPS + 1, step - _STEPS)
    kind, tag, other, place = key
    return ConflictReport(
        kind, tag, other, place, line.statement, line.other_statement, line.other_idle,
        line.attempt, lost_s, count, before_s, before,
    )  # fmt: skip
