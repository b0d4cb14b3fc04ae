"""Reports as one HTML page that needs nothing else: no network, no script, good on paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from late_spark import bridge, charts, money
from late_spark.cost import CostReport
from late_spark.tables import header

STYLE = """
:root{color-scheme:light dark;--ink:#1a1a1a;--soft:#555;--rule:#999;--line:#e4e4e4;--paper:#fff;
--s0:#1f5fa8;--s1:#e07b39;--s2:#3a8f5c;--s3:#b5476b;--s4:#7a63b8;--s5:#b59a2c;--s6:#3f9bb0;
--s7:#8a8a8a}
@media screen and (prefers-color-scheme:dark){:root{--ink:#e6e6e6;--soft:#a9a9a9;--rule:#777;
--line:#333;--paper:#161616;--s0:#5b9bdf;--s1:#ee9a62;--s2:#5fb985;--s3:#dc7a9b;--s4:#a692e0;
--s5:#d4bc58;--s6:#69bfd2;--s7:#9a9a9a}}
body{font:15px/1.45 system-ui,"Segoe UI",Helvetica,Arial,sans-serif;color:var(--ink);
background:var(--paper);max-width:820px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem;line-height:1.25;margin:0}h2{font-size:1.15rem;margin:2rem 0 .5rem}
p.sub{color:var(--soft);margin:.2rem 0 1.2rem}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th{text-align:left;vertical-align:bottom;border-bottom:2px solid var(--rule);font-weight:600}
td,th{padding:.25rem .9rem .25rem 0}td:last-child,th:last-child{padding-right:0}
td{vertical-align:top}
td{border-bottom:1px solid var(--line);overflow-wrap:break-word}td:first-child{min-width:6rem}
.n{text-align:right}td.n,td.s{white-space:nowrap}td.l{min-width:13rem}p{overflow-wrap:anywhere}
tr.t td{font-weight:600;border-top:2px solid var(--rule)}
.tiles{display:flex;gap:.8rem;flex-wrap:wrap}
.tiles div{flex:1 1 8.5rem;box-sizing:border-box;border:1px solid var(--line);border-radius:6px;
padding:.6rem .8rem}.tiles b{display:block;font-size:1.25rem}
.tiles span{color:var(--soft);font-size:.85rem}
svg{width:100%;min-width:34rem;height:auto;display:block}
svg text{font:11px system-ui,sans-serif;fill:var(--soft)}
svg .r{text-anchor:end}svg .m{text-anchor:middle}svg .g{stroke:var(--line)}
svg .k{stroke:var(--ink);stroke-dasharray:4 3}
svg rect{fill:var(--c)}svg path{stroke:var(--c);stroke-width:2;stroke-linecap:round;fill:none}
.warn{border-left:4px solid var(--s3);padding:.1rem .8rem;margin:.4rem 0;font-weight:600}
.legend{margin:.3rem 0}.legend span{display:inline-block;margin-right:1rem}
.legend i{display:inline-block;width:.8rem;height:.8rem;margin-right:.35rem;border-radius:2px;
background:var(--c)}
.s0{--c:var(--s0)}.s1{--c:var(--s1)}.s2{--c:var(--s2)}.s3{--c:var(--s3)}.s4{--c:var(--s4)}
.s5{--c:var(--s5)}.s6{--c:var(--s6)}.s7{--c:var(--s7)}
svg rect,svg path,.legend i{-webkit-print-color-adjust:exact;print-color-adjust:exact}
@media print{body{max-width:none;margin:0;padding:0;font-size:10pt}h2{break-after:avoid}
.wide{overflow:visible}svg{min-width:0}td,th{padding-right:.5rem}
tr,svg,.tiles{break-inside:avoid}tr.t{break-before:avoid}thead{display:table-header-group}}
@page{margin:16mm}
"""
"""Dark where the reader's screen is; paper is always white."""
_ROWS_MAX = 40
_SHORT = 16
_LONG = 40


def page(title: str, subtitle: str, body: Iterable[str]) -> str:
    """A whole page; title and subtitle are texts, the body is markup."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>"
        f'<h1>{escape(title)}</h1><p class="sub">{escape(subtitle)}</p>'
        f"{''.join(body)}</body></html>\n"
    )


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], total: Sequence[object] | None = None
) -> str:
    """A table; titles that end in `>` are of numbers and aligned to the right."""
    right = [each.endswith(">") for each in columns]

    def cell(text: str, number: bool) -> str:
        # What is short stays in one line; the table is scrolled on a small screen.
        kind = " class=n" if number else " class=s" if len(text) <= _SHORT else ""
        kind = " class=l" if not number and len(text) > _LONG else kind
        return f"<td{kind}>{escape(text)}</td>"

    def line(cells: Sequence[object], mark: str = "") -> str:
        made = (cell(str(each), end) for each, end in zip(cells, right, strict=True))
        return f"<tr{mark}>{''.join(made)}</tr>"

    head = "".join(
        f"<th{' class=n' if end else ''}>{escape(name.rstrip('>'))}</th>"
        for name, end in zip(columns, right, strict=True)
    )
    body = "".join(line(row) for row in rows)
    foot = line(total, " class=t") if total is not None else ""
    made = f"<table><thead><tr>{head}</tr></thead><tbody>{body}{foot}</tbody></table>"
    return f'<div class="wide">{made}</div>'


def tiles(pairs: Iterable[tuple[str, str]]) -> str:
    """Few large figures: (what, value)."""
    boxes = (f"<div><b>{escape(value)}</b><span>{escape(what)}</span></div>"
             for what, value in pairs)  # fmt: skip
    return f'<div class="tiles">{"".join(boxes)}</div>'


def heading(text: str) -> str:
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def warning(text: str) -> str:
    """What is to be read before the figures."""
    return f'<p class="warn">{escape(text)}</p>'


def cost(report: CostReport) -> str:
    """The cost report's page."""
    days = report.calendar.days
    subtitle = f"{days[0]} to {days[-1]}, days of {report.calendar.tz.key}, in {report.currency}"
    by = " and ".join(header(report.by))
    body = [
        *map(warning, report.warnings()), _figures(report),
        heading(f"Cost per day by {header([report.charted])[0]}"), chart(report),
        heading(f"Cost by {by}"), _rows(report), heading("What it was paid for"), _lines(report),
        heading("What nobody bears, and why"), why(report), *bridged(report),
        *_efficiency(report),
        heading("Assumptions"), table(("what", "how"), report.assumptions),
    ]  # fmt: skip
    return page(report.title, subtitle, body)


def _shown(report: CostReport, cents: int) -> str:
    return money.shown(cents, report.digits)


def _figures(report: CostReport) -> str:
    tasks = sum(row.ended for row in report.used)
    # Of what somebody bears: a bill also has what is not this deployment's.
    of = report.covered()
    per_million = report.cents(of.amount * 1_000_000 // of.tasks) if of.tasks else None
    restated = ", restated" if report.bridge is not None and report.bridge.restated else ""
    return tiles(
        [
            (f"{report.currency} in the range{restated}", _shown(report, report.total_cents)),
            ("of it unallocated", _shown(report, report.unallocated_cents)),
            ("tasks ended", f"{tasks:,}"),
            (f"{report.currency} per million tasks, of what is borne",
             "-" if per_million is None else _shown(report, per_million)),
        ]
    )  # fmt: skip


def chart(report: CostReport) -> str:
    """Show the cost of each day, by who bears it."""
    series = charted(report)
    scale: int = 10**report.digits
    days = [day.isoformat()[5:] for day in report.calendar.days]
    shown = {name: [cents / scale for cents in values] for name, values in series.items()}
    picture = charts.stacked(days, shown, report.currency, "Cost per day")
    return picture + charts.legend(list(shown))


def charted(report: CostReport) -> dict[str, list[int]]:
    """Cents of each bar by day: those of a name add up to what the tables have for it, and all of
    them to the total."""
    by_day = report.by_day()
    names = report.charted_cents()
    top = sorted(names, key=lambda name: (-names[name], name))
    left = dict.fromkeys(report.calendar.days, 0)
    for each in report.unallocated:
        left[each.day] += each.amount
    some = any(left.values())
    top = top[: charts.SERIES - 1 - some]
    rest = [name for name in names if name not in top]

    def rounded(units: list[int], cents: int) -> list[int]:
        return money.in_minor(units, report.digits, cents)

    days = report.calendar.days
    series = {
        name: rounded([by_day[day].get(name, 0) for day in days], names[name]) for name in top
    }
    if rest:
        units = [sum(by_day[day].get(name, 0) for name in rest) for day in days]
        series[f"{len(rest)} others"] = rounded(units, sum(names[name] for name in rest))
    if some:
        series["(unallocated)"] = rounded(list(left.values()), report.unallocated_cents)
    return series


def _rows(report: CostReport) -> str:
    columns = (*header(report.by), f"{report.currency}>", "share>", "tasks>", "per million>",
               "retries>", "cost of retries>")  # fmt: skip
    columns = columns if report.counted else columns[: len(report.by) + 2]
    total = report.total_cents
    empty = [""] * (len(report.by) - 1)

    def share(cents: int) -> str:
        return f"{cents / total:.1%}" if total else ""

    found: list[Sequence[object]] = []
    for row in report.rows[:_ROWS_MAX]:
        each = row.per_million()
        found.append((
            *row.by, _shown(report, row.cents), share(row.cents), f"{row.tasks:,}",
            "" if each is None else _shown(report, report.cents(each)), f"{row.retries:,}",
            _shown(report, report.cents(row.of_retries())),
        ))  # fmt: skip
    more = report.rows[_ROWS_MAX:]
    if more:
        cents = sum(row.cents for row in more)
        name = f"{len(more)} more (all are in costs.csv)"
        found.append((name, *empty, _shown(report, cents), share(cents), "", "", "", ""))
    left = report.unallocated_cents
    found.append(("(unallocated)", *empty, _shown(report, left), share(left), "", "", "", ""))
    found.append(("Total", *empty, _shown(report, total), "", "", "", "", ""))
    *rows, last = (row[: len(columns)] for row in found)
    return table(columns, rows, last)


def _lines(report: CostReport) -> str:
    rows = report.by_line()
    amounts = [amount for _, _, amount in rows]
    cents = money.in_minor(amounts, report.digits, report.borne_cents)
    shown = ((line, how, _shown(report, c)) for (line, how, _), c in zip(rows, cents, strict=True))
    total = ("Total borne", "", _shown(report, sum(cents)))
    return table(("line", "divided by", f"{report.currency}>"), shown, total)


def why(report: CostReport) -> str:
    """Show what nobody bears, with the reasons."""
    rows = report.why_unallocated()
    if not rows and not report.outside:
        return paragraph("Nothing: every cent in the range is borne by somebody.")
    amounts = [amount for _, _, amount in rows]
    cents = money.in_minor(amounts, report.digits, report.unallocated_cents)
    shown = [(line, why, _shown(report, c)) for (line, why, _), c in zip(rows, cents, strict=True)]
    note = ""
    if report.outside:
        note = paragraph(
            f"{_shown(report, report.outside_cents)} {report.currency} of the bill of "
            f"{_shown(report, report.cents(report.totals.bill))} lie outside of the range."
        )
    total = ("Total unallocated", "", _shown(report, report.unallocated_cents))
    return table(("line", "why", f"{report.currency}>"), shown, total) + note


def bridged(report: CostReport) -> list[str]:
    """Show the steps from the bill to what was used, and what it says about earlier times."""
    found = report.bridge
    if found is None:
        return []
    steps = found.steps()
    cents = money.in_minor(list(steps.values()), report.digits, report.total_cents)
    rows = [
        (bridge.STEPS[step], _shown(report, each))
        for (step, amount), each in zip(steps.items(), cents, strict=True)
        if amount or step == "billed"
    ]
    total = ("Used in the range: what this report divides", _shown(report, report.total_cents))
    made = [
        heading("From the bill to what was used"),
        table(("step", f"{report.currency}>"), rows, total),
    ]
    if found.restated:
        changed = report.cents(found.restated)
        made.insert(0, warning(
            f"Restated: {_shown(report, report.total_cents - changed)} {report.currency} were "
            f"billed at first, {_shown(report, changed)} came with later bills."
        ))  # fmt: skip
    if found.adjustments:
        made.append(heading("Adjustments to earlier months, by line"))
        made.append(table(
            ("line", "used in", "billed in", "kind", f"{report.currency}>"),
            [(each.line, each.used_in, each.billed_in, each.kind,
              _shown(report, report.cents(each.amount))) for each in found.adjustments],
        ))  # fmt: skip
    return made


def _efficiency(report: CostReport) -> list[str]:
    if not report.efficiency:
        return []
    rows = [
        (each.name, each.region or "all", f"{each.value:,.2f}", f"{each.best:,.2f}",
         "" if each.of_best is None else f"{each.of_best:.0%}", each.basis)
        for each in report.efficiency
    ]  # fmt: skip
    columns = ("ratio", "region", "measured>", "best feasible>", "of the best>", "best is")
    return [heading("How well the database is used"), table(columns, rows)]
