"""The steps of `late close`: two months of one pass over the usage, one folder, one page."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, tzinfo
from fractions import Fraction
from pathlib import Path

from late.errors import ConfigError, LateError
from late_spark import (
    calendar,
    commands,
    cost,
    findings,
    folder,
    money,
    pricebook,
    tenants,
)
from late_spark.bills import files
from late_spark.calendar import Calendar
from late_spark.charges import Charge, over_days
from late_spark.close import budgets, outlook, page, signoff
from late_spark.close import counted as handlers
from late_spark.close.budgets import Budget
from late_spark.close.business import distinct, join, load
from late_spark.close.compare import Close
from late_spark.close.signoff import SignOff
from late_spark.commands import Asked
from late_spark.pricebook import PriceBook
from late_spark.relation import Relation
from late_spark.releases import by_day
from late_spark.spark_errors import explained

_MONTH = re.compile(r"(\d{4})-(0[1-9]|1[0-2])\Z")


@dataclass(frozen=True)
class Done:
    """What was made, or found unchanged."""

    close: Close
    signed: SignOff
    unchanged: bool
    """The folder had the same already, and was left as it is."""
    changes: tuple[str, ...] = ()
    """What is not as it was in the close that was replaced."""


def months(month: str) -> tuple[str, str]:
    """Return the months before and after a month.

    Raises:
        ConfigError: it is no month.
    """
    found = _MONTH.match(month)
    if found is None:
        raise ConfigError(f"{month[:64]!r} is no month such as 2026-10")
    number = int(found[1]) * 12 + int(found[2]) - 1
    before, after = (f"{n // 12:04}-{n % 12 + 1:02}" for n in (number - 1, number + 1))
    return before, after


@explained()
def run(
    asked: Asked, month: str, by: str, budget: Path | None = None, *,
    releases: Path | None = None, business: Sequence[Path] = (), counted: Sequence[str] = (),
    now: Callable[[tzinfo], datetime] = datetime.now,
) -> Done:  # fmt: skip
    """Write the close of a month, or find that it is there already.

    Args:
        budget: a file of budgets (`budgets`).
        releases: a file of releases (`late_spark.releases`).
        business: files of what the business counts (`business`).
        counted: names that handlers count with `ctx.count` (`counted`).

    Raises:
        ConfigError: bad input; or the folder has a close that came out otherwise, with what
            changed. Nothing was written.
    """
    before, after = months(month)
    asked = replace(asked, from_=month, to=after)
    old = signoff.read(asked.out) if asked.out.is_dir() else None
    folder.check(asked.out, force=asked.force or old is not None)
    columns = cost.dimensions(by)
    book, days, billed, measured = commands.paid(asked)
    today = now(days.tz).date()
    if not asked.bills:  # A price book has a price for days to come too.
        billed = [each for each in billed if days.day(each.start_us) <= today]
    if asked.bills and not findings.spans(billed, days):
        raise ConfigError(f"no bill has anything of {month}: give its bill, or another month")
    limit = _budget(asked, book, budget, month, by)
    released = by_day(releases, days.tz) if releases is not None else {}
    metrics = load(business, by_tenant="tenant" in columns)
    earlier = Calendar.of(before, month, days.tz)
    last_billed, no_last = _last(asked, earlier, billed)
    usage, wide, no_usage = _usage(asked, days, earlier if last_billed is not None else None)
    used = commands.work(asked, wide, usage, columns, needed=not asked.bills)
    journal = handlers.load(usage, wide, counted, by_tenant="tenant" in columns)
    metrics = distinct([*metrics, *journal])
    no_last = no_last or no_usage
    assumptions = list(commands.assumed(asked, book, days))

    def report(charges: Sequence[Charge], of: Calendar) -> cost.CostReport:
        mine = [row for row in used if of.days[0] <= row.day <= of.days[-1]]
        return cost.report(
            charges, mine, of, title=f"Close of {month}: {book.name}", currency=book.currency,
            by=columns, assumptions=assumptions, efficiency=measured if of is days else (),
        )  # fmt: skip

    last = report(last_billed, earlier) if last_billed is not None and not no_last else None
    this = report(billed, days)
    known = outlook.known(this, billed, today)
    of_last = [day for day in earlier.days if day not in last.without_bill] if last else []
    look = outlook.make(this, last, known, limit, released)
    spans = [] if "tenant" in columns else outlook.by_number(look)
    named = tenants.behind(usage, wide, spans)
    close = Close(
        month, before, this, last, no_last, limit, outlook.told(look, named), known,
        [(each, join(each, this, known, last, of_last)) for each in metrics], named,
    )  # fmt: skip
    more = [("budgets", budget), ("releases", releases), *(("business", p) for p in business)]
    inputs = _inputs(asked, close, more)
    inputs |= {f"counted {each.name}": signoff.of_counts(each.values) for each in journal}
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch)
        _write(close, made, asked, book, billed, inputs, released)
        signed = signoff.make(month, inputs, made)
        return _kept(asked, close, signed, old, made)


def _budget(asked: Asked, book: PriceBook, path: Path | None, month: str, by: str) -> Budget:
    if path is not None:
        return budgets.load(path, month, by)
    if book.budget_per_month is None:
        return Budget()
    what = f"price book {asked.prices}: budget_per_month"
    return Budget(pricebook.budget(str(book.budget_per_month), what))


def _last(
    asked: Asked, earlier: Calendar, billed: Sequence[Charge]
) -> tuple[Sequence[Charge] | None, str]:
    """Return the charges of the month before, or why there are none."""
    if not asked.bills:
        try:
            first, end = str(earlier.days[0]), asked.from_
            return commands.paid(replace(asked, from_=first, to=end))[2], ""
        except ConfigError as error:
            return None, str(error)
    for charge in billed:
        parts = over_days(charge.amount, charge.start_us, charge.end_us, earlier)
        whole = charge.period is not None and charge.period[0] < earlier.to_us - _HALF_US
        if whole and any(day is not None for day, _ in parts):
            return billed, ""
    return None, "no bill of it was given"


_HALF_US = calendar.DAY_US * 14
"""A bill that begins in the last half of a month is that of the next one, which may correct it."""


def _usage(
    asked: Asked, days: Calendar, earlier: Calendar | None
) -> tuple[Relation, Calendar, str]:
    """Open the usage of both months for one pass, or of the one and say why not of the other."""
    reason, wide = "", days
    if earlier is not None:
        wide = Calendar(earlier.from_us, days.to_us, days.tz)
        try:
            asked.source.check(wide)
        except LateError as error:
            wide, reason = days, str(error)
    return commands.usage(asked, wide), wide, reason


def _inputs(asked: Asked, close: Close, more: Sequence[tuple[str, Path | None]]) -> dict[str, str]:
    found = {f"bill {path}": signoff.of_file(path) for path in files.every(asked.bills)}
    named = [("price book", asked.prices), ("owners", asked.owners), *more]
    named += [("metrics", path) for path in asked.metrics]
    for what, path in named:
        if path is not None:
            found[f"{what} {path}"] = signoff.of_file(path)
    for month, report in ((close.month, close.this), (close.before, close.last)):
        if report is not None:
            found[f"usage of {month}"] = signoff.of_usage(report.used)
    return found


def _write(
    close: Close, made: Path, asked: Asked, book: PriceBook, billed: Sequence[Charge],
    inputs: dict[str, str], released: Mapping[date, str],
) -> None:  # fmt: skip
    from late_spark import anomalies, tables
    from late_spark.close import budget_metrics, owner_pages, workbook

    asked.say(f"writing {asked.out}")
    this = close.this
    commands.write_cost(this, made, asked, book, billed)
    workbook.write(close, made / "cost.xlsx")
    owner_pages.write(close, released, made / owner_pages.FOLDER)
    tables.csv_rows(made / "anomalies.csv", anomalies.COLUMNS,
                    [each.row() for each in close.outlook.unusual])  # fmt: skip
    tables.amount_rows(
        made / "moved.csv", ("queue", "task", close.before, close.month, "by_tasks", "by_rate"),
        close.outlook.moved,
    )  # fmt: skip
    if metrics := budget_metrics.text(close):
        (made / budget_metrics.FILE).write_text(metrics, encoding="utf-8")
    if close.business:
        tables.csv_rows(
            made / "business.csv",
            ("counted", "tenant", "cost", "count", "each", f"each_{close.before}"),
            [(one.metric, one.tenant or "(all)", money.exact(one.amount), float(one.counted),
              _each(one.each()), _each(one.last_each()))
             for _, found in close.business for one in found],
        )  # fmt: skip
    rows = []
    for row in (*close.rows(), close.total()):
        amounts = (row.this, row.last, row.change, row.budget, row.left, row.expected)
        scale = 10 ** (money.DIGITS - this.digits)
        rows.append([*row.name, *("" if each is None else each * scale for each in amounts)])
    columns = (*tables.header(this.by), close.month, close.before, "change", "budget", "left",
               "expected")  # fmt: skip
    tables.amount_rows(made / "comparison.csv", columns, rows)
    tables.amount_rows(made / "lines.csv", ("line", close.month, close.before), [
        (name, mine, "" if last is None else last) for name, mine, last in close.lines()
    ])  # fmt: skip
    tables.amount_rows(
        made / "gaps.csv", ("what", "first", "last", "days", "tasks", "cost", "line"),
        [(each.kind, str(each.first), str(each.last), str(each.days), str(each.tasks), each.amount,
          each.line) for each in this.findings],
    )  # fmt: skip
    tables.amount_rows(
        made / "corrections.csv", ("line", "used_in", "billed_in", "kind", "cost"),
        [(each.line, each.used_in, each.billed_in, each.kind, each.amount)
         for each in (this.bridge.adjustments if this.bridge else ())],
    )  # fmt: skip
    tables.amount_rows(made / "unallocated.csv", ("line", "why", "cost"), this.why_unallocated())
    (made / signoff.PAGE).write_text(page.render(close, inputs), encoding="utf-8")


def _each(units: Fraction | None) -> str:
    return "" if units is None else money.exact(round(units))


def _kept(asked: Asked, close: Close, signed: SignOff, old: SignOff | None, made: Path) -> Done:
    """Put the folder in its place, unless the same is there."""
    changes: list[str] = []
    if old is not None:
        changes = [*signoff.altered(asked.out, old), *signoff.differences(old, signed)]
        if not changes:
            return Done(close, signed, True)
        if not asked.force:
            raise ConfigError(
                f"--out {asked.out} has another close of {old.month}: {'; '.join(changes)}. "
                "--force replaces it"
            )
    about: dict[str, object] = {
        "report": "close", "month": close.month, "time_zone": close.this.calendar.tz.key,
        "currency": close.this.currency, "by": close.this.by, "signoff": signed.hash,
    }  # fmt: skip
    with folder.writing(asked.out, about, force=asked.force) as draft:
        shutil.copytree(made, draft, dirs_exist_ok=True)
    return Done(close, signed, False, tuple(changes))
