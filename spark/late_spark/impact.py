"""The effect of a change on cost and speed.

Everything is by days (`statistics.py`): a change of mean is believed where the confidence interval
of the difference is clear of zero, and the report says so in words either way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from statistics import fmean
from types import MappingProxyType
from typing import NamedTuple

from late_spark import money, statistics
from late_spark.allocation import Cost
from late_spark.drivers import Used
from late_spark.statistics import Interval


class Change(NamedTuple):
    """One measure before and after."""

    measure: str
    unit: str
    before: float
    after: float
    difference: Interval
    days_before: int
    days_after: int

    @property
    def relative(self) -> float | None:
        return self.difference.estimate / self.before if self.before else None

    def verdict(self) -> str:
        """In a word: `higher`, `lower`, or `no clear change`."""
        if not self.difference.clear:
            return "no clear change"
        return "higher" if self.difference.estimate > 0 else "lower"


class Day(NamedTuple):
    """Sums of one day, of those keys that the report is about."""

    cost: float = 0.0
    tasks: int = 0
    attempts: int = 0
    retries: int = 0
    busy_us: int = 0
    waiting_us: int = 0
    # Of attempts; None where there was none, or no histogram was recorded.
    waiting_p50_ms: float | None = None
    waiting_p95_ms: float | None = None
    waiting_p99_ms: float | None = None
    busy_p50_ms: float | None = None
    busy_p95_ms: float | None = None
    busy_p99_ms: float | None = None


MEASURES: dict[str, tuple[str, Callable[[Day], float | None]]] = {
    "cost per day": ("money", lambda day: day.cost),
    "cost per million tasks": ("money", lambda d: d.cost / d.tasks * 1e6 if d.tasks else None),
    "tasks per day": ("", lambda day: float(day.tasks)),
    "mean waiting time": ("ms", lambda d: d.waiting_us / d.attempts / 1e3 if d.attempts else None),
    "mean running time": ("ms", lambda d: d.busy_us / d.attempts / 1e3 if d.attempts else None),
    "waiting time, p50": ("ms", lambda day: day.waiting_p50_ms),
    "waiting time, p95": ("ms", lambda day: day.waiting_p95_ms),
    "waiting time, p99": ("ms", lambda day: day.waiting_p99_ms),
    "running time, p50": ("ms", lambda day: day.busy_p50_ms),
    "running time, p95": ("ms", lambda day: day.busy_p95_ms),
    "running time, p99": ("ms", lambda day: day.busy_p99_ms),
    "retries per 1,000 attempts": ("", lambda d: d.retries / d.attempts * 1e3 if d.attempts
                                   else None),
}  # fmt: skip


def by_day(
    costs: Iterable[Cost],
    used: Iterable[Used],
    days: Sequence[date],
    queue: str | None = None,
    times: Mapping[date, Mapping[str, float]] = MappingProxyType({}),
) -> dict[date, Day]:
    """Sums per day, of one queue or of all, and the percentiles of the same (`latency.collect`)."""
    found = {day: [0.0, 0, 0, 0, 0, 0] for day in days}
    for cost in costs:
        if queue in (None, cost.key.queue):
            found[cost.day][0] += cost.amount / money.ONE
    for row in used:
        if queue in (None, row.key.queue):
            sums = found[row.day]
            numbers = (row.ended, row.attempts, row.retries, row.busy_us, row.waiting_us)
            for at, number in enumerate(numbers, start=1):
                sums[at] += number
    return {
        day: Day(*sums)._replace(**times.get(day, {}))  # type: ignore[arg-type]
        for day, sums in found.items()
    }


def windows(
    days: Sequence[date], at: date, whole_weeks: bool = True, *, mixed: bool = False
) -> tuple[list[date], list[date]]:
    """The days before and from `at` on: as many whole weeks as there are on either side, so that
    both have as many Sundays; all days where there is not a week on each side.

    Args:
        mixed: the change came in the course of `at`, which so belongs to neither side.
    """
    before = [day for day in days if day < at]
    after = [day for day in days if day > at or (day == at and not mixed)]
    if whole_weeks:
        if len(before) >= 7:
            before = before[len(before) % 7 :]
        if len(after) >= 7:
            after = after[: len(after) // 7 * 7]
    return before, after


def changes(
    found: Mapping[date, Day], at: date, confidence: float = 0.95, *, mixed: bool = False
) -> list[Change]:
    """Every measure before and after a day; of percentiles, the mean of the days' own."""
    before_days, after_days = windows(sorted(found), at, mixed=mixed)
    result = []
    for measure, (unit, value) in MEASURES.items():
        before = [v for day in before_days if (v := value(found[day])) is not None]
        after = [v for day in after_days if (v := value(found[day])) is not None]
        difference = statistics.difference(before, after, confidence)
        result.append(
            Change(measure, unit, _mean(before), _mean(after), difference, len(before), len(after))
        )
    return result


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
