"""Days on which a task cost far more or far less than it usually does, and why. Pure.

What is usual is the day's value of a trend and a weekday, fitted so that unusual days do not pull
at it (`forecast.design`, Huber's weights); the median where fewer than three weeks are known. A day
is unusual if it is beyond that by more than half in proportion, and by more than five robust
standard deviations. Unusual days that follow each other are one finding.

Source: P. J. Huber, Robust Statistics, 1981: M-estimates of regression.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from math import log
from statistics import median
from typing import Literal, NamedTuple

from late_spark import forecast, money
from late_spark.allocation import Cost
from late_spark.drivers import Used

Kind = Literal["retry storm", "burst", "dear days", "no work", "fewer tasks", "cheap days"]
_DAYS_MIN = 5
_FITTED_FROM = 21
_SPREADS = 5.0
_AT_LEAST = 1.5
_LEAST = 0.005
"""Money that nobody would see: half a hundredth of the currency."""


class Span(NamedTuple):
    """Days of a queue's task, both included."""

    queue: str
    name: str
    first: date
    last: date


class Anomaly(NamedTuple):
    """Unusual days of a queue's task, one after the other; money is of all of them."""

    first: date
    last: date
    queue: str
    name: str
    cost: float
    usual: float
    kind: Kind
    cause: str

    @property
    def excess(self) -> float:
        """Below zero if it cost less than usual."""
        return self.cost - self.usual

    @property
    def span(self) -> Span:
        """Its days and its task."""
        return Span(self.queue, self.name, self.first, self.last)

    @property
    def task(self) -> str:
        """Queue and task; the queue alone where the report does not tell tasks apart."""
        return f"{self.queue}/{self.name}" if self.name else self.queue

    def said(self, currency: str) -> str:
        """`retry storm on Tuesday 2026-03-10: pay/charge cost 412.00 USD more than usual …`."""
        when = f"on {self.first:%A} {self.first}"
        if self.last > self.first:
            when = f"from {self.first} to {self.last}"
        more = "more" if self.excess > 0 else "less"
        return (
            f"{self.kind} {when}: {self.task} cost {abs(self.excess):,.2f} {currency} "
            f"{more} than usual ({self.usual:,.2f}): {self.cause}"
        )

    def row(self) -> tuple[object, ...]:
        """Return the cells of a table with `COLUMNS`."""
        return (str(self.first), str(self.last), self.queue, self.name, self.kind, self.cost,
                self.usual, self.excess, self.cause)  # fmt: skip


COLUMNS = ("first", "last", "queue", "task", "kind", "cost", "usual", "excess", "cause")


@dataclass
class _Day:
    """One task on one day."""

    cost: int = 0
    tasks: int = 0
    attempts: int = 0
    retries: int = 0
    lines: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    tenants: dict[str, int] = field(default_factory=lambda: defaultdict(int))


def find(
    costs: Iterable[Cost],
    used: Iterable[Used],
    days: Sequence[date],
    *,
    since: date = date.min,
    releases: Mapping[date, str] | None = None,
) -> list[Anomaly]:
    """Find the unusual days of each queue's task, the most money first.

    Args:
        days: all that are known, ascending. The bill covers each of them.
        since: days before only say what is usual.
        releases: names by day; one on the day or the day before is named as a cause.
    """
    known = set(days)
    tasks: dict[tuple[str, str], dict[date, _Day]] = defaultdict(lambda: defaultdict(_Day))
    for cost in costs:
        if cost.day in known:
            mine = tasks[cost.key.queue, cost.key.name][cost.day]
            mine.cost += cost.amount
            mine.lines[cost.line.name] += cost.amount
    for row in used:
        if row.day in known:
            mine = tasks[row.key.queue, row.key.name][row.day]
            mine.tasks += row.ended
            mine.attempts += row.attempts
            mine.retries += row.retries
            mine.tenants[row.key.tenant] += row.ended
    found = []
    for (queue, name), by_day in tasks.items():
        listed = _listed(by_day, days)
        usual = _usual(listed, [by_day[day].cost / money.ONE for day in listed])
        for run in _runs(listed, usual, by_day):
            if run[-1] < since:
                continue
            cost = sum(by_day[day].cost for day in run) / money.ONE
            expected = sum(usual[day] for day in run)
            if abs(cost - expected) < _LEAST:
                continue
            kind, cause = _why(by_day, listed, run, more=cost > expected)
            cause = "; ".join([cause, *_released(run[0], releases or {})])
            found.append(Anomaly(run[0], run[-1], queue, name, cost, expected, kind, cause))
    return sorted(found, key=lambda each: (-abs(each.excess), each.first, each.queue, each.name))


def _listed(by_day: Mapping[date, _Day], days: Sequence[date]) -> list[date]:
    """Return the days to look at: from the first with cost on, so that a launch is no anomaly; of a
    task that seldom runs, those on which it did."""
    paid = [day for day in days if day in by_day and by_day[day].cost]
    since = [day for day in days if paid and day >= paid[0]]
    return since if 2 * len(paid) > len(since) else paid


