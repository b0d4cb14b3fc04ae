"""The workbook of a close: the cost report's, what the page shows beside it, a table to pivot."""

from __future__ import annotations

from collections import defaultdict
from datetime import date
from pathlib import Path

from late_spark import money, sheets
from late_spark.close.compare import Close
from late_spark.cost import NOBODY, CostReport
from late_spark.sheets import Book, Cell
from late_spark.tables import header

DATA_ROWS_MAX = 100_000
"""Beyond this the table to pivot is by month and not by day: a workbook is to open at once."""
_CHARTED = 15


def write(close: Close, path: Path) -> None:
    """Write the workbook. Its sheets show the cents of the page."""
    this = close.this
    book = Book(path, this.currency, this.digits, this.calendar.days[-1])
    _comparison(book, close)
    sheets.fill(book, this)
    _outlook(book, close)
    _data(book, this)
    book.close()


def _comparison(book: Book, close: Close) -> None:
    this, rows = close.this, close.rows()
    scale: int = 10**this.digits

    def cell(cents: int | None) -> Cell:
        return None if cents is None else cents / scale

    columns = [
        *((name, "text") for name in header(this.by)),
        (close.month, "money"), (close.before, "money"), ("Change", "money"), ("Budget", "each"),
        ("Left", "each"), ("Expected at its end", "each"), ("Per million tasks", "each"),
    ]  # fmt: skip
    book.sheet("Close", columns, [
        [*row.name, *map(cell, (row.this, row.last, row.change, row.budget, row.left,
                                row.expected, row.per_million))]
        for row in rows
    ])  # fmt: skip
    first = len(this.by)
    charted = [first, first + 1] if close.last else [first]
    if close.budget.parts:
        charted.append(first + 3)
    book.chart("Close", f"{close.month}, {close.before} and the budget", charted,
               min(len(rows), _CHARTED), right_of=len(columns) - 1)  # fmt: skip


def _outlook(book: Book, close: Close) -> None:
    look = close.outlook
    if look.unusual:
        book.sheet(
            "Unusual days",
            [("First", "day"), ("Last", "day"), ("Queue", "text"), ("Task", "text"),
             ("What", "text"), ("Cost", "each"), ("Usual", "each"), ("More or less", "each"),
             ("Why", "wrap")],
            [(a.first, a.last, a.queue, a.name, a.kind, a.cost, a.usual, a.excess, a.cause)
             for a in look.unusual],
            totals="",
        )  # fmt: skip
    if look.moved and close.last is not None:
        columns = zip(*((row.last, row.this, row.by_tasks, row.by_rate) for row in look.moved),
                      strict=True)  # fmt: skip
        amounts = [sheets.amounts(close.this, column) for column in columns]
        book.sheet(
            "What moved it",
            [("Queue", "text"), ("Task", "text"), (close.before, "money"), (close.month, "money"),
             ("By number of tasks", "money"), ("By cost of each", "money")],
            [(row.queue, row.name, *cells)
             for row, *cells in zip(look.moved, *amounts, strict=True)],
        )  # fmt: skip
    for metric, found in close.business:
        name = f"Per {metric.name}"
        days = sorted(found[0].daily)
        book.sheet(
            name, [("Day", "day"), (f"{close.this.currency} for each", "fine")],
            [(day, found[0].daily[day]) for day in days], totals="",
        )  # fmt: skip
        if days:
            book.chart(name[:31], name, (1,), len(days), right_of=1, kind="line")


def _data(book: Book, this: CostReport) -> None:
    """Write a row for each day, owner, queue, task, tenant and line; the sum is the month's."""
    sums: dict[tuple[date, tuple[str, ...]], int] = defaultdict(int)
    for cost in this.costs:
        of = cost.key
        each = (of.owner or NOBODY, of.queue, of.name, of.tenant, cost.line.name)
        sums[cost.day, each] += cost.amount
    for left in this.unallocated:
        sums[left.day, ("(unallocated)", "", "", "", left.line.name)] += left.amount
    if len(sums) > DATA_ROWS_MAX:
        by_month: dict[tuple[date, tuple[str, ...]], int] = defaultdict(int)
        for (_, names), amount in sums.items():
            by_month[this.calendar.days[0], names] += amount
        sums = by_month
    keys = sorted(sums)[: sheets.ROWS_MAX]
    cents = money.in_minor([sums[key] for key in keys], this.digits, this.total_cents)
    scale: int = 10**this.digits
    rows: list[list[Cell]] = [
        [day, *names, amount / scale] for (day, names), amount in zip(keys, cents, strict=True)
    ]
    book.sheet(
        "Data",
        [("day", "day"), ("owner", "text"), ("queue", "text"), ("task", "text"),
         ("tenant", "text"), ("line", "text"), ("cost", "each")],
        rows, table="costs",
    )  # fmt: skip
