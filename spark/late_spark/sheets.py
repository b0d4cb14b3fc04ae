"""The cost report as an XLSX that opens without help: numbers are numbers, money has its format,
every table has a total that is a formula, and a sheet says what was assumed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

from late_spark import bridge, money
from late_spark.cost import CostReport
from late_spark.tables import header

Cell = str | float | int | date | None


_LINE = 15.0
"""Height of a row, in points."""
_WIDEST = 60
ROWS_MAX = 1_000_000
"""The most rows of costs: a sheet has 1,048,576 rows, and the writer drops the rest silently."""


class Book:
    """A workbook with the formats that all sheets share."""

    def __init__(self, path: Path, currency: str, digits: int, made: date) -> None:
        import xlsxwriter

        # A tenant's name is a text, whatever it begins with; nothing is read as formula or link.
        self._book: Any = xlsxwriter.Workbook(
            str(path), {"strings_to_formulas": False, "strings_to_urls": False}
        )
        # The same figures are the same file, whenever it is written.
        self._book.set_properties({"created": datetime(made.year, made.month, made.day)})
        self._currency, self._digits = currency, digits
        places = "." + "0" * digits if digits else ""
        pattern = f'#,##0{places} "{currency}"'
        make = self._book.add_format
        self._formats = {
            "money": make({"num_format": pattern}),
            # As money, of which a sum would say nothing.
            "each": make({"num_format": pattern}),
            "fine": make({"num_format": f'#,##0.000000 "{currency}"'}),
            "count": make({"num_format": "#,##0"}),
            "share": make({"num_format": "0.0 %"}),
            "ratio": make({"num_format": "#,##0.00"}),
            "day": make({"num_format": "yyyy-mm-dd", "align": "left"}),
            "text": make({}),
            "wrap": make({"text_wrap": True, "valign": "top"}),
        }
        self._heads = {
            side: make({"bold": True, "bottom": 1, "align": side}) for side in ("left", "right")
        }
        self._total = make({"bold": True, "top": 1, "num_format": pattern})
        self._total_count = make({"bold": True, "top": 1, "num_format": "#,##0"})
        self._bold = make({"bold": True, "top": 1})
        self._sheets: dict[str, Any] = {}

    def sheet(
        self,
        name: str,
        columns: Sequence[tuple[str, str]],
        rows: Sequence[Sequence[Cell]],
        *,
        totals: str = "Total",
        table: str = "",
    ) -> None:
        """A table: (title, kind of format) per column. Money and counts get a sum below, as a
        formula with its value, under the title `totals`; "" for none.

        Args:
            table: makes it a table of that name, which a pivot takes as it is. It has no totals.
        """
        totals = "" if table else totals
        sheet = self._book.add_worksheet(name[:31])
        self._sheets[name] = sheet
        sheet.freeze_panes(1, 0)
        sheet.set_landscape()
        sheet.fit_to_pages(1, 0)
        sheet.repeat_rows(0)
        for at, (title, kind) in enumerate(columns):
            side = "left" if kind in ("text", "wrap", "day") else "right"
            sheet.write_string(0, at, title, self._heads[side])
            cells = [row[at] for row in rows]
            if totals and kind in ("money", "count"):
                cells.append(_sum(cells))
            width = max([len(title), *(self._width(cell, kind) for cell in cells)])
            # Two more: totals are bold, and spreadsheets do not agree on a digit's width.
            sheet.set_column(at, at, min(_WIDEST, width + 2))
        for number, row in enumerate(rows, start=1):
            self._row(sheet, number, row, columns)
        if rows and table:
            heads = [{"header": title} for title, _ in columns]
            sheet.add_table(0, 0, len(rows), len(columns) - 1, {"name": table, "columns": heads})
        elif rows:
            sheet.autofilter(0, 0, len(rows), len(columns) - 1)
        if totals and rows:
            self._totals(sheet, columns, rows, totals)

    def chart(
        self, name: str, title: str, columns: Sequence[int], rows: int, *, right_of: int,
        kind: str = "column", stacked: bool = False,
    ) -> None:  # fmt: skip
        """Draw columns of a sheet beside its table, by what its first column says.

        Args:
            rows: how many of them, from the first on.
            right_of: the last column of the table.
            kind: `column` or `line`.
        """
        chart = self._book.add_chart({"type": kind, **({"subtype": "stacked"} if stacked else {})})
        for at in columns:
            chart.add_series({
                "name": [name, 0, at], "categories": [name, 1, 0, rows, 0],
                "values": [name, 1, at, rows, at],
            })  # fmt: skip
        chart.set_title({"name": title, "name_font": {"size": 12}})
        chart.set_y_axis({"num_format": "#,##0", "major_gridlines": {"visible": True,
                          "line": {"color": "#DDDDDD"}}})  # fmt: skip
        chart.set_x_axis({"label_position": "low"})
        chart.set_legend({"position": "bottom"})
        chart.set_size({"width": 760, "height": 380})
        self._sheets[name].insert_chart(1, right_of + 2, chart)

    def _row(
        self, sheet: Any, number: int, row: Sequence[Cell], columns: Sequence[tuple[str, str]]
    ) -> None:
        lines = 1
        for at, (value, (_, kind)) in enumerate(zip(row, columns, strict=True)):
            if isinstance(value, date):
                sheet.write_datetime(number, at, value, self._formats[kind])
            elif isinstance(value, str):
                sheet.write_string(number, at, value, self._formats[kind])
                if kind == "wrap":
                    lines = max(lines, -(-len(value) // _WIDEST))
            elif value is not None:
                sheet.write_number(number, at, value, self._formats[kind])
        if lines > 1:
            # Not every spreadsheet makes room for a text of several lines by itself.
            sheet.set_row(number, lines * _LINE)

    def _width(self, value: Cell, kind: str) -> int:
        """Characters of a cell as it is shown."""
        if isinstance(value, int | float):
            places = {"money": self._digits, "each": self._digits, "fine": 6, "count": 0}
            unit = len(self._currency) + 1 if kind in ("money", "each", "fine") else 0
            return len(f"{value:,.{places.get(kind, 2)}f}") + unit
        return len(str(value or ""))

    def _totals(
        self,
        sheet: Any,
        columns: Sequence[tuple[str, str]],
        rows: Sequence[Sequence[Cell]],
        title: str,
    ) -> None:
        last = len(rows)
        sheet.write_string(last + 1, 0, title, self._bold)
        for at, (_, kind) in enumerate(columns):
            if kind in ("money", "count"):
                letter = chr(ord("A") + at)
                value = _sum([row[at] for row in rows])
                style = self._total if kind == "money" else self._total_count
                # Rounded to cents: the sum of doubles is off by less than any of them.
                formula = f"=ROUND(SUM({letter}2:{letter}{last + 1}),6)"
                sheet.write_formula(last + 1, at, formula, style, round(value, 6))
            elif at:
                sheet.write_blank(last + 1, at, None, self._bold)

    def close(self) -> None:
        """Write the file. Raises `OSError`."""
        from xlsxwriter.exceptions import FileCreateError

        try:
            self._book.close()
        except FileCreateError as error:
            raise OSError(*getattr(error.args[0], "args", error.args)) from error


def _sum(cells: Sequence[Cell]) -> float:
    return sum(cell for cell in cells if isinstance(cell, int | float))


def write(report: CostReport, path: Path) -> None:
    """The report's workbook. All of its sheets show the same cents: of each, the total is one that
    the summary has."""
    book = Book(path, report.currency, report.digits, report.calendar.days[-1])
    fill(book, report)
    book.close()


def fill(book: Book, report: CostReport) -> None:
    """Write the report's sheets into a workbook."""
    _summary(book, report)
    _costs(book, report)
    _days(book, report)
    _lines(book, report)
    if report.efficiency:
        book.sheet(
            "Efficiency",
            [("Ratio", "text"), ("Region", "text"), ("Measured", "ratio"),
             ("Best feasible", "ratio"), ("Of the best", "share"), ("Best is", "text")],
            [(e.name, e.region or "all", e.value, e.best, e.of_best, e.basis)
             for e in report.efficiency],
            totals="",
        )  # fmt: skip
    if report.bridge is not None:
        steps = report.bridge.steps()
        book.sheet(
            "Bridge",
            [("Step", "text"), (f"Cost ({report.currency})", "money")],
            list(zip(
                bridge.STEPS.values(),
                amounts(report, list(steps.values()), report.total_cents),
                strict=True,
            )),
            totals="Used in the range",
        )  # fmt: skip
    if report.findings:
        book.sheet(
            "Warnings",
            [("Kind", "text"), ("First", "day"), ("Last", "day"), ("What it means", "wrap")],
            [(each.kind, each.first, each.last, text)
             for each, text in zip(report.findings, report.warnings(), strict=True)],
            totals="",
        )  # fmt: skip
    book.sheet("Assumptions", [("What", "wrap"), ("How", "wrap")], report.assumptions, totals="")


