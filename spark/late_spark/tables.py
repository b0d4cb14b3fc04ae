"""The cost report as data: Parquet and CSV. `focus_split.py` has the rows of the bill."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from late_spark import money
from late_spark.bridge import STEPS, Bridge
from late_spark.cost import CostReport


def write(report: CostReport, folder: Path) -> None:
    """Write the costs, as Parquet and as CSV."""
    _parquet(report, folder)
    _csv(report, folder / "costs.csv")


def safe(text: str) -> str:
    """A text that a spreadsheet does not take for a formula: a tenant's name is a stranger's."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def header(by: Sequence[str]) -> list[str]:
    """Names of the report's dimensions as people know them."""
    return ["task" if each == "name" else each for each in by]


def _csv(report: CostReport, path: Path) -> None:
    digits = report.digits

    def amount(cents: int) -> str:
        return money.plain(cents, digits)

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


def bridge(found: Bridge, path: Path) -> None:
    """Write the steps from the bills to the range, a row for each line; exact."""
    rows: list[list[str | int]] = [
        [line, *steps.values(), sum(steps.values())]
        for line, steps in (*found.lines.items(), ("(total)", found.steps()))
    ]
    amount_rows(path, ("line", *STEPS, "used"), rows)


def amount_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[str | int]]) -> None:
    """Write a table of texts, made safe, and of amounts in units, which are exact."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for row in rows:
            writer.writerow(safe(c) if isinstance(c, str) else money.exact(c) for c in row)


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


def csv_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A plain table as CSV, its texts made safe."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for row in rows:
            writer.writerow([safe(each) if isinstance(each, str) else each for each in row])
