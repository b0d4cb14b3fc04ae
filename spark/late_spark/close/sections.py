"""Sections of a close's page beside the sums: the days to come, and what was unlike other days."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from late_spark import charts, money, page
from late_spark.close.business import ALL, Each
from late_spark.close.compare import Close
from late_spark.statistics import Interval

_SHOWN = 12


def ahead(close: Close) -> list[str]:
    """Where the month will end, if it still runs."""
    end = close.outlook.end
    if end is None:
        return []
    days = close.this.calendar.days
    costs = close.day_costs()
    labels = [day.isoformat()[5:] for day in days]
    series = {
        "known": [costs.get(day) for day in days],
        "expected": [close.outlook.daily.get(day) for day in days],
    }
    interval = _interval(close, end.end)
    tiles = [
        (f"known, {end.days_seen} days", shown(close, end.so_far)),
        (f"expected at its end, {end.days_left + end.days_before} days more",
         shown(close, end.end.estimate)),
        (f"{end.end.confidence:.0%} interval", interval),
        ("budget", "-" if end.budget is None else shown(close, end.budget)),
    ]  # fmt: skip
    return [
        page.heading("Where the month will end"), page.tiles(tiles),
        page.paragraph(f"That is: {end.verdict()}. Days that the bill does not cover yet are "
                       "expected by the trend and the weekdays of the last five weeks."),
        charts.lines(labels, series, close.this.currency, "Cost per day, known and expected"),
        charts.legend(list(series)),
    ]  # fmt: skip


def unusual(close: Close) -> list[str]:
    """Days on which a task cost far more or less than usual, and why."""
    found = close.outlook.unusual
    made = [page.heading("Unusual days")]
    if not found:
        return [*made, page.paragraph("None: every task cost about what it does on such a day.")]
    rows = [
        (str(a.first) if a.first == a.last else f"{a.first} to {a.last.isoformat()[5:]}",
         a.task, _signed(close, a.excess), shown(close, a.usual), a.kind, a.cause)
        for a in found[:_SHOWN]
    ]  # fmt: skip
    columns = ("when", "task", "beside usual>", "usual>", "what", "why")
    return [*made, page.table(columns, rows), *_more(len(found) - _SHOWN, "anomalies.csv")]


def moved(close: Close) -> list[str]:
    """What each task's change is made of. The cents of a row add up."""
    found, digits, running = close.outlook.moved, close.this.digits, close.outlook.end
    if not found or close.last is None:
        return []
    totals = (None, None) if running else (close.last.borne_cents, close.this.borne_cents)
    before = money.in_minor([each.last for each in found], digits, totals[0])
    after = money.in_minor([each.this for each in found], digits, totals[1])

    def cell(cents: int) -> str:
        return f"{'+' if cents > 0 else ''}{money.shown(cents, digits)}"

    rows = []
    for each, was, now in zip(found[:_SHOWN], before, after, strict=False):
        by_tasks = close.this.cents(each.by_tasks)
        rows.append((
            f"{each.queue}/{each.name}", money.shown(was, digits), money.shown(now, digits),
            cell(now - was), cell(by_tasks), cell(now - was - by_tasks),
        ))  # fmt: skip
    columns = ("task", f"{close.before}>", f"{close.month}>", "change>", "by number of tasks>",
               "by cost of each>")  # fmt: skip
    title = "What moved the cost"
    if running:
        title += f", {len(close.days)} days of each month"
    return [page.heading(title), page.table(columns, rows),
            *_more(len(found) - _SHOWN, "moved.csv")]  # fmt: skip


def released(close: Close) -> list[str]:
    """What each release of the month did."""
    rows = []
    for each in close.outlook.released:
        for change in each.changes:
            relative = "" if change.relative is None else f"{change.relative:+.1%}"
            of = ((change.before, change.days_before), (change.after, change.days_after))
            sides = [shown(close, value) if days else "-" for value, days in of]
            rows.append((each.name, str(each.day), change.measure, *sides, relative,
                         change.verdict()))  # fmt: skip
    if not rows:
        return []
    columns = ("release", "on", "measure", "before>", "after>", "change>", "so it is")
    return [
        page.heading("Releases"), page.table(columns, rows),
        page.paragraph("Up to two weeks on each side, without the day itself. Higher or lower is "
                       "said only where other days do not differ as much by themselves."),
    ]  # fmt: skip


def business(close: Close) -> list[str]:
    """The cost of what the business counts."""
    made = []
    for metric, found in close.business:
        whole = found[0]
        days = sorted(whole.daily)
        made += [page.heading(f"Cost for each: {metric.name}"), _business_table(close, found)]
        if days:
            made.append(charts.lines(
                [day.isoformat()[5:] for day in days],
                {metric.name: [whole.daily[day] for day in days]},
                close.this.currency, f"Cost for each, by day: {metric.name}",
            ))  # fmt: skip
    if made:
        made.append(page.paragraph(
            "All of the month's cost, borne or not, of days with a bill and a count; of a tenant, "
            "what it bears. The trend is that of the last five weeks, with its 95 % interval."
        ))  # fmt: skip
    return made


def _business_table(close: Close, found: Sequence[Each]) -> str:
    rows = []
    for each in found[: _SHOWN + 1]:
        now, then = each.each(), each.last_each()
        change = f"{float(now / then) - 1:+.1%}" if now is not None and then else ""
        rows.append((
            "all" if each.tenant == ALL else each.tenant, f"{float(each.counted):,.0f}",
            money.shown(close.this.cents(each.amount), close.this.digits),
            *("-" if one is None else fine(float(one) / money.ONE) for one in (now, then)),
            change, _trend(each.trend),
        ))  # fmt: skip
    name = found[0].metric
    columns = ("tenant", f"{name}>", f"{close.this.currency}>", "each>",
               f"each in {close.before}>", "change>", "trend in a week>")  # fmt: skip
    more = _more(len(found) - 1 - _SHOWN, "business.csv")
    return page.table(columns, rows) + "".join(more)


def _trend(found: Interval | None) -> str:
    if found is None or not isfinite(found.high):
        return "-"
    if not found.clear:
        return "no clear trend"
    return f"{found.estimate:+.1%} ({found.low:+.1%} to {found.high:+.1%})"


def fine(value: float) -> str:
    """Four digits that say something, however small: `0.001234`."""
    return f"{value:,.2f}" if value >= 100 else f"{value:.4g}" if value >= 1e-4 else f"{value:.2e}"


def shown(close: Close, value: float) -> str:
    """An estimate in the currency's smallest unit."""
    return money.shown(close.cents(value), close.this.digits) if isfinite(value) else "unknown"


def _signed(close: Close, value: float) -> str:
    return f"{'+' if close.cents(value) > 0 else ''}{shown(close, value)}"


def _interval(close: Close, of: Interval) -> str:
    if not isfinite(of.high):
        return "unknown: too few days"
    return f"{shown(close, of.low)} to {shown(close, of.high)}"


def _more(count: int, file: str) -> list[str]:
    return [page.paragraph(f"{count:,} more are in {file}.")] if count > 0 else []
