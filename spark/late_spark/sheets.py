"""The cost report as an XLSX that opens without help: numbers are numbers, money has its format,
every table has a total that is a formula, and a sheet says what was assumed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from late_spark import money
from late_spark.cost import CostReport
from late_spark.tables import header

Cell = str | float | int | date | None


class Book:
    """A workbook with the formats that all sheets share."""

    def __init__(self, path: Path, currency: str, digits: int) -> None:
        import xlsxwriter

        # A tenant's name is a text, whatever it begins with; nothing is read as formula or link.
        self._book: Any = xlsxwriter.Workbook(
            str(path), {"strings_to_formulas": False, "strings_to_urls": False}
        )
        places = "." + "0" * digits if digits else ""
        pattern = f'#,##0{places} "{currency}"'
        make = self._book.add_format
        self._formats = {
            "money": make({"num_format": pattern}),
            "fine": make({"num_format": f'#,##0.000000 "{currency}"'}),
            "count": make({"num_format": "#,##0"}),
            "share": make({"num_format": "0.0 %"}),
            "ratio": make({"num_format": "#,##0.00"}),
            "day": make({"num_format": "yyyy-mm-dd", "align": "left"}),
            "text": make({}),
            "wrap": make({"text_wrap": True, "valign": "top"}),
        }
        self._head = make({"bold": True, "bottom": 1})
        self._total = make({"bold": True, "top": 1, "num_format": pattern})
        self._total_count = make({"bold": True, "top": 1, "num_format": "#,##0"})
        self._bold = make({"bold": True, "top": 1})

    def sheet(
        self,
        name: str,
        columns: Sequence[tuple[str, str]],
        rows: Sequence[Sequence[Cell]],
        *,
        totals: bool = True,
    ) -> None:
        """A table: (title, kind of format) per column. With `totals`, money and counts get a sum
        below, as a formula with its value."""
        sheet = self._book.add_worksheet(name[:31])
        sheet.freeze_panes(1, 0)
        sheet.set_landscape()
        sheet.fit_to_pages(1, 0)
        sheet.repeat_rows(0)
        for at, (title, kind) in enumerate(columns):
            sheet.write_string(0, at, title, self._head)
            width = max([len(title), *(len(str(row[at] or "")) for row in rows[:500])])
            sheet.set_column(at, at, min(60, width + (8 if kind == "money" else 2)))
        for number, row in enumerate(rows, start=1):
            for at, (value, (_, kind)) in enumerate(zip(row, columns, strict=True)):
                if isinstance(value, date):
                    sheet.write_datetime(number, at, value, self._formats[kind])
                elif isinstance(value, str):
                    sheet.write_string(number, at, value, self._formats[kind])
                elif value is not None:
                    sheet.write_number(number, at, value, self._formats[kind])
        if rows:
            sheet.autofilter(0, 0, len(rows), len(columns) - 1)
        if totals and rows:
            self._totals(sheet, columns, rows)

    def _totals(
        self, sheet: Any, columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[Cell]]
    ) -> None:
        last = len(rows)
        sheet.write_string(last + 1, 0, "Total", self._bold)
        for at, (_, kind) in enumerate(columns):
            if kind in ("money", "count"):
                letter = chr(ord("A") + at)
                value = sum(row[at] for row in rows if isinstance(row[at], int | float))  # type: ignore[misc]
                style = self._total if kind == "money" else self._total_count
                # Rounded to cents: the sum of doubles is off by less than any of them.
                formula = f"=ROUND(SUM({letter}2:{letter}{last + 1}),6)"
                sheet.write_formula(last + 1, at, formula, style, round(value, 6))

    def close(self) -> None:
        self._book.close()


def write(report: CostReport, path: Path) -> None:
    """The report's workbook."""
    book = Book(path, report.currency, report.digits)
    scale: int = 10**report.digits
    units = money.ONE

    def cents(amount: int) -> float:
        return amount / scale

    columns = [
        *((name, "text") for name in header(report.by)),
        (f"Cost ({report.currency})", "money"), ("Share", "share"), ("Tasks", "count"),
        ("Attempts", "count"), ("Retries", "count"), ("Per million tasks", "fine"),
        ("Per retry", "fine"), ("Cost of retries", "fine"),
    ]  # fmt: skip
    total = report.total_cents
    rows: list[list[Cell]] = [
        [*row.by, cents(row.cents), row.cents / total if total else None, row.tasks, row.attempts,
         row.retries, _fine(row.per_million()), _fine(row.per_retry()), row.of_retries() / units]
        for row in report.rows
    ]  # fmt: skip
    rest: list[Cell] = [""] * (len(report.by) - 1)
    left = report.unallocated_cents
    share = left / total if total else None
    rows.append(["(unallocated)", *rest, cents(left), share, *[None] * 6])
    _summary(book, report, cents)
    book.sheet("Costs", columns, rows)
    _days(book, report, cents)
    _lines(book, report, cents)
    if report.efficiency:
        book.sheet(
            "Efficiency",
            [("Ratio", "text"), ("Region", "text"), ("Measured", "ratio"),
             ("Best feasible", "ratio"), ("Of the best", "share"), ("Best is", "text")],
            [(e.name, e.region or "all", e.value, e.best, e.of_best, e.basis)
             for e in report.efficiency],
            totals=False,
        )  # fmt: skip
    book.sheet("Assumptions", [("What", "wrap"), ("How", "wrap")], report.assumptions, totals=False)
    book.close()


def _fine(amount: int | None) -> float | None:
    return None if amount is None else amount / money.ONE


def _summary(book: Book, report: CostReport, cents: Any) -> None:
    """How the report reconciles with the bill, in cents that add up."""
    totals = report.totals
    borne, left, outside = money.in_minor(
        [totals.borne, totals.unallocated, totals.outside], report.digits
    )
    rows: list[list[Cell]] = [
        ["Borne by owners of work, in the range", cents(borne)],
        ["Unallocated, in the range", cents(left)],
        ["Outside of the range", cents(outside)],
    ]
    bill = f"{money.exact(totals.bill)} {report.currency}"
    book.sheet(
        "Summary",
        [(f"{report.title}: the bill is {bill}", "text"), (f"Cost ({report.currency})", "money")],
        rows,
    )


def _days(book: Book, report: CostReport, cents: Any) -> None:
    days = list(report.calendar.days)
    units = dict.fromkeys(days, 0)
    unborne = dict.fromkeys(days, 0)
    for cost in report.costs:
        units[cost.day] += cost.amount
    for row in report.unallocated:
        unborne[row.day] += row.amount
    both = money.in_minor([*units.values(), *unborne.values()], report.digits)
    book.sheet(
        "Days",
        [("Day", "day"), ("Borne", "money"), ("Unallocated", "money")],
        [(day, cents(both[at]), cents(both[at + len(days)])) for at, day in enumerate(days)],
    )


def _lines(book: Book, report: CostReport, cents: Any) -> None:
    lines = report.by_line()
    seen = money.in_minor([amount for _, _, amount in lines], report.digits)
    book.sheet(
        "Lines",
        [("Line", "text"), ("Driver", "text"), ("Cost", "money")],
        [(line, how, cents(c)) for (line, how, _), c in zip(lines, seen, strict=True)],
    )
    why = report.why_unallocated()
    seen = money.in_minor([amount for _, _, amount in why], report.digits)
    book.sheet(
        "Unallocated",
        [("Line", "text"), ("Why", "text"), ("Cost", "money")],
        [(line, reason, cents(c)) for (line, reason, _), c in zip(why, seen, strict=True)],
    )
