"""Where the month will end, what moved it, and what was unusual in it. Pure.

All of it is by the days that are known: covered by the bill, and over when the bill was made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import NamedTuple

from late_spark import allocation, anomalies, findings, forecast, impact, money
from late_spark.anomalies import Anomaly, Span
from late_spark.charges import Charge
from late_spark.close.budgets import Budget
from late_spark.cost import NOBODY, OF_TIME, CostReport
from late_spark.forecast import Forecast
from late_spark.impact import Change
from late_spark.statistics import Interval

_SIDE_DAYS = 14
"""Days that are looked at on each side of a release."""
_FORECASTS_MAX = 200
_TENANTS_MAX = 20


class Moved(NamedTuple):
    """Why a task cost more or less than in the month before, in units: exact, and
    `this - last = by_tasks + by_rate`."""

    queue: str
    name: str
    last: int
    this: int
    by_tasks: int
    """More or fewer tasks, at the cost per task of the month before."""
    by_rate: int
    """The cost of each. All of it where the task is new or gone."""


class Released(NamedTuple):
    """What a release did: to the cost of a day, and of a million tasks."""

    name: str
    day: date
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Outlook:
    """All of it."""

    end: Forecast | None
    """None for a month of which every day is known."""
    daily: Mapping[date, float]
    """What the days that are not known are expected to cost."""
    parts: Mapping[tuple[str, ...], Interval]
    """The same by what the close is by: the month to its end, in the currency."""
    unusual: tuple[Anomaly, ...] = ()
    moved: tuple[Moved, ...] = ()
    released: tuple[Released, ...] = ()


def make(
    this: CostReport, last: CostReport | None, mine: Sequence[date], budget: Budget,
    releases: Mapping[date, str],
) -> Outlook:  # fmt: skip
    """Look at a month, with the one before to tell what is usual.

    Args:
        mine: the days of the month whose cost is known (`known`).
        releases: names by day.
    """
    before = [day for day in last.calendar.days if day not in last.without_bill] if last else []
    ahead = [day for day in this.calendar.days if day not in mine]
    end, daily, parts = None, {}, {}
    costs = {**totals(last, before), **totals(this, mine)}
    if mine and ahead:
        limit = None if budget.total is None else budget.total / money.ONE
        end = forecast.month(costs, limit)
        daily = {day: forecast.of_days(costs, [day]).estimate for day in ahead}
        parts = _parts(this, last, mine, before, ahead)
    days = [*before, *mine]
    both = [each for of in (last, this) if of for each in of.costs if each.day in costs]
    used = [each for of in (last, this) if of for each in of.used if each.day in costs]
    return Outlook(
        end, daily, parts,
        unusual=tuple(anomalies.find(
            both, used, days, since=this.calendar.days[0], releases=releases
        )),
        moved=tuple(_moved(this, last, mine, before[: len(mine)] if end else before))
        if last else (),
        released=tuple(
            Released(name, day, _effect(impact.by_day(both, used, days), day))
            for day, name in sorted(releases.items()) if day in this.calendar.days
        ),
    )  # fmt: skip


def by_number(look: Outlook) -> list[Span]:
    """Return the unusual days that the number of tasks explains, the most money first."""
    found = [each.span for each in look.unusual if each.kind in ("burst", "fewer tasks")]
    return found[:_TENANTS_MAX]


def told(look: Outlook, tenants: Mapping[Span, str]) -> Outlook:
    """Add the tenant behind unusual days to their causes."""
    return replace(look, unusual=tuple(
        each._replace(cause="; ".join([each.cause, tenants[each.span]]))
        if each.span in tenants else each
        for each in look.unusual
    ))  # fmt: skip


def known(report: CostReport, billed: Sequence[Charge], today: date) -> list[date]:
    """Return the days whose cost is known. The last day of a bill that ends within the month is not
    where the bill ends in the course of it: it was made before the day was over. A price book
    covers all days, but what comes after today is known of none."""
    days = [day for day in report.calendar.days if day not in report.without_bill and day <= today]
    if not days or days[-1] == report.calendar.days[-1]:
        return days
    end_us = next(end for day, _, end in report.calendar.bounds if day == days[-1])
    reached = max(end for _, end in findings.spans(billed, report.calendar))
    return days if reached >= end_us else days[:-1]


def totals(report: CostReport | None, days: Sequence[date]) -> dict[date, float]:
    """Return the cost of some days, borne or not, in the currency."""
    found = dict.fromkeys(days, 0)
    if report is not None:
        amounts = [(each.day, each.amount) for each in report.costs]
        amounts += [(each.day, each.amount) for each in report.unallocated]
        for day, amount in amounts:
            if day in found:
                found[day] += amount
    return {day: units / money.ONE for day, units in found.items()}


def _parts(
    this: CostReport, last: CostReport | None, mine: Sequence[date], before: Sequence[date],
    ahead: Sequence[date],
) -> dict[tuple[str, ...], Interval]:  # fmt: skip
    """Forecast each that bears a part; nothing where the close is by times."""
    if any(each in OF_TIME for each in this.by):
        return {}
    sums: dict[tuple[str, ...], dict[date, int]] = defaultdict(
        lambda: dict.fromkeys([*before, *mine], 0)
    )
    for cost in (*(last.costs if last else ()), *this.costs):
        by = tuple(allocation.value(cost, each) or NOBODY for each in this.by)
        if cost.day in sums[by]:
            sums[by][cost.day] += cost.amount
    found = {}
    for row in this.rows[:_FORECASTS_MAX]:
        costs = {day: units / money.ONE for day, units in sums[row.by].items()}
        coming = forecast.of_days(costs, ahead)
        so_far = sum(costs[day] for day in mine)
        found[row.by] = Interval(
            so_far + coming.estimate, so_far + coming.low, so_far + coming.high, coming.confidence
        )
    return found


def _moved(
    this: CostReport, last: CostReport, days: Sequence[date], before: Sequence[date]
) -> list[Moved]:
    """Split what changed into number and cost of tasks, the largest change first.

    A month that still runs is compared with as many days of the last one."""
    found = []
    sides = (_of_tasks(last, before), _of_tasks(this, days))
    amounts, tasks = zip(*sides, strict=True)
    for key in amounts[0].keys() | amounts[1].keys():
        was, now = (side.get(key, 0) for side in amounts)
        n, m = (side.get(key, 0) for side in tasks)
        by_tasks = was * (m - n) // n if n and m else 0
        found.append(Moved(*key, was, now, by_tasks, now - was - by_tasks))
    return sorted(found, key=lambda each: (-abs(each.this - each.last), each))


def _of_tasks(
    report: CostReport, days: Sequence[date]
) -> tuple[dict[tuple[str, str], int], dict[tuple[str, str], int]]:
    amounts: dict[tuple[str, str], int] = defaultdict(int)
    tasks: dict[tuple[str, str], int] = defaultdict(int)
    listed = set(days)
    for cost in report.costs:
        if cost.day in listed:
            amounts[cost.key.queue, cost.key.name] += cost.amount
    for row in report.used:
        if row.day in listed:
            tasks[row.key.queue, row.key.name] += row.ended
    return amounts, tasks


def _effect(found: Mapping[date, impact.Day], at: date) -> tuple[Change, ...]:
    """Compare the days around a release; its own day is on neither side."""
    near = {day: each for day, each in found.items() if abs(day - at) <= timedelta(days=_SIDE_DAYS)}
    return tuple(impact.changes(near, at, mixed=True)[:2])
