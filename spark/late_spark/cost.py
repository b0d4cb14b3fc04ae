"""The cost report: charges, divided among who caused them, in the form in which people read it.

    bill = borne + unallocated + outside of the range

All three in units, exactly. What people see is rounded once, to the currency's smallest unit, so
that each table adds up to its total (`money.in_minor`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Literal, NamedTuple, get_args

from late.errors import ConfigError
from late_spark import allocation, bridge, charges, drivers, findings, money
from late_spark.allocation import Cost, Unallocated
from late_spark.bridge import Bridge
from late_spark.calendar import Calendar
from late_spark.charges import Charge, Outside
from late_spark.drivers import Used
from late_spark.efficiency import Efficiency
from late_spark.findings import Finding

Dimension = Literal[
    "owner", "queue", "name", "group", "tenant", "line", "driver", "region", "day", "month"
]
DIMENSIONS: tuple[str, ...] = get_args(Dimension)
OF_WORK = ("owner", "queue", "name", "group", "tenant")
OF_TIME = ("day", "month")
NOBODY = "(none)"
"""The text for an empty owner or tenant."""


class Covered(NamedTuple):
    """The part of a row on days that the bill covers: what costs per task are taken of."""

    amount: int
    tasks: int
    attempts: int
    retries: int


@dataclass(frozen=True)
class Row:
    """The cost of one value of the report's dimensions. Its counts are known only if the report
    is `counted`."""

    by: tuple[str, ...]
    amount: int
    """In units, exactly."""
    cents: int
    """In the currency's smallest unit; the rows add up to the total."""
    tasks: int = 0
    attempts: int = 0
    retries: int = 0
    part: Covered | None = None
    """None: the bill covers all days."""

    @property
    def covered(self) -> Covered:
        return self.part or Covered(self.amount, self.tasks, self.attempts, self.retries)

    def per_million(self) -> int | None:
        """Units per million tasks that ended."""
        of = self.covered
        return of.amount * 1_000_000 // of.tasks if of.tasks else None

    def per_retry(self) -> int | None:
        """Units per retry: a retry costs what an attempt costs."""
        of = self.covered
        return of.amount // of.attempts if of.retries and of.attempts else None

    def of_retries(self) -> int:
        """Units that its retries took: their share of its attempts."""
        of = self.covered
        return of.amount * of.retries // of.attempts if of.attempts else 0


@dataclass(frozen=True)
class Totals:
    """In units; and in cents, where `borne + unallocated = in_range` again."""

    bill: int
    borne: int
    unallocated: int
    outside: int

    @property
    def in_range(self) -> int:
        return self.borne + self.unallocated