def amounts(report: CostReport, units: Sequence[int], total: int | None = None) -> list[float]:
    """Amounts as people see them, so that they add up to `total` cents."""
    scale: int = 10**report.digits
    return [cents / scale for cents in money.in_minor(units, report.digits, total)]


def _summary(book: Book, report: CostReport) -> None:
    """Write how the report reconciles with the bill, in cents that add up."""
    scale: int = 10**report.digits
    book.sheet(
        "Summary",
        [(report.title, "text"), (f"Cost ({report.currency})", "money")],
        [
            ["Borne by those who caused the work, in the range", report.borne_cents / scale],
            ["Unallocated, in the range", report.unallocated_cents / scale],
            ["Outside of the range", report.outside_cents / scale],
        ],
        totals="The bill",
    )


def _costs(book: Book, report: CostReport) -> None:
    scale: int = 10**report.digits
    columns = [
        *((name, "text") for name in header(report.by)),
        (f"Cost ({report.currency})", "money"), ("Share", "share"), ("Tasks", "count"),
        ("Attempts", "count"), ("Retries", "count"), ("Per million tasks", "each"),
        ("Per retry", "fine"), ("Cost of retries", "money"),
    ]  # fmt: skip
    total = report.total_cents
    again = amounts(report, [row.of_retries() for row in report.rows])
    rows: list[list[Cell]] = [
        [*row.by, row.cents / scale, row.cents / total if total else None, row.tasks, row.attempts,
         row.retries, _each(row.per_million()), _each(row.per_retry()), of_retries]
        for row, of_retries in zip(report.rows[:ROWS_MAX], again, strict=False)
    ]  # fmt: skip
    rest: list[Cell] = [""] * (len(report.by) - 1)
    more, left = report.rows[ROWS_MAX:], report.unallocated_cents
    others = [(f"({len(more):,} more: all are in costs.csv)", sum(row.cents for row in more))]
    for name, cents in (*others[: len(more)], ("(unallocated)", left)):
        share = cents / total if total else None
        rows.append([name, *rest, cents / scale, share, *[None] * 6])
    shown = len(columns) if report.counted else len(report.by) + 2
    book.sheet("Costs", columns[:shown], [row[:shown] for row in rows])


