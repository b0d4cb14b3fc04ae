"""`focus.csv`: every row of a bill, divided among those who bear it.

A row of the bill becomes an *allocated charge* for each that bears a part of it: all its columns
stay as they are, costs and quantities are divided, and the `Allocated` columns name the bearer. So
each of these columns adds up to that of the bill.

Source: FOCUS 1.3, data generator-calculated split cost allocation. Without a bill the rows are
those of the price book, in columns of FOCUS 1.0.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation, localcontext
from pathlib import Path
from typing import NamedTuple

from late.errors import ConfigError
from late_spark import allocation, charges, drivers, focus, money
from late_spark.bills import files
from late_spark.calendar import iso, month_bounds
from late_spark.charges import Charge, DayCharge
from late_spark.cost import OF_WORK, CostReport
from late_spark.pricebook import PriceBook
from late_spark.tables import header, safe

COSTS = ("BilledCost", "ContractedCost", "EffectiveCost", "ListCost")
COMMITMENT = tuple(
    f"CommitmentDiscount{each}" for each in ("Category", "Id", "Name", "Status", "Type")
)
SUMS = (*COSTS, "ConsumedQuantity", "PricingQuantity")
ADDED = (
    "AllocatedMethodId", "AllocatedResourceId", "AllocatedResourceName", "AllocatedTags", "x_Line",
)  # fmt: skip
METHOD = "late-usage-1"
"""The method that docs/reports.md describes: by the drivers of the price book, day by day."""
OUTSIDE = "outside of the report's range"
WHOLE = 10**18
"""One, as a weight: a share of a day is a whole number of these parts."""


class Bearer(NamedTuple):
    """Those who bear a part: values of the report's dimensions, or why nobody does."""

    values: tuple[str, ...]
    reason: str = ""


Weights = Mapping[Bearer, int]
Part = tuple[Charge, int]
"""A charge whose amount does not matter, and the percent of the row that it is."""


class Origin(NamedTuple):
    """A row to divide."""

    where: str
    """File and line, for errors."""
    row: Mapping[str, str]
    parts: Sequence[Part]


def of_bills(paths: Sequence[Path], book: PriceBook) -> Iterator[Origin]:
    """Read the bills once more, row by row: they may be larger than the memory."""
    for path in files.every(paths):
        for number, row in focus.rows(path, book):
            where = f"bill {path}:{number}"
            yield Origin(where, row, focus.parts(row, book, where))


def of_prices(billed: Iterable[Charge], report: CostReport) -> Iterator[Origin]:
    """Make a row of each charge of the price book. Nobody has billed it: it is an estimate."""
    for charge in billed:
        month = month_bounds(report.calendar.day(charge.start_us), report.calendar.tz)
        row = {
            **dict.fromkeys(COSTS, money.exact(charge.amount)),
            "BillingAccountId": "late",
            "BillingAccountName": safe(report.title),
            "BillingCurrency": report.currency,
            "BillingPeriodStart": iso(month[0]),
            "BillingPeriodEnd": iso(month[1]),
            "ChargeCategory": "Usage",
            "ChargeClass": "",
            "ChargeDescription": safe(f"{charge.line.name}, by the price book"),
            "ChargeFrequency": "Usage-Based",
            "ChargePeriodStart": iso(charge.start_us),
            "ChargePeriodEnd": iso(charge.end_us),
            **dict.fromkeys(COMMITMENT, ""),
            "ConsumedQuantity": "",
            "ConsumedUnit": "",
            "ContractedUnitPrice": money.exact(charge.amount),
            "InvoiceIssuerName": "late",
            "ListUnitPrice": money.exact(charge.amount),
            "PricingCategory": "Standard",
            "PricingQuantity": "1",
            "PricingUnit": "Days",
            "ProviderName": "late",
            "PublisherName": "late",
            "RegionId": charge.line.region,
            "RegionName": charge.line.region,
            "ResourceId": "",
            "ResourceName": "",
            "ResourceType": "",
            "ServiceCategory": "Integration",
            "ServiceName": safe(charge.line.service or charge.line.name),
            "SkuId": "",
            "SkuPriceId": "",
            "SubAccountId": "",
            "SubAccountName": "",
            "Tags": "",
        }
        yield Origin(f"price of {charge.line.name}", row, [(charge, 100)])


def write(report: CostReport, origins: Iterable[Origin], columns: Sequence[str], path: Path) -> int:
    """Write the rows, and return how many.

    Raises:
        ConfigError: a cost or a quantity is no number; the message names file, row and column.
    """
    shares, written = Shares(report), 0
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*columns, *ADDED], restval="")
        writer.writeheader()
        for origin in origins:
            weights: Counter[Bearer] = Counter()
            for charge, percent in origin.parts:
                for bearer, weight in shares.of(charge).items():
                    weights[bearer] += percent * weight
            line = safe(origin.parts[0][0].line.name)
            for bearer, amounts in divided(origin, weights):
                added = {"AllocatedMethodId": METHOD, "x_Line": line, **shares.named(bearer)}
                writer.writerow({**origin.row, **amounts, **added})
                written += 1
    return written


