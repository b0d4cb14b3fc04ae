"""The effect of a change on cost and speed, unusual days, and a forecast of the month.

Everything is by days (`statistics.py`): a change of mean is believed where the confidence interval
of the difference is clear of zero, and the report says so in words either way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, timedelta
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


class Anomaly(NamedTuple):
    """A day on which a queue's task cost far more than it usually does."""

    day: date
    queue: str
    name: str
    cost: float
    usual: float
    kind: str

    @property
    def excess(self) -> float:
        return self.cost - self.usual

    def said(self, currency: str) -> str:
        """`retry storm on Tuesday 2026-03-10: pay/charge cost 412.00 USD more than usual`."""
        return (
            f"{self.kind} on {self.day:%A} {self.day}: {self.queue}/{self.name} cost "
            f"{self.excess:,.2f} {currency} more than its median day ({self.usual:,.2f})"
        )


class Forecast(NamedTuple):
    """The month in which the range ends."""

    month: str
    so_far: float
    days_seen: int
    days_left: int
    """After the last of the range."""
    days_before: int
    """Days of the month before the range. Their cost is estimated, as of the days to come."""
    end: Interval
    budget: float | None

    def verdict(self) -> str:
        if self.budget is None:
            return "no budget is given"
        if self.end.low > self.budget:
            return "over budget, clearly"
        if self.end.high <= self.budget:
            return "within budget, clearly"
        over = self.end.estimate > self.budget
        return f"{'over' if over else 'within'} budget by the estimate; the interval has both"


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


def anomalies(costs: Iterable[Cost], used: Iterable[Used], days: Sequence[date]) -> list[Anomaly]:
    """Unusual days of each queue's tasks, the most expensive excess first.

    It is a retry storm where the share of retries is at least twice the median day's as well, a
    burst where the number of tasks is, and otherwise a dear day.
    """
    amounts: dict[tuple[str, str], dict[date, float]] = defaultdict(lambda: defaultdict(float))
    for cost in costs:
        amounts[cost.key.queue, cost.key.name][cost.day] += cost.amount / money.ONE
    sums: dict[tuple[str, str], dict[date, Day]] = defaultdict(dict)
    for row in used:
        mine = sums[row.key.queue, row.key.name]
        old = mine.get(row.day, Day())
        mine[row.day] = old._replace(
            tasks=old.tasks + row.ended,
            attempts=old.attempts + row.attempts,
            retries=old.retries + row.retries,
        )
    found = []
    for (queue, name), by_date in amounts.items():
        # A day without work says nothing about what a day with work usually costs: the time
        # before a launch would make every day after it unusual, or none.
        with_work = [day for day in days if by_date.get(day)]
        series = [by_date[day] for day in with_work]
        usual = sorted(series)[len(series) // 2] if series else 0.0
        worked = sums[queue, name]
        for at in statistics.outliers(series):
            kind = _kind(worked, with_work[at])
            found.append(Anomaly(with_work[at], queue, name, series[at], usual, kind))
    return sorted(found, key=lambda each: (-each.excess, each.day, each.queue, each.name))


def _kind(worked: Mapping[date, Day], day: date) -> str:
    others = [each for other, each in worked.items() if other != day]
    today = worked.get(day, Day())
    shares = sorted(each.retries / each.attempts for each in others if each.attempts)
    share = today.retries / today.attempts if today.attempts else 0.0
    if share > 0.05 and share >= 2 * (shares[len(shares) // 2] if shares else 0.0):
        return "retry storm"
    tasks = sorted(each.tasks for each in others)
    if tasks and today.tasks >= 2 * tasks[len(tasks) // 2]:
        return "burst"
    return "dear day"


def forecast(found: Mapping[date, Day], budget: float | None, confidence: float = 0.95) -> Forecast:
    """The month of the last day, to its end. A budget is for all of it, so days before the range
    are expected as those after it are."""
    days = sorted(found)
    last = days[-1]
    month = [day for day in days if (day.year, day.month) == (last.year, last.month)]
    first = last.replace(day=1)
    after = (first + timedelta(days=32)).replace(day=1)
    whole = [first + timedelta(days=n) for n in range((after - first).days)]
    ahead = [day for day in whole if day not in found]
    so_far = sum(found[day].cost for day in month)
    costs = [found[day].cost for day in days]
    coming = statistics.forecast(
        costs, [day.weekday() for day in days], [day.weekday() for day in ahead], confidence
    )
    end = Interval(so_far + coming.estimate, so_far + coming.low, so_far + coming.high, confidence)
    before = sum(day < month[0] for day in ahead)
    return Forecast(f"{last:%Y-%m}", so_far, len(month), len(ahead) - before, before, end, budget)
