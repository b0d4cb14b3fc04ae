"""`late report impact`: what a change did, what was unusual, where the month will end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from math import isfinite

from late.errors import ConfigError
from late_spark import calendar, charges, charts, commands, cost, folder, impact, money, page
from late_spark.calendar import Calendar
from late_spark.commands import Asked
from late_spark.impact import Anomaly, Change, Day, Forecast
from late_spark.tables import csv_rows

_SHOWN = 20


@dataclass(frozen=True)
class ImpactReport:
    """What the page shows."""

    title: str
    currency: str
    at: date
    days: Mapping[date, Day]
    changes: tuple[Change, ...]
    anomalies: tuple[Anomaly, ...]
    forecast: Forecast
    confidence: float


def run(
    asked: Asked,
    at: str | None,
    *,
    queue: str | None = None,
    confidence: float = 0.95,
    budget: str | None = None,
    title: str | None = None,
) -> ImpactReport:
    """Write the impact report.

    Args:
        at: the day of the change; None takes the first day on which `queue` had work (a launch).
        queue: only its costs and times; None takes all.
        budget: for the month in which the range ends, before the price book's.

    Raises:
        ConfigError: bad input; nothing was written.
    """
    if not 0.5 <= confidence < 1:
        raise ConfigError(f"--confidence {confidence}: expected 0.5 to 0.999")
    if at is None and queue is None:
        raise ConfigError("when was the change? Give --at DAY, or --queue for its launch")
    folder.check(asked.out, force=asked.force)
    book, days, billed, _ = commands.paid(asked)
    limit = charges.amount(book.budget_per_month)
    if budget is not None:
        limit = money.units(budget, "--budget")
    # Of a launch, the change is what it did to everything: nothing was there before.
    launch = at is None
    used = commands.work(asked, days)
    if queue is not None and all(row.key.queue != queue for row in used):
        raise ConfigError(f"--queue {queue} had no work in the range")
    day = _day(at, days) if at is not None else min(r.day for r in used if r.key.queue == queue)
    if not days.days[0] < day <= days.days[-1]:
        raise ConfigError(f"--at {day} leaves no day before it in the range, which begins "
                          f"{days.days[0]}")  # fmt: skip
    made = cost.report(billed, used, days, title="", currency=book.currency, by=("queue",))
    about = None if launch else queue
    listed = impact.by_day(made.costs, used, days.days, about)
    everything = impact.by_day(made.costs, used, days.days)
    what = f"the launch of {queue}" if launch else f"the change of {day}"
    found = ImpactReport(
        title=title or f"What {what} did" + (f" to {about}" if about else ""),
        currency=book.currency,
        at=day,
        days=listed,
        changes=tuple(impact.changes(listed, day, confidence)),
        anomalies=tuple(impact.anomalies(made.costs, used, days.days)),
        forecast=impact.forecast(
            everything, None if limit is None else limit / money.ONE, confidence
        ),
        confidence=confidence,
    )
    _write(found, asked)
    return found


def _day(text: str, days: Calendar) -> date:
    at_us = calendar.moment(text, "--at", days.tz)
    return days.day(at_us)


def _write(found: ImpactReport, asked: Asked) -> None:
    about: dict[str, object] = {
        "report": "impact", "at": str(found.at), "currency": found.currency,
        "confidence": found.confidence, "forecast": found.forecast._asdict(),
    }  # fmt: skip
    asked.say(f"writing {asked.out}")
    with folder.writing(asked.out, about, force=asked.force) as draft:
        csv_rows(
            draft / "changes.csv",
            ("measure", "unit", "before", "after", "difference", "low", "high", "days_before",
             "days_after", "verdict"),
            [
                (c.measure, _unit(c, found), c.before, c.after, c.difference.estimate,
                 _bound(c.difference.low), _bound(c.difference.high), c.days_before, c.days_after,
                 c.verdict())
                for c in found.changes
            ],
        )  # fmt: skip
        csv_rows(
            draft / "anomalies.csv",
            ("day", "queue", "task", "kind", "cost", "usual", "excess"),
            [(str(a.day), a.queue, a.name, a.kind, a.cost, a.usual, a.excess)
             for a in found.anomalies],
        )  # fmt: skip
        csv_rows(
            draft / "days.csv",
            ("day", *Day._fields),
            [(str(day), *sums) for day, sums in sorted(found.days.items())],
        )
        (draft / "index.html").write_text(html(found), encoding="utf-8")


def _unit(change: Change, found: ImpactReport) -> str:
    return found.currency if change.unit == "money" else change.unit


def _bound(value: float) -> object:
    """An infinite bound is an empty cell: there were too few days."""
    return value if isfinite(value) else ""


def shown(value: float) -> str:
    return f"{value:,.2f}" if isfinite(value) else "unknown"


def html(found: ImpactReport) -> str:
    """The page."""
    days = sorted(found.days)
    rows = [
        (c.measure, _unit(c, found), f"{c.before:,.2f}", f"{c.after:,.2f}",
         "" if c.relative is None else f"{c.relative:+.1%}",
         f"{shown(c.difference.low)} to {shown(c.difference.high)}", c.verdict())
        for c in found.changes
    ]  # fmt: skip
    columns = ("measure", "unit", "before>", "after>", "change>",
               f"{found.confidence:.0%} interval of the difference>", "so it is")  # fmt: skip
    count = found.changes[0]
    labels = [str(day)[5:] for day in days]
    picture = charts.lines(
        labels, {"cost": [found.days[day].cost for day in days]}, found.currency, "Cost per day",
        mark=days.index(found.at),
    )  # fmt: skip
    body = [
        page.heading("Before and after"),
        page.paragraph(
            f"{count.days_before} days before {found.at} and {count.days_after} from it on, whole "
            "weeks where there are any. A difference is called higher or lower only where its "
            "interval does not include zero: other days differ that much by themselves."
        ),
        page.table(columns, rows), picture, *_unusual(found), *_month(found),
    ]  # fmt: skip
    return page.page(found.title, f"{days[0]} to {days[-1]}, in {found.currency}", body)


def _unusual(found: ImpactReport) -> list[str]:
    parts = [page.heading("Unusual days")]
    if not found.anomalies:
        return [*parts, page.paragraph("None: no day of a task cost far more than its median day.")]
    rows = [(each.said(found.currency),) for each in found.anomalies[:_SHOWN]]
    more = len(found.anomalies) - len(rows)
    if more:
        rows.append((f"{more} more, in anomalies.csv",))
    return [*parts, page.table(("what",), rows)]


def _month(found: ImpactReport) -> list[str]:
    made = found.forecast
    pairs = [
        (f"spent in {made.month}, {made.days_seen} days", f"{made.so_far:,.2f}"),
        (f"expected at its end, {made.days_left} days from now", f"{made.end.estimate:,.2f}"),
        (f"{found.confidence:.0%} interval", f"{shown(made.end.low)} to {shown(made.end.high)}"),
        ("budget", "-" if made.budget is None else f"{made.budget:,.2f}"),
    ]
    return [page.heading("To the end of the month"), page.tiles(pairs),
            page.paragraph(f"That is: {made.verdict()}.")]  # fmt: skip