def _usual(days: Sequence[date], values: Sequence[float]) -> dict[date, float]:
    """Return the usual value of each day; nothing where too few are known."""
    import numpy as np

    if len(days) < _DAYS_MIN:
        return {}
    if len(days) < _FITTED_FROM:
        return dict.fromkeys(days, median(values))
    floor = _floor(values)
    y = np.log(np.maximum(np.array(values), 0.0) + floor)
    known = forecast.design(days, days)
    weights = np.ones(len(days))
    fitted = y
    for _ in range(30):
        root = np.sqrt(weights)
        slopes = np.linalg.lstsq(known * root[:, None], y * root, rcond=None)[0]
        fitted = known @ slopes
        rest = np.abs(y - fitted)
        spread = max(1.4826 * float(np.median(rest)), 1e-9)
        weights = np.minimum(1.0, 1.345 * spread / np.maximum(rest, 1e-12))
    level = np.maximum(np.exp(fitted) - floor, 0.0)
    return dict(zip(days, map(float, level), strict=True))


def _floor(values: Sequence[float]) -> float:
    """Return what is added before the logarithm, which a day without cost has not."""
    paid = [value for value in values if value > 0]
    return median(paid) / 100 if paid else 1.0


def _runs(
    listed: Sequence[date], usual: Mapping[date, float], by_day: Mapping[date, _Day]
) -> list[list[date]]:
    """Return the unusual days that follow each other, on the same side of what is usual."""
    if not usual:
        return []
    values = [by_day[day].cost / money.ONE for day in listed]
    floor = _floor(values)
    off = [
        log((max(value, 0.0) + floor) / (usual[day] + floor))
        for day, value in zip(listed, values, strict=True)
    ]
    middle = median(off)
    bar = max(_SPREADS * 1.4826 * median(abs(each - middle) for each in off), log(_AT_LEAST))
    runs: list[list[date]] = []
    side = 0
    for day, each in zip(listed, off, strict=True):
        now = (each > bar) - (each < -bar)
        if now and now == side:
            runs[-1].append(day)
        elif now:
            runs.append([day])
        side = now
    return runs


def _why(
    by_day: Mapping[date, _Day], listed: Sequence[date], run: Sequence[date], *, more: bool
) -> tuple[Kind, str]:
    """Return the kind, and the cause in words: what is most unlike other days."""
    others = [by_day[day] for day in listed if day not in run] or [_Day()]
    mine = [by_day[day] for day in run]
    expected = _usual(listed, [float(by_day[day].tasks) for day in listed])
    usual = sum(expected[day] for day in run) / len(run)
    tasks = sum(each.tasks for each in mine) / len(mine)
    attempts = sum(each.attempts for each in mine)
    share = sum(each.retries for each in mine) / attempts if attempts else 0.0
    shares = [each.retries / each.attempts for each in others if each.attempts]
    typical = median(shares) if shares else 0.0
    counted = f"{tasks:,.0f} tasks a day, usually {usual:,.0f}"
    if more and share > 0.05 and share >= 2 * typical:
        return "retry storm", f"{share:.0%} of attempts were retries, usually {typical:.0%}"
    if more and tasks >= 2 * usual:
        return "burst", counted + _tenant(mine, others)
    if more:
        return "dear days", _line(mine, others)
    if not attempts and not tasks:
        return "no work", f"no task ran, usually {usual:,.0f} a day"
    if 2 * tasks <= usual:
        return "fewer tasks", counted + _tenant(mine, others)
    return "cheap days", _line(mine, others)


def _released(day: date, releases: Mapping[date, str]) -> list[str]:
    """Name the releases of a day and of the one before."""
    near = (day - timedelta(days=1), day)
    return [f"{releases[each]} was released on {each}" for each in near if each in releases]


def _tenant(mine: Sequence[_Day], others: Sequence[_Day]) -> str:
    """Name the tenant whose tasks differ most; "" where tenants are not told apart."""
    off = _differences([day.tenants for day in mine], [day.tenants for day in others])
    off.pop("", None)
    if not off:
        return ""
    name = max(off, key=lambda each: (abs(off[each]), each))
    whole = sum(off.values())
    return f"; tenant {name} is {off[name] / whole:.0%} of the difference" if whole else ""


def _line(mine: Sequence[_Day], others: Sequence[_Day]) -> str:
    """Name the line of the bill whose amount differs most."""
    off = _differences([day.lines for day in mine], [day.lines for day in others])
    name = max(off, key=lambda each: (abs(off[each]), each))
    return f"line {name} is {off[name] / money.ONE:+,.2f} a day beside a usual day"


def _differences(
    mine: Sequence[Mapping[str, int]], others: Sequence[Mapping[str, int]]
) -> dict[str, float]:
    names = {name for day in (*mine, *others) for name in day}
    return {
        name: sum(day.get(name, 0) for day in mine) / len(mine)
        - median(day.get(name, 0) for day in others)
        for name in names
    }