def columns_of(paths: Sequence[Path]) -> list[str]:
    """Return the columns of all bills, each once, in their order."""
    found: dict[str, None] = {}
    for path in files.every(paths):
        found |= dict.fromkeys(focus.columns(path))
    return list(found)


PRICED = tuple(sorted({
    *SUMS, *COMMITMENT, "BillingAccountId", "BillingAccountName", "BillingCurrency",
    "BillingPeriodEnd", "BillingPeriodStart", "ChargeCategory", "ChargeClass",
    "ChargeDescription", "ChargeFrequency", "ChargePeriodEnd", "ChargePeriodStart",
    "ConsumedUnit", "ContractedUnitPrice",
    "InvoiceIssuerName", "ListUnitPrice", "PricingCategory", "PricingUnit",
    "ProviderName", "PublisherName", "RegionId", "RegionName", "ResourceId", "ResourceName",
    "ResourceType", "ServiceCategory", "ServiceName", "SkuId", "SkuPriceId", "SubAccountId",
    "SubAccountName", "Tags",
}))  # fmt: skip
"""The columns of `of_prices`."""


class Shares:
    """The part of a charge that each bears, from the work of the days that it spans."""

    def __init__(self, report: CostReport) -> None:
        self._calendar = report.calendar
        self._work = drivers.work(report.used)
        self._by = [each for each in report.by if each in OF_WORK]
        self._days: dict[object, Weights] = {}

    def of(self, charge: Charge) -> Weights:
        """Return weights that add up to `WHOLE`, whatever the charge's amount is."""
        found: Counter[Bearer] = Counter()
        spans = charges.over_days(WHOLE, charge.start_us, charge.end_us, self._calendar)
        for day, part in spans:
            if day is None:
                found[Bearer((), OUTSIDE)] += part
                continue
            weights = self._of_day(DayCharge(day, charge.line, 0, charge.drivers, charge.reason))
            for bearer, amount in zip(
                weights, money.split(part, list(weights.values())), strict=True
            ):
                found[bearer] += amount
        return found

    def _of_day(self, charge: DayCharge) -> Weights:
        key = charge.day, charge.line, charge.reason, tuple(sorted(charge.drivers.items()))
        if (known := self._days.get(key)) is None:
            whole = DayCharge(charge.day, charge.line, WHOLE, charge.drivers, charge.reason)
            costs, left = allocation.allocate([whole], self._work)
            found: Counter[Bearer] = Counter()
            for cost in costs:
                values = tuple(str(getattr(cost.key, each)) for each in self._by)
                found[Bearer(values)] += cost.amount
            for row in left:
                found[Bearer((), row.reason)] += row.amount
            known = self._days[key] = found
        return known

    def named(self, bearer: Bearer) -> dict[str, str]:
        """Return the columns that name who bears a part."""
        if bearer.reason:
            tags, name = {"unallocated": bearer.reason}, "unallocated"
        else:
            tags = dict(zip(header(self._by), bearer.values, strict=True))
            name = "/".join(bearer.values) or "(none)"
        return {
            "AllocatedResourceId": safe(name),
            "AllocatedResourceName": safe(name),
            "AllocatedTags": json.dumps({key: value for key, value in tags.items() if value}),
        }


def divided(origin: Origin, weights: Weights) -> Iterator[tuple[Bearer, dict[str, str]]]:
    """Divide costs and quantities of a row; a column that is empty stays empty.

    Whoever gets nothing has no row, but of a row of zeros one stays.
    """
    bearers = sorted(weights)
    shares = [weights[bearer] for bearer in bearers]
    parts = {
        column: split_number(text, shares, f"{origin.where}: {column}")
        for column in SUMS
        if (text := origin.row.get(column, "")).strip()
    }
    some = False
    for at, bearer in enumerate(bearers):
        amounts = {column: each[at] for column, each in parts.items()}
        if any(amounts.values()) or (not some and at == len(bearers) - 1):
            some = True
            yield bearer, {column: f"{amount:f}" for column, amount in amounts.items()}


def split_number(text: str, weights: Sequence[int], what: str) -> list[Decimal]:
    """Divide a decimal by weights so that the parts add up to it exactly.

    Raises:
        ConfigError: it is no number.
    """
    try:
        value = Decimal(text.strip())
        digits = max(money.DIGITS, -int(value.as_tuple().exponent))
    except (InvalidOperation, ValueError):
        raise ConfigError(f"{what}: {text[:64]!r} is not a number") from None
    with localcontext() as context:
        context.prec = 100
        parts = money.split(int(value.scaleb(digits)), weights)
        return [Decimal(part).scaleb(-digits).normalize() for part in parts]
