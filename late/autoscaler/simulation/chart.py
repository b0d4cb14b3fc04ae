"""A page that shows a simulation: self-contained HTML with inline SVG, for screen and print.

Pure. Each line has at most `POINTS` points; a point is the mean of the minutes it stands for. The
CPU has a second line of the highest values, so that a peak of one minute does not disappear.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from late.autoscaler.policy import Policy
from late.autoscaler.simulation import baselines as rules
from late.autoscaler.simulation.simulator import Run
from late.autoscaler.simulation.traces import DAY, Trace

POINTS = 1200
WIDTH, HEIGHT, LEFT = 1000, 180, 46

_STYLE = """
body{font:14px/1.45 system-ui,sans-serif;max-width:1060px;margin:2em auto;padding:0 1em;
  color:#1d1d1f;background:#fff}
h1{font-size:1.4em}h2{font-size:1.1em;margin:1.6em 0 .3em}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.25em .8em;text-align:right;border-bottom:1px solid #ddd}
th:first-child,td:first-child{text-align:left}
.wide{overflow-x:auto}svg{width:100%;min-width:640px;height:auto;display:block}
text{font:11px system-ui,sans-serif;fill:#555}
.grid{stroke:#e4e4e4}.load{fill:#e8eef7}.size{stroke:#1b5fc1;fill:none;stroke-width:1.4}
.best{stroke:#999;fill:none;stroke-dasharray:3 3}.cpu{stroke:#b3541e;fill:none}
.high{stroke:#b3541e;fill:none;opacity:.35}.band{fill:#dff2df}
@media print{body{margin:0}svg{min-width:0}h2{break-after:avoid}svg{break-inside:avoid}}
"""


def page(trace: Trace, policy: Policy, runs: Sequence[Run]) -> str:
    """Return the page: a table with the figures of every run, then size and CPU of each."""
    title = escape(f"late autoscale simulate: {trace.name}")
    body = "".join(_run(trace, policy, run) for run in runs)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<style>{_STYLE}</style><h1>{title}</h1>"
        f"<p>{len(trace.load) / DAY:.1f} days, one step a minute. Target {policy.target:g} % CPU, "
        f"{policy.min} to {policy.max} {policy.units.replace('_', ' ')}.</p>"
        f"{_table(runs)}{body}</html>\n"
    )


COLUMNS = (
    "rule", "CPU ±10", "CPU > 90", "longest wait", "steps", "turns", "cost/peak",
    "cost/clairvoyant",
)  # fmt: skip


def cells(run: Run) -> tuple[str, ...]:
    """Format the figures of a run, in the order of `COLUMNS`."""
    f = run.figures
    return (
        run.name, f"{f.within:.1%}", f"{f.hot:.2%}", f"{f.wait_max_s:,.0f} s", str(f.steps),
        str(f.turns), f"{f.cost_peak:.1%}", f"{f.cost_clairvoyant:.3f}",
    )  # fmt: skip


def _table(runs: Sequence[Run]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in COLUMNS)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells(run)) + "</tr>"
        for run in runs
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<div class="wide">{table}</div>'


def _run(trace: Trace, policy: Policy, run: Run) -> str:
    best = [rules.clairvoyant(policy, load) for load in trace.load]
    needed = [load / policy.target * 100 * policy.node for load in trace.load]
    highest = max(*run.size, *best, 1)
    days = len(trace.load) / DAY
    size = (
        _frame(days, highest, "", f"{run.name}: size over days")
        + f'<polygon class="load" points="{LEFT},{HEIGHT} {_points(needed, highest)} '
        f'{WIDTH},{HEIGHT}"/>'
        + f'<polyline class="best" points="{_points(best, highest)}"/>'
        + f'<polyline class="size" points="{_points(run.size, highest)}"/></svg>'
    )
    top, bottom = _y(policy.target + 10, 100), _y(policy.target - 10, 100)
    cpu = (
        _frame(days, 100, "%", f"{run.name}: CPU over days")
        + f'<rect class="band" x="{LEFT}" y="{top:.1f}" width="{WIDTH - LEFT}" '
        f'height="{bottom - top:.1f}"/>'
        + f'<polyline class="high" points="{_points(run.cpu, 100, highest=True)}"/>'
        + f'<polyline class="cpu" points="{_points(run.cpu, 100)}"/></svg>'
    )
    return (
        f"<h2>{escape(run.name)}</h2><p>Size (blue), what the target needs (area), the clairvoyant "
        "(dashed); below it the CPU, with the target ± 10 points; over days.</p>"
        f'<div class="wide">{size}{cpu}</div>'
    )


def _frame(days: float, highest: float, unit: str, label: str) -> str:
    lines = []
    for part in range(5):
        y = _y(highest * part / 4, highest)
        lines.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text x="0" y="{y + 4:.1f}">{highest * part / 4:g}{unit}</text>')
    for day in range(int(days) + 1):
        x = LEFT + (WIDTH - LEFT) * day / days
        lines.append(f'<text x="{x:.1f}" y="{HEIGHT + 14}">{day}</text>')
    return (
        f'<svg viewBox="0 -8 {WIDTH + 14} {HEIGHT + 26}" role="img" '
        f'aria-label="{escape(label)}">{"".join(lines)}'
    )


def _y(value: float, highest: float) -> float:
    return HEIGHT * (1 - min(value, highest) / highest)


def _points(values: Sequence[float], top: float, *, highest: bool = False) -> str:
    each = max(1, -(-len(values) // POINTS))
    found = []
    for start in range(0, len(values), each):
        part = values[start : start + each]
        value = max(part) if highest else sum(part) / len(part)
        x = LEFT + (WIDTH - LEFT) * start / len(values)
        found.append(f"{x:.1f},{_y(value, top):.1f}")
    return " ".join(found)
