"""The cost report as data: Parquet, CSV, and FOCUS 1.x rows of what was allocated."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path

from late_spark import money
from late_spark.allocation import Key
from late_spark.calendar import iso, month_bounds
from late_spark.charges import Line
from late_spark.cost import OF_WORK, CostReport

FOCUS = (
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency",
    "BillingPeriodEnd", "BillingPeriodStart", "ChargeCategory", "ChargeClass",
    "ChargeDescription", "ChargeFrequency", "ChargePeriodEnd", "ChargePeriodStart",
    "ConsumedQuantity", "ConsumedUnit", "ContractedCost", "EffectiveCost", "InvoiceIssuerName",
    "ListCost", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName", "RegionId",
    "RegionName", "ResourceId", "ResourceName", "ResourceType", "ServiceCategory", "ServiceName",
    "SkuId", "SkuPriceId", "SubAccountId", "SubAccountName", "Tags", "x_Line",
)  # fmt: skip
"""The columns of FOCUS 1.0, and one of our own, which the specification has begin with `x_`."""


def write(report: CostReport, folder: Path) -> None:
    """Write all data files of a report."""
    _parquet(report, folder)
    _csv(report, folder / "costs.csv")
    _focus(report, folder / "focus.csv")


def safe(text: str) -> str:
    """A text that a spreadsheet does not take for a formula: a tenant's name is a stranger's."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def header(by: Sequence[str]) -> list[str]:
    """Names of the report's dimensions as people know them."""
    return ["task" if each == "name" else each for each in by]


def _csv(report: CostReport, path: Path) -> None:
    digits = report.digits

    def amount(cents: int) -> str:
        return money.shown(cents, digits).replace(",", "")

    cost = f"cost_{report.currency.lower()}"
    names = [*header(report.by), cost, "tasks", "attempts", "retries", "per_million_tasks",
             "per_retry", "cost_of_retries"]  # fmt: skip
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)

        def line(*cells: object) -> None:
            """Not all readers take a row that has fewer cells than the header."""
            writer.writerow([*cells, *[""] * (len(names) - len(cells))])

        for row in report.rows:
            units = (row.per_million(), row.per_retry(), row.of_retries())
            shown = ["" if each is None else money.exact(each) for each in units]
            of_work = [row.tasks, row.attempts, row.retries, *shown] if report.counted else []
            line(*map(safe, row.by), amount(row.cents), *of_work)
        rest = [""] * (len(report.by) - 1)
        line("(unallocated)", *rest, amount(report.unallocated_cents))
        line("(total)", *rest, amount(report.total_cents))


def _parquet(report: CostReport, folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    amount = pa.decimal128(38, money.DIGITS)
    texts = ("group", "queue", "task", "tenant", "owner", "line", "service", "region", "driver")
    rows = [(c.day, *c.key, c.line.name, c.line.service, c.line.region, c.driver, c.amount)
            for c in report.costs]  # fmt: skip
    schema = pa.schema([("day", pa.date32()), *((name, pa.string()) for name in texts),
                        ("cost", amount)])  # fmt: skip
    pq.write_table(_table(rows, schema), folder / "costs.parquet")
    left = [(u.day, u.line.name, u.line.service, u.line.region, u.reason, u.amount)
            for u in report.unallocated]  # fmt: skip
    names = ("line", "service", "region", "reason")
    schema = pa.schema([("day", pa.date32()), *((name, pa.string()) for name in names),
                        ("cost", amount)])  # fmt: skip
    pq.write_table(_table(left, schema), folder / "unallocated.parquet")


def _table(rows: Sequence[tuple[object, ...]], schema: object) -> object:
    """Columns of a table; the last one is an amount in units."""
    import pyarrow as pa

    columns = list(zip(*rows, strict=True)) or [()] * len(schema)  # type: ignore[arg-type]
    last = [money.decimal(int(str(value))) for value in columns[-1]]
    return pa.table([*map(list, columns[:-1]), last], schema=schema)


def _focus(report: CostReport, path: Path) -> None:
    """A row per day, line and what the report is by; what nobody bears is in it, so that it sums
    to the bill's part in the range. (Every key on its own would be gigabytes; those are in
    `costs.parquet`.)"""
    by = [each for each in report.by if each in OF_WORK]
    tasks: dict[tuple[date, tuple[str, ...]], int] = defaultdict(int)
    for used in report.used:
        tasks[used.day, _of(used.key, by)] += used.ended
    amounts: dict[tuple[date, Line, tuple[str, ...]], int] = defaultdict(int)
    for cost in report.costs:
        amounts[cost.day, cost.line, _of(cost.key, by)] += cost.amount
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FOCUS, restval="")
        writer.writeheader()
        bounds = {day: (iso(start), iso(end)) for day, start, end in report.calendar.bounds}
        common = {day: _common(report, day, *bounds[day]) for day in report.calendar.days}
        for (day, line, values), amount in sorted(amounts.items()):
            borne = _borne(line, by, values, tasks[day, values])
            writer.writerow({**common[day], **_charge(line, amount), **borne})
        for left in report.unallocated:
            writer.writerow(
                {
                    **common[left.day],
                    **_charge(left.line, left.amount),
                    "ChargeDescription": safe(f"unallocated: {left.reason}"),
                    # FOCUS wants a quantity of all that is priced: this is a day of the line.
                    "PricingQuantity": 1,
                    "PricingUnit": "Days",
                    "SubAccountId": "unallocated",
                    "SubAccountName": "unallocated",
                }
            )


def _of(key: Key, by: Sequence[str]) -> tuple[str, ...]:
    return tuple(str(getattr(key, each)) for each in by)


def _common(report: CostReport, day: date, start: str, end: str) -> dict[str, object]:
    month = month_bounds(day, report.calendar.tz)
    return {
        "BillingAccountId": "late",
        "BillingAccountName": safe(report.title),
        "BillingCurrency": report.currency,
        "BillingPeriodStart": iso(month[0]),
        "BillingPeriodEnd": iso(month[1]),
        "ChargeCategory": "Usage",
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodStart": start,
        "ChargePeriodEnd": end,
        "InvoiceIssuerName": "late",
        "ProviderName": "late",
        "PublisherName": "late",
        "ServiceCategory": "Integration",
    }


def _charge(line: Line, amount: int) -> dict[str, object]:
    costs = ("BilledCost", "EffectiveCost", "ListCost", "ContractedCost")
    return {
        **dict.fromkeys(costs, money.exact(amount)),
        "RegionId": line.region,
        "RegionName": line.region,
        "ServiceName": safe(line.service or line.name),
        "x_Line": safe(line.name),
    }


def _borne(line: Line, by: Sequence[str], values: Sequence[str], tasks: int) -> dict[str, object]:
    """Name the bearer of a charge: the dimensions as resource and tags, the owner as account."""
    tags = dict(zip(header(by), values, strict=True))
    owner = safe(tags.get("owner", ""))
    return {
        "ChargeDescription": f"{line.name}, the share of its tasks",
        "ConsumedQuantity": tasks,
        "ConsumedUnit": "Tasks",
        "PricingQuantity": tasks,
        "PricingUnit": "Tasks",
        "ResourceId": safe("/".join(values)),
        "ResourceName": safe(values[-1] if values else ""),
        "ResourceType": "/".join(tags),
        "SubAccountId": owner,
        "SubAccountName": owner,
        "Tags": json.dumps({name: value for name, value in tags.items() if value}),
    }


def csv_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A plain table as CSV, its texts made safe."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for row in rows:
            writer.writerow([safe(each) if isinstance(each, str) else each for each in row])