def _each(amount: int | None) -> float | None:
    return None if amount is None else amount / money.ONE


def _days(book: Book, report: CostReport) -> None:
    borne = dict.fromkeys(report.calendar.days, 0)
    left = dict.fromkeys(report.calendar.days, 0)
    for cost in report.costs:
        borne[cost.day] += cost.amount
    for row in report.unallocated:
        left[row.day] += row.amount
    book.sheet(
        "Days",
        [("Day", "day"), ("Borne", "money"), ("Unallocated", "money")],
        list(
            zip(
                report.calendar.days,
                amounts(report, list(borne.values()), report.borne_cents),
                amounts(report, list(left.values()), report.unallocated_cents),
                strict=True,
            )
        ),
    )
    book.chart("Days", "Cost per day", (1, 2), len(report.calendar.days), right_of=2, stacked=True)


def _lines(book: Book, report: CostReport) -> None:
    for name, how, rows, total in (
        ("Lines", "Driver", report.by_line(), report.borne_cents),
        ("Unallocated", "Why", report.why_unallocated(), report.unallocated_cents),
    ):
        seen = amounts(report, [amount for _, _, amount in rows], total)
        book.sheet(
            name,
            [("Line", "text"), (how, "text"), ("Cost", "money")],
            [(line, why, cents) for (line, why, _), cents in zip(rows, seen, strict=True)],
        )
