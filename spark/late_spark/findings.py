"""What a reader of a cost report must know before believing it. Pure.

Days that the bill or the usage does not have, purchases that fall on single days, and usage without
tenants in a report by tenant.

A day is covered by the bill if one of its rows for a time of a day or less falls on it. A monthly
fee also covers the half of a month that is not billed yet, so it counts only where the bill has
nothing finer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, timedelta
from typing import Literal, NamedTuple

from late_spark import money
from late_spark.allocation import Cost
from late_spark.calendar import DAY_US, Calendar
from late_spark.charges import Charge, DayCharge
from late_spark.drivers import Used

Kind = Literal[
    "usage without a bill",
    "bill without usage",
    "purchase on single days",
    "usage without a tenant",
    "tenants that were not told apart",
]
OTHERS = "*"
"""The tenant of the work of those beyond the first hundred of a settlement."""
_FINE_US = DAY_US + DAY_US // 24
"""A local day, also one of 25 hours."""


class Finding(NamedTuple):
    """One of them, for days that follow each other."""

    kind: Kind
    first: date
    last: date
    days: int
    tasks: int = 0
    """Tasks that ended on days without a bill, or without a tenant."""
    amount: int = 0
    """Units that nobody bears, or that were bought."""
    line: str = ""

    def said(self, currency: str, digits: int) -> str:
        """Say it in a sentence, with what it does to the figures."""
        when = f"on {self.first}"
        if self.days > 1:
            when = f"from {self.first} to {self.last} ({self.days} days)"
        amount = f"{money.shown(money.minor(self.amount, digits), digits)} {currency}"
        if self.kind == "usage without a bill":
            return (
                f"No bill {when}: {self.tasks:,} tasks ended and cost nothing here. Costs per task "
                "and retry leave these days out."
            )
        if self.kind == "bill without usage":
            return f"No usage {when}: {amount} of the bill have nobody to bear them."
        if self.kind == "tenants that were not told apart":
            return (
                f"{self.tasks:,} tasks and {amount} are of tenants that were not told apart (the "
                f"row {OTHERS}): one settlement tells the first hundred apart."
            )
        if self.kind == "usage without a tenant":
            return (
                "No usage has a tenant: queues tell tenants apart with "
                "`late queue set NAME fair_key=HEADER`, from then on."
            )
        return (
            f"{self.line} was bought {when} for {amount}, which falls on the work of that time "
            "alone. EffectiveCost (bill.cost) spreads what is bought ahead, where a bill has it."
        )


def spans(billed: Iterable[Charge], calendar: Calendar) -> set[tuple[int, int]]:
    """Return the times within the range that rows of the bill are for: of a day or less, if it has
    such."""
    lasting = [
        each
        for each in billed
        if each.start_us < each.end_us
        and each.start_us < calendar.to_us
        and each.end_us > calendar.from_us
    ]
    fine = [each for each in lasting if each.end_us - each.start_us <= _FINE_US]
    return {(each.start_us, each.end_us) for each in fine or lasting}


def uncovered(billed: Iterable[Charge], calendar: Calendar) -> frozenset[date]:
    """Return the days of the range that no row of the bill covers."""
    covered: set[date] = set()
    for start, end in spans(billed, calendar):
        first = calendar.day(max(start, calendar.from_us))
        last = calendar.day(min(end, calendar.to_us) - 1)
        count = (last - first).days + 1
        covered.update(first + timedelta(days=n) for n in range(count))
    return frozenset(calendar.days) - covered


def find(
    billed: Sequence[Charge],
    days: Iterable[DayCharge],
    used: Iterable[Used],
    calendar: Calendar,
    without: frozenset[date],
) -> tuple[Finding, ...]:
    """Find all, in the order in which they are to be read.

    Args:
        days: the charges by day.
        without: the days that the bill does not cover (`uncovered`).
    """
    tasks = dict.fromkeys(calendar.days, 0)
    worked = set()
    for row in used:
        tasks[row.day] += row.ended
        worked.add(row.day)
    paid = dict.fromkeys(calendar.days, 0)
    for each in days:
        paid[each.day] += each.amount
    found = [
        Finding("usage without a bill", run[0], run[-1], len(run), sum(tasks[d] for d in run))
        for run in _runs(calendar.days, lambda day: day in without and day in worked)
    ]
    found += [
        Finding("bill without usage", run[0], run[-1], len(run), 0, sum(paid[d] for d in run))
        for run in _runs(calendar.days, lambda day: bool(paid[day]) and day not in worked)
    ]
    return (*found, *_purchases(billed, calendar))


def no_tenant(used: Iterable[Used], calendar: Calendar) -> tuple[Finding, ...]:
    """Find that a report by tenant has usage, and none of it has a tenant."""
    rows = list(used)
    if not rows or any(row.key.tenant for row in rows):
        return ()
    days, ended = calendar.days, sum(row.ended for row in rows)
    return (Finding("usage without a tenant", days[0], days[-1], len(days), ended),)


def other_tenants(
    used: Iterable[Used], costs: Iterable[Cost], calendar: Calendar
) -> tuple[Finding, ...]:
    """Find work of tenants that were too many for a settlement to tell apart."""
    ended = sum(row.ended for row in used if row.key.tenant == OTHERS)
    amount = sum(cost.amount for cost in costs if cost.key.tenant == OTHERS)
    if not ended and not amount:
        return ()
    days = calendar.days
    kind: Kind = "tenants that were not told apart"
    return (Finding(kind, days[0], days[-1], len(days), ended, amount),)


def _runs(days: Sequence[date], chosen: Callable[[date], bool]) -> Iterator[list[date]]:
    run: list[date] = []
    for day in days:
        if chosen(day):
            run.append(day)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _purchases(billed: Iterable[Charge], calendar: Calendar) -> Iterator[Finding]:
    sums: dict[tuple[date, date, str], int] = {}
    for each in billed:
        lasts = each.end_us - each.start_us
        inside = calendar.from_us <= each.start_us < calendar.to_us
        if each.purchase and each.amount and inside and lasts <= _FINE_US:
            end_us = min(max(each.end_us - 1, each.start_us), calendar.to_us - 1)
            key = calendar.day(each.start_us), calendar.day(end_us), each.line.name
            sums[key] = sums.get(key, 0) + each.amount
    times = Counter(line for _, _, line in sums)
    for (first, last, line), amount in sorted(sums.items()):
        if 2 * times[line] > len(calendar.days) > 1:
            continue  # bought day by day, as hours of a savings plan: that is spread already
        kind: Kind = "purchase on single days"
        yield Finding(kind, first, last, (last - first).days + 1, 0, amount, line)