@dataclass(frozen=True)
class CostReport:
    """Everything that the outputs show."""

    title: str
    currency: str
    calendar: Calendar
    by: tuple[str, ...]
    totals: Totals
    rows: tuple[Row, ...]
    costs: tuple[Cost, ...]
    unallocated: tuple[Unallocated, ...]
    outside: tuple[Outside, ...]
    used: tuple[Used, ...]
    assumptions: tuple[tuple[str, str], ...]
    efficiency: tuple[Efficiency, ...] = ()
    digits: int = field(default=2)
    findings: tuple[Finding, ...] = ()
    without_bill: frozenset[date] = frozenset()
    """Days that the bill does not cover."""
    bridge: Bridge | None = None
    """From the bills to the range; None without bills."""

    def warnings(self) -> list[str]:
        """Say what a reader must know first, in sentences."""
        return [each.said(self.currency, self.digits) for each in self.findings]

    def covered(self) -> Covered:
        """Everything on days that the bill covers."""
        used = [row for row in self.used if row.day not in self.without_bill]
        return Covered(
            sum(cost.amount for cost in self.costs if cost.day not in self.without_bill),
            sum(row.ended for row in used),
            sum(row.attempts for row in used),
            sum(row.retries for row in used),
        )

    def cents(self, amount: int) -> int:
        return money.minor(amount, self.digits)

    @property
    def total_cents(self) -> int:
        """The total of the range in cents."""
        return self.cents(self.totals.in_range)

    @property
    def borne_cents(self) -> int:
        return sum(row.cents for row in self.rows)

    @property
    def unallocated_cents(self) -> int:
        return self.total_cents - self.borne_cents

    @property
    def counted(self) -> bool:
        """True if the rows' tasks, attempts and retries are known.

        Work has no line, driver or region; a zero would hide that."""
        return all(each in OF_WORK + OF_TIME for each in self.by)

    @property
    def outside_cents(self) -> int:
        return self.cents(self.totals.bill) - self.total_cents

    def by_day(self) -> dict[date, dict[str, int]]:
        """Units by day and by `charted`, for a chart."""
        found: dict[date, dict[str, int]] = {day: defaultdict(int) for day in self.calendar.days}
        for cost in self.costs:
            found[cost.day][allocation.value(cost, self.charted) or NOBODY] += cost.amount
        return found

    def charted_cents(self) -> dict[str, int]:
        """Cents of each value of `charted`, as the tables have them."""
        found: dict[str, int] = defaultdict(int)
        if self.charted in self.by:
            at = self.by.index(self.charted)
            for row in self.rows:
                found[row.by[at]] += row.cents
            return found
        rows = self.by_line()
        amounts = [amount for _, _, amount in rows]
        cents = money.in_minor(amounts, self.digits, self.borne_cents)
        for (line, _, _), each in zip(rows, cents, strict=True):
            found[line] += each
        return found

    @property
    def charted(self) -> str:
        """The first dimension that is no time, which the chart has anyway; else the lines."""
        return next((each for each in self.by if each not in OF_TIME), "line")

    def by_line(self) -> list[tuple[str, str, int]]:
        """(line, driver or why not, units), the largest first."""
        found: dict[tuple[str, str], int] = defaultdict(int)
        for cost in self.costs:
            found[cost.line.name, cost.driver] += cost.amount
        return sorted(((*key, amount) for key, amount in found.items()), key=lambda r: -r[2])

    def why_unallocated(self) -> list[tuple[str, str, int]]:
        """(line, reason, units), the largest first."""
        found: dict[tuple[str, str], int] = defaultdict(int)
        for row in self.unallocated:
            found[row.line.name, row.reason] += row.amount
        return sorted(((*key, amount) for key, amount in found.items()), key=lambda r: -r[2])


def dimensions(text: str) -> tuple[str, ...]:
    """`owner,queue` as dimensions.

    Raises:
        ConfigError: one that does not exist, or twice.
    """
    found = tuple("name" if each.strip() == "task" else each.strip() for each in text.split(","))
    for each in found:
        if each not in DIMENSIONS:
            known = ", ".join("task" if name == "name" else name for name in DIMENSIONS)
            raise ConfigError(f"--by {each!r}: expected some of {known}")
    if len(set(found)) < len(found):
        raise ConfigError(f"--by {text} names one twice")
    return found


def report(
    billed: Sequence[Charge],
    used: Sequence[Used],
    calendar: Calendar,
    *,
    title: str,
    currency: str,
    by: Sequence[str],
    assumptions: Iterable[tuple[str, str]] = (),
    efficiency: Iterable[Efficiency] = (),
) -> CostReport:
    """Divide the charges and put the report together. Pure."""
    days, outside = charges.by_day(billed, calendar)
    costs, left = allocation.allocate(days, drivers.work(used))
    allocation.check(days, costs, left)
    totals = Totals(
        bill=charges.total(billed),
        borne=sum(cost.amount for cost in costs),
        unallocated=sum(row.amount for row in left),
        outside=sum(each.amount for each in outside),
    )
    assert totals.bill == totals.in_range + totals.outside
    digits = money.minor_digits(currency)
    without = findings.uncovered(billed, calendar)
    found = findings.find(billed, days, used, calendar, without)
    if "tenant" in by:
        found += findings.no_tenant(used, calendar)
        found += findings.other_tenants(used, costs, calendar)
    return CostReport(
        title=title,
        currency=currency,
        calendar=calendar,
        by=tuple(by),
        totals=totals,
        rows=tuple(_rows(costs, used, totals.unallocated, by, digits, without)),
        costs=tuple(costs),
        unallocated=tuple(left),
        outside=tuple(outside),
        used=tuple(used),
        assumptions=(*_method(currency, calendar), *assumptions),
        efficiency=tuple(efficiency),
        digits=digits,
        findings=found,
        without_bill=without,
        bridge=_bridge(billed, calendar, totals.in_range),
    )


