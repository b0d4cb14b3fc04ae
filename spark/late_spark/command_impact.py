"""`late report impact`: what a change did, what was unusual, where the month will end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from math import isfinite
from pathlib import Path

from late.errors import ConfigError
from late_spark import (
    anomalies,
    calendar,
    charts,
    commands,
    cost,
    folder,
    forecast,
    impact,
    latency,
    money,
    page,
    pricebook,
    releases,
)
from late_spark.anomalies import Anomaly
from late_spark.calendar import Calendar
from late_spark.commands import Asked
from late_spark.forecast import Forecast
from late_spark.impact import Change, Day
from late_spark.spark_errors import explained
from late_spark.tables import csv_rows

_SHOWN = 20


@dataclass(frozen=True)
class ImpactReport:
    """The content of the page."""

    title: str
    currency: str
    at: date
    mixed: bool
    """The change came in the course of that day, which so is on neither side."""
    days: Mapping[date, Day]
    changes: tuple[Change, ...]
    anomalies: tuple[Anomaly, ...]
    forecast: Forecast
    confidence: float


@explained()
def run(
    asked: Asked,
    at: str | None,
    *,
    queue: str | None = None,
    release: tuple[Path, str] | None = None,
    confidence: float = 0.95,
    budget: str | None = None,
    title: str | None = None,
) -> ImpactReport:
    """Write the impact report.

    Args:
        at: the day or time of the change.
        release: a file of releases and the name of one, instead of `at`. Without either, it is the
            first day on which `queue` had work (a launch).
        queue: only its costs and times; None takes all.
        budget: for the month in which the range ends, before the price book's.

    Raises:
        ConfigError: bad input; nothing was written.
    """
    if not 0.5 <= confidence < 1:
        raise ConfigError(f"--confidence {confidence}: expected 0.5 to 0.999")
    if at is not None and release is not None:
        raise ConfigError("give --at or --release, not both")
    if at is None and release is None and queue is None:
        raise ConfigError(
            "when was the change? Give --at DAY, --release NAME, or --queue for its launch"
        )
    folder.check(asked.out, force=asked.force)
    book, days, billed, _ = commands.paid(asked)
    commands.of_range(asked, days, billed)
    limit = None
    if budget is not None:
        limit = pricebook.budget(budget, "--budget")
    elif book.budget_per_month is not None:
        limit = pricebook.budget(str(book.budget_per_month), f"price book {asked.prices}: budget")
    when = _when(at, release, days)
    launch = when is None
    if when is not None:
        _change(when, days)  # what it refuses, it had better refuse before the usage is read
    usage = commands.usage(asked, days)
    used = commands.work(asked, days, usage)
    if queue is not None and all(row.key.queue != queue for row in used):
        raise ConfigError(f"--queue {queue} had no work in the range")
    if when is None:
        first = min(row.day for row in used if row.key.queue == queue)
        when = calendar.midnight(first, days.tz)
    day, mixed = _change(when, days)
    # Of a launch, the change is what it did to everything: nothing was there before.
    about = None if launch else queue
    made = cost.report(billed, used, days, title="", currency=book.currency, by=("queue",))
    asked.say("adding up how long tasks waited and ran")
    times = latency.collect(latency.daily(usage, days, about))
    listed = impact.by_day(made.costs, used, days.days, about, times)
    everything = impact.by_day(made.costs, used, days.days)
    what = f"the launch of {queue}" if launch else f"the change of {day}"
    if release is not None:
        what = f"release {release[1]}"
    found = ImpactReport(
        title=title or f"What {what} did" + (f" to {about}" if about else ""),
        currency=book.currency,
        at=day,
        mixed=mixed,
        days=listed,
        changes=tuple(impact.changes(listed, day, confidence, mixed=mixed)),
        anomalies=tuple(anomalies.find(made.costs, used, _billed(made))),
        forecast=forecast.month(
            {day: everything[day].cost for day in _billed(made)},
            None if limit is None else limit / money.ONE,
            confidence,
        ),
        confidence=confidence,
    )
    _write(found, asked)
    return found


def _billed(made: cost.CostReport) -> list[date]:
    """Return the days that the bill covers; all where it covers none."""
    found = [day for day in made.calendar.days if day not in made.without_bill]
    return found or list(made.calendar.days)


def _when(at: str | None, release: tuple[Path, str] | None, days: Calendar) -> int | None:
    """The moment of the change; None for a launch, which the usage tells. Raises `ConfigError`."""
    if release is not None:
        when = releases.moment(*release, days.tz)
    elif at is not None:
        when = calendar.moment(at, "--at", days.tz)
    else:
        return None
    if not days.from_us <= when < days.to_us:
        raise ConfigError(f"the change, at {calendar.iso(when)}, is not in the range")
    return when


def _change(when: int, days: Calendar) -> tuple[date, bool]:
    """The day of the change, and whether it came in the course of it. Raises `ConfigError`."""
    day = days.day(when)
    mixed = calendar.midnight(day, days.tz) != when
    if day == days.days[0]:
        raise ConfigError(f"the change of {day} leaves no day before it in the range, which begins "
                          f"{days.days[0]}")  # fmt: skip
    if mixed and day == days.days[-1]:
        raise ConfigError(f"the change of {day} leaves no whole day after it in the range")
    return day, mixed


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
                (c.measure, _unit(c, found), c.before if c.days_before else "",
                 c.after if c.days_after else "", c.difference.estimate,
                 _bound(c.difference.low), _bound(c.difference.high), c.days_before, c.days_after,
                 c.verdict())
                for c in found.changes
            ],
        )  # fmt: skip
        csv_rows(
            draft / "anomalies.csv",
            anomalies.COLUMNS,
            [each.row() for each in found.anomalies],
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
    """A figure for people: no decimals where nobody reads them, no minus before a zero."""
    if not isfinite(value):
        return "unknown"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{round(value, 2) + 0.0:,.2f}"


def sides(change: Change) -> tuple[str, str]:
    """Before and after, for people; `-` where there was nothing to measure."""
    return (
        shown(change.before) if change.days_before else "-",
        shown(change.after) if change.days_after else "-",
    )


def html(found: ImpactReport) -> str:
    """The page."""
    days = sorted(found.days)
    rows = [
        (c.measure, _unit(c, found), *sides(c),
         "" if c.relative is None else f"{c.relative:+.1%}",
         f"{shown(c.difference.low)} to {shown(c.difference.high)}", c.verdict())
        for c in found.changes
    ]  # fmt: skip
    columns = ("measure", "unit", "before>", "after>", "change>",
               f"difference, {found.confidence:.0%} interval>", "so it is")  # fmt: skip
    count = found.changes[0]
    on = f"{found.at}, which is on neither side," if found.mixed else f"{found.at}"
    body = [
        page.heading("Before and after"),
        page.paragraph(
            f"{count.days_before} days before {on} and {count.days_after} from "
            f"{'the next day' if found.mixed else 'it'} on, whole weeks where there are any. A "
            "difference is called higher or lower only where its interval does not include zero: "
            "other days differ that much by themselves. Percentiles are the mean of the days' own."
        ),
        page.table(columns, rows), *_charts(found), *_unusual(found), *_month(found),
    ]  # fmt: skip
    return page.page(found.title, f"{days[0]} to {days[-1]}, in {found.currency}", body)


def _charts(found: ImpactReport) -> list[str]:
    days = sorted(found.days)
    labels = [str(day)[5:] for day in days]
    mark = days.index(found.at) + (0.5 if found.mixed else 0.0)
    cost = [found.days[day].cost for day in days]
    parts = [
        page.heading("Cost per day"),
        charts.lines(labels, {"cost": cost}, found.currency, "Cost per day", mark=mark),
    ]
    for kind, title in (("waiting", "Waiting time"), ("busy", "Running time")):
        series = {
            f"p{percent}": [getattr(found.days[day], f"{kind}_p{percent}_ms") for day in days]
            for percent in latency.QUANTILES
        }
        if any(value is not None for values in series.values() for value in values):
            parts += [
                page.heading(title),
                charts.lines(labels, series, "ms", title, mark=mark),
                charts.legend(list(series)),
            ]
    return parts


def _unusual(found: ImpactReport) -> list[str]:
    parts = [page.heading("Unusual days")]
    if not found.anomalies:
        return [
            *parts,
            page.paragraph("None: no task cost far more or less than usual on any day."),
        ]
    rows = [(each.said(found.currency),) for each in found.anomalies[:_SHOWN]]
    more = len(found.anomalies) - len(rows)
    if more:
        rows.append((f"{more} more, in anomalies.csv",))
    return [*parts, page.table(("what",), rows)]


def _month(found: ImpactReport) -> list[str]:
    made = found.forecast
    pairs = [
        (f"spent in {made.month}, {made.days_seen} days", f"{made.so_far:,.2f}"),
        (f"expected at its end, {made.days_left} days later", f"{made.end.estimate:,.2f}"),
        (f"{found.confidence:.0%} interval", f"{shown(made.end.low)} to {shown(made.end.high)}"),
        ("budget", "-" if made.budget is None else f"{made.budget:,.2f}"),
    ]
    return [page.heading("To the end of the month"), page.tiles(pairs),
            page.paragraph(f"That is: {made.verdict()}.{unseen(found)}")]  # fmt: skip


def unseen(found: ImpactReport) -> str:
    """Name the guess of the forecast about the days before the range; "" for none."""
    days = found.forecast.days_before
    if not days:
        return ""
    what = "day is" if days == 1 else f"{days} days are"
    return f" The month's first {what} not in the range, and expected like those to come."
