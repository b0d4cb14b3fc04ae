"""The page of a close: for the screen, and on paper a document to sign."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from late_spark import money, page
from late_spark.close import sections, signoff
from late_spark.close.compare import Close, Row
from late_spark.cost import CostReport
from late_spark.tables import header

_ROWS_MAX = 100


def render(close: Close, inputs: Mapping[str, str]) -> str:
    """Make the page; `signoff.PLACE` stands where its hash will be."""
    this = close.this
    days = this.calendar.days
    subtitle = f"{days[0]} to {days[-1]}, days of {this.calendar.tz.key}, in {this.currency}"
    by = " and ".join(header(this.by))
    body = [
        *map(page.warning, close.warnings()), *_restated(close), _figures(close),
        *sections.ahead(close),
        page.heading(f"Cost by {by}, beside {close.before} and the budget"), _rows(close),
        page.heading("Cost per day"), page.chart(this),
        *sections.unusual(close), *sections.moved(close), *sections.released(close),
        *_units(close), *sections.business(close),
        page.heading("What it was paid for"), _lines(close),
        *page.bridged(this),
        page.heading("Gaps"), _gaps(close),
        page.heading("What nobody bears, and why"), page.why(this),
        page.heading("Assumptions"), page.table(("what", "how"), this.assumptions),
        *_signed(inputs),
    ]  # fmt: skip
    return page.page(this.title, subtitle, body)


def of_owner(close: Close, owner: str) -> str:
    """Make the page of one owner, whose part `close` is."""
    this = close.this
    days = this.calendar.days
    subtitle = f"{days[0]} to {days[-1]}, days of {this.calendar.tz.key}, in {this.currency}"
    body = [
        *map(page.warning, close.warnings()), _figures(close), *sections.ahead(close),
        page.heading(f"Cost by queue and task, beside {close.before}"), _rows(close),
        page.heading("Cost per day"), page.chart(this),
        *sections.unusual(close), *sections.moved(close), *sections.released(close),
        *_units(close), page.heading("What it was paid for"), _lines(close),
        page.paragraph(f"This is a part of the close of {close.month}, whose sign-off is "
                       f"{signoff.PLACE}. How it was divided is said there."),
    ]  # fmt: skip
    return page.page(f"{owner}: cost of {close.month}", subtitle, body)


def _shown(report: CostReport, cents: int | None) -> str:
    return "" if cents is None else money.shown(cents, report.digits)


def _restated(close: Close) -> list[str]:
    last = close.last
    if last is None or last.bridge is None or not last.bridge.restated:
        return []
    changed = last.cents(last.bridge.restated)
    return [page.warning(
        f"{close.before} is restated: {_shown(last, last.total_cents - changed)} {last.currency} "
        f"were billed at first, {_shown(last, changed)} came with later bills, "
        f"{_shown(last, last.total_cents)} it is now."
    )]  # fmt: skip


def _figures(close: Close) -> str:
    this, total = close.this, close.total()
    tiles = [(f"{this.currency} in {close.month}", _shown(this, total.this))]
    if total.last is not None:
        tiles.append((f"in {close.before}", _shown(this, total.last)))
        so_far = " so far" if close.outlook.end else ""
        tiles.append((f"change{so_far}{_relative(total)}", _signed_amount(this, total.change)))
    if total.budget is not None:
        tiles.append(("budget", _shown(this, total.budget)))
        tiles.append(("left of it", _shown(this, total.left)))
    if this.unallocated or this.bridge is not None:
        tiles.append(("unallocated", _shown(this, this.unallocated_cents)))
    if total.per_million is not None:
        tiles.append(("per million tasks", _shown(this, total.per_million)))
    return page.tiles(tiles)


def _relative(row: Row) -> str:
    return f", {row.change / row.last:+.1%}" if row.last and row.change is not None else ""


def _signed_amount(report: CostReport, cents: int | None) -> str:
    return f"+{_shown(report, cents)}" if cents is not None and cents > 0 else _shown(report, cents)


def _rows(close: Close) -> str:
    this, rows = close.this, close.rows()
    more = len(rows) - _ROWS_MAX

    def cells(row: Row) -> tuple[str, ...]:
        return (
            *row.name, _shown(this, row.this), _shown(this, row.last),
            _signed_amount(this, row.change), _relative(row).removeprefix(", "),
            _shown(this, row.expected), _shown(this, row.budget), _shown(this, row.left),
        )  # fmt: skip

    columns = (*header(this.by), f"{close.month}>", f"{close.before}>", "change>", "in percent>",
               "expected>", "budget>", "left>")  # fmt: skip
    found = [*map(cells, rows[:_ROWS_MAX]), cells(close.total())]
    # A column that nothing is known of, such as budgets where there are none, is not shown.
    kept = [at for at in range(len(columns)) if any(row[at] for row in found)]
    *above, total = ([row[at] for at in kept] for row in found)
    made = page.table([columns[at] for at in kept], above, total)
    return made + (page.paragraph(f"{more:,} more are in comparison.csv.") if more > 0 else "")


def _units(close: Close) -> list[str]:
    """Show the cost per million tasks, where tasks are counted."""
    rows = [
        row for row in (*close.rows()[:_ROWS_MAX], close.total()) if row.per_million is not None
    ]
    if not rows:
        return []
    shown = []
    for row in rows:
        now, then = row.per_million or 0, row.last_per_million
        change = f"{now / then - 1:+.1%}" if then else ""
        shown.append((*row.name, _shown(close.this, now), _shown(close.this, then), change))
    columns = (*header(close.this.by), f"{close.month}>", f"{close.before}>", "change>")
    return [page.heading("Cost per million tasks"), page.table(columns, shown[:-1], shown[-1])]


def _lines(close: Close) -> str:
    this, rows = close.this, close.lines()
    cents = money.in_minor([mine for _, mine, _ in rows], this.digits, this.total_cents)
    theirs: Sequence[int | None] = [None] * len(rows)
    if close.last is not None:
        theirs = money.in_minor(
            [last or 0 for *_, last in rows], this.digits, close.last.total_cents
        )
    made = [
        Row((name,), mine, last)
        for (name, _, _), mine, last in zip(rows, cents, theirs, strict=True)
    ]
    shown = [
        (each.name[0], _shown(this, each.this), _shown(this, each.last),
         _signed_amount(this, each.change))
        for each in (*made, close.total())
    ]  # fmt: skip
    columns = ("line", f"{close.month}>", f"{close.before}>", "change>")
    return page.table(columns, shown[:-1], shown[-1])


def _gaps(close: Close) -> str:
    found = close.this.findings
    left = [day for day in close.this.calendar.days if day not in close.days]
    if not found and left:
        return page.paragraph(f"None but the {len(left)} days from {left[0]} on that the bill does "
                              "not cover yet.")  # fmt: skip
    if not found:
        return page.paragraph("None: every day of the month has its bill and its usage.")
    return page.table(
        ("what", "first day", "last day", "days>", "tasks>", f"{close.this.currency}>"),
        [(each.kind, str(each.first), str(each.last), each.days, f"{each.tasks:,}",
          _shown(close.this, close.this.cents(each.amount))) for each in found],
    )  # fmt: skip


def _signed(inputs: Mapping[str, str]) -> list[str]:
    rows = [(name, digest) for name, digest in inputs.items()]
    return [
        page.heading("Sign-off"),
        page.paragraph(f"SHA-256 over the inputs below and all files of this folder: "
                       f"{signoff.PLACE}"),
        page.paragraph("The same command with the same inputs gives the same; else it says what "
                       "has changed."),
        page.table(("input", "SHA-256"), rows),
        page.table(("", "name", "date", "signature"),
                   [("prepared by", "", "", ""), ("approved by", "", "", "")]),
    ]  # fmt: skip