def part(report: CostReport, owner: str, by: Sequence[str], cents: int | None) -> CostReport:
    """Return what an owner bears, as a report of its own.

    Args:
        cents: its total as another table shows it; None rounds it.
    """
    costs = tuple(each for each in report.costs if (each.key.owner or NOBODY) == owner)
    used = tuple(each for each in report.used if (each.key.owner or NOBODY) == owner)
    if cents is None:
        cents = report.cents(sum(each.amount for each in costs))
    borne = cents * 10 ** (money.DIGITS - report.digits)
    rows = _rows(costs, used, 0, by, report.digits, report.without_bill, total=cents)
    # Days without a bill are the owner's as well, without usage or with purchases the whole's.
    gaps = findings.find((), (), used, report.calendar, report.without_bill)
    return replace(
        report, by=tuple(by), totals=Totals(borne, borne, 0, 0), rows=tuple(rows), costs=costs,
        used=used, unallocated=(), outside=(), bridge=None, efficiency=(), findings=gaps,
    )  # fmt: skip


def _bridge(billed: Sequence[Charge], calendar: Calendar, in_range: int) -> Bridge | None:
    found = bridge.of(billed, calendar)
    assert found is None or sum(found.steps().values()) == in_range
    return found


def _rows(
    costs: Sequence[Cost],
    used: Sequence[Used],
    left: int,
    by: Sequence[str],
    digits: int,
    without: frozenset[date],
    total: int | None = None,
) -> list[Row]:
    summed = allocation.summed(costs, by)
    if any(each in OF_TIME for each in by):
        # Times are read in their order, and within one the largest first, as it was before.
        times = [at for at, each in enumerate(by) if each in OF_TIME]
        summed.sort(key=lambda row: [row.by[at] for at in times])
    # The unallocated rest is rounded together with the rows: all of them make up the total.
    cents = money.in_minor([*(row.amount for row in summed), left], digits, total)
    counts = _counts(used, by)
    parts: dict[tuple[str, ...], Covered] = {}
    if without:
        inside = _counts([row for row in used if row.day not in without], by)
        for each in allocation.summed((cost for cost in costs if cost.day not in without), by):
            parts[each.by] = Covered(each.amount, *inside.get(each.by, (0, 0, 0)))
    nothing = Covered(0, 0, 0, 0)
    rows = []
    for row, seen in zip(summed, cents, strict=False):
        named = tuple(each or NOBODY for each in row.by)
        part = parts.get(row.by, nothing) if without else None
        tasks, attempts, retries = counts.get(row.by, (0, 0, 0))
        rows.append(Row(named, row.amount, seen, tasks, attempts, retries, part))
    return rows


def _counts(used: Iterable[Used], by: Sequence[str]) -> dict[tuple[str, ...], list[int]]:
    """Tasks, attempts and retries; nothing where the report is by what work does not have."""
    counts: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0, 0])
    if all(each in OF_WORK + OF_TIME for each in by):
        for row in used:
            count = counts[tuple(allocation.of(row.day, row.key, each) for each in by)]
            count[0] += row.ended
            count[1] += row.attempts
            count[2] += row.retries
    return counts


def _method(currency: str, calendar: Calendar) -> list[tuple[str, str]]:
    smallest = money.shown(1, money.minor_digits(currency))
    found = [
        ("Range", f"{calendar.days[0]} to {calendar.days[-1]}, both included, days of "
                  f"{calendar.tz.key}"),
        ("Rounding", f"Exact to 10^-{money.DIGITS} {currency}; shown in {smallest} {currency}, "
                     "rounded so that every table adds up to its total (largest remainder)."),
        ("Charges over several days", "divided over the local days that they span, by seconds."),
        ("What a task is", "a task that ended, once per consumer group."),
        ("A retry", "costs what an attempt of the same row costs on average."),
    ]  # fmt: skip
    found.extend((f"Driver: {name}", meaning) for name, meaning in drivers.MEANING.items())
    return found
