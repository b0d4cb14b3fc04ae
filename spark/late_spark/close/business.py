"""What the work is for, counted by the business: orders, trips, users. Their cost is the close's.

A CSV file with a day in each row, and a column for each thing that is counted. A column `tenant`
tells tenants apart; then a day has a row for each.

```csv
day,tenant,orders,trips
2026-10-01,acme,1200,310
```
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from late.errors import ConfigError
from late_spark import forecast, money
from late_spark.cost import NOBODY, CostReport
from late_spark.statistics import Interval

_NAME = re.compile(r"[\w -]{1,26}\Z")
"""A sheet of the workbook has the name."""
_NONE = Fraction(0)
ALL = ""
"""The tenant of a row for all of them."""


class Metric(NamedTuple):
    """One column of a file, or one name that handlers count."""

    source: str
    """The file, or the journal."""
    name: str
    by_tenant: bool
    values: Mapping[date, Mapping[str, Fraction]]
    """By day and tenant."""

    def missing(self, days: Iterable[date]) -> list[date]:
        """Return the days that the source does not have."""
        return [day for day in days if day not in self.values]


class Each(NamedTuple):
    """The cost of one order (trip, user), in a month and in the one before."""

    metric: str
    tenant: str
    amount: int
    """Units, of the days that have a count."""
    counted: Fraction
    last_amount: int
    last_counted: Fraction
    daily: Mapping[date, float]
    """By day of both months, in the currency, where anything was counted."""
    trend: Interval | None
    """Growth in a week."""

    def each(self) -> Fraction | None:
        """Return units for each one; None where nothing was counted."""
        return self.amount / self.counted if self.counted else None

    def last_each(self) -> Fraction | None:
        return self.last_amount / self.last_counted if self.last_counted else None


def load(paths: Sequence[Path], *, by_tenant: bool) -> list[Metric]:
    """Read the files.

    Args:
        by_tenant: the close tells tenants apart, so a file may.

    Raises:
        ConfigError: unreadable, no such table, a number that is none or below zero, a row or a
            metric twice, or tenants that the close does not know.
    """
    found = [metric for path in paths for metric in _file(path, by_tenant)]
    return distinct(found, "--business ")


def distinct(metrics: list[Metric], option: str = "") -> list[Metric]:
    """Return metrics of which no two have one name. Raises `ConfigError`."""
    for at, metric in enumerate(metrics):
        for other in metrics[:at]:
            if other.name == metric.name:
                raise ConfigError(
                    f"{option}{metric.source} and {other.source} both count {metric.name}: "
                    "give one of them"
                )
    return metrics


def _file(path: Path, by_tenant: bool) -> list[Metric]:
    what = f"--business {path}"
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.reader(file))
    except OSError as error:
        raise ConfigError(f"{what}: {error.strerror}") from None
    except (UnicodeError, csv.Error):
        raise ConfigError(f"{what} is no CSV: export it again") from None
    columns = [name.strip() for name in rows[0]] if rows else []
    names = [name for name in columns if name not in ("day", "tenant")]
    named = names and all(_NAME.match(name) for name in names)
    if "day" not in columns or not named or len(set(columns)) < len(columns):
        raise ConfigError(
            f"{what}: the first line names the columns: day, perhaps tenant, and one for each "
            "thing that is counted, such as orders"
        )
    tenants = "tenant" in columns
    if tenants and not by_tenant:
        raise ConfigError(f"{what} is by tenant, and the close is not: give --by owner,tenant")
    values: dict[str, dict[date, dict[str, Fraction]]] = {name: defaultdict(dict) for name in names}
    for number, row in enumerate(rows[1:], start=2):
        if not any(row):
            continue
        if len(row) != len(columns):
            raise ConfigError(f"{what}:{number} has not as many cells as columns")
        cells = dict(zip(columns, row, strict=True))
        day = _day(cells["day"], f"{what}:{number}")
        tenant = (cells["tenant"] or NOBODY) if tenants else ALL
        if tenant in values[names[0]].get(day, {}):
            raise ConfigError(f"{what}:{number} has {day} {tenant} a second time: take one out")
        for name in names:
            values[name][day][tenant] = _count(cells[name], f"{what}:{number}: {name}")
    if not values[names[0]]:
        raise ConfigError(f"{what} has no rows: export it again")
    return [Metric(str(path), name, tenants, values[name]) for name in names]


def _day(text: str, where: str) -> date:
    try:
        return date.fromisoformat(text.strip())
    except ValueError:
        raise ConfigError(f"{where}: {text[:64]!r} is no day such as 2026-10-01") from None


def _count(text: str, where: str) -> Fraction:
    try:
        found = Fraction(Decimal(text.strip()))
    except (InvalidOperation, ValueError, OverflowError):
        raise ConfigError(f"{where}: {text[:64]!r} is not a number") from None
    if found < 0:
        raise ConfigError(f"{where}: {text[:64]} is below zero")
    return found


def join(
    metric: Metric,
    this: CostReport,
    days: Sequence[date],
    last: CostReport | None,
    before: Sequence[date],
) -> list[Each]:
    """Divide the cost of the days that have a count by it: all of the cost by all that was counted,
    then of each tenant its own, the dearest first.

    Args:
        days, before: those of each month whose cost is known.
    """
    mine = [day for day in days if day in metric.values]
    theirs = [day for day in before if day in metric.values]
    costs = _costs(this, mine)
    for day, by_tenant in (_costs(last, theirs) if last else {}).items():
        costs[day] = by_tenant
    tenants = sorted({name for day in costs for name in metric.values[day]})

    def each(tenant: str, chosen: Sequence[str] | None) -> Each:
        amounts, counts = {}, {}
        for day, of in costs.items():
            some = chosen or tenants
            amounts[day] = sum(of.values()) if chosen is None else of.get(tenant, 0)
            counts[day] = sum((metric.values[day].get(name, _NONE) for name in some), _NONE)
        daily = {
            day: float(amounts[day] / counts[day] / money.ONE)
            for day in sorted(costs) if counts[day]
        }  # fmt: skip
        return Each(
            metric.name, tenant,
            sum(amounts[day] for day in mine), sum((counts[day] for day in mine), _NONE),
            sum(amounts[day] for day in theirs), sum((counts[day] for day in theirs), _NONE),
            daily, forecast.trend(daily),
        )  # fmt: skip

    found = [each(ALL, None)]
    if metric.by_tenant:
        some = [each(tenant, [tenant]) for tenant in tenants]
        found += sorted(some, key=lambda row: (-(row.each() or 0), row.tenant))
    return found


def _costs(report: CostReport, days: Sequence[date]) -> dict[date, dict[str, int]]:
    """Return units by day and tenant; what nobody bears is of no tenant."""
    found: dict[date, dict[str, int]] = {day: defaultdict(int) for day in days}
    for cost in report.costs:
        if cost.day in found:
            found[cost.day][cost.key.tenant or NOBODY] += cost.amount
    for left in report.unallocated:
        if left.day in found:
            found[left.day][""] += left.amount
    return found
