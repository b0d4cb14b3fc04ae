"""Charts as SVG text: drawn once, here, so that a page needs no script and prints as it looks.

Colours are the page's (`page.STYLE`, classes `s0` to `s7`): a dark screen has others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 760, 270, 64, 28, 24
SERIES = 8
"""The number of colours; the last one is for the remaining series together."""


def ticks(top: float, wanted: int = 4) -> list[float]:
    """Round values from 0 to at least `top`."""
    if top <= 0:
        return [0.0, 1.0]
    step = 10 ** floor(log10(top / wanted))
    step *= next(each for each in (1, 2, 2.5, 5, 10) if each * step * wanted >= top * 0.999)
    return [step * n for n in range(ceil(top / step - 1e-9) + 1)]


def both_ways(top: float, depth: float) -> list[float]:
    """Round values from -depth or below to at least `top`, with zero among them."""
    step = ticks(max(top, depth))[1]
    below = [-step * n for n in range(ceil(depth / step - 1e-9), 0, -1)]
    above = [step * n for n in range(ceil(top / step - 1e-9) + 1)]
    return [*below, *(above if len(above) > 1 or below else [0.0, step])]


def stacked(
    days: Sequence[str], series: Mapping[str, Sequence[float]], unit: str, title: str
) -> str:
    """Bars, one per day, made up of the series in order; negative values (credits) hang below the
    line of zero. Each bar says its value, so what they say adds up as `series` does.

    Args:
        days: labels of the bars.
        series: one value per day each; at most as many as there are colours.
    """
    spans = range(len(days))
    tops = [sum(max(0.0, values[at]) for values in series.values()) for at in spans]
    depths = [sum(max(0.0, -values[at]) for values in series.values()) for at in spans]
    scale = both_ways(max(tops, default=0), max(depths, default=0))
    inner = HEIGHT - BOTTOM - TOP
    per_unit = inner / (scale[-1] - scale[0])
    zero = HEIGHT - BOTTOM + scale[0] * per_unit
    step = (WIDTH - LEFT - 8) / max(1, len(days))
    parts = [_axes(scale, inner, unit)]
    for at, day in enumerate(days):
        above = below = zero
        for number, (name, values) in enumerate(series.items()):
            size = abs(values[at]) * per_unit
            if not size:
                continue
            above -= size if values[at] > 0 else 0
            base = above if values[at] > 0 else below
            below += size if values[at] < 0 else 0
            tip = escape(f"{day}, {name}: {values[at]:,.2f} {unit}")
            parts.append(
                f'<rect x="{LEFT + at * step + step * 0.1:.1f}" y="{base:.1f}" '
                f'width="{step * 0.8:.1f}" height="{size:.1f}" class="s{number}">'
                f"<title>{tip}</title></rect>"
            )
    parts.append(_labels(days, step))
    return _svg(parts, title)


def lines(
    days: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    unit: str,
    title: str,
    mark: float | None = None,
) -> str:
    """Lines over days; None is a gap. `mark` draws a vertical line before that day, or with a
    fraction in the course of it."""
    present = [value for values in series.values() for value in values if value is not None]
    scale = ticks(max(present, default=0))
    inner = HEIGHT - BOTTOM - TOP
    step = (WIDTH - LEFT - 8) / max(1, len(days))
    parts = [_axes(scale, inner, unit)]
    for number, (name, values) in enumerate(series.items()):
        path, pen = [], "M"
        for at, value in enumerate(values):
            if value is None:
                pen = "M"
                continue
            x = LEFT + (at + 0.5) * step
            y = HEIGHT - BOTTOM - max(0.0, value) / scale[-1] * inner
            # A day alone between two gaps is a dot: a line of no length with a round end.
            path.append(f"{pen}{x:.1f} {y:.1f}{'h0' if pen == 'M' else ''}")
            pen = "L"
        parts.append(
            f'<path d="{" ".join(path)}" class="s{number}"><title>{escape(name)}</title></path>'
        )
    if mark is not None:
        x = LEFT + mark * step
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" class="k"/>'
        )
    parts.append(_labels(days, step))
    return _svg(parts, title)


def legend(names: Sequence[str]) -> str:
    """Return the legend: the name of each colour."""
    items = (
        f'<span><i class="s{number}"></i>{escape(name)}</span>' for number, name in enumerate(names)
    )
    return f'<p class="legend">{"".join(items)}</p>'


def _svg(parts: Sequence[str], title: str) -> str:
    return (
        f'<div class="wide"><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg></div>'
    )


def _axes(scale: Sequence[float], inner: float, unit: str) -> str:
    parts = []
    for value in scale:
        y = HEIGHT - BOTTOM - (value - scale[0]) / (scale[-1] - scale[0]) * inner
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 8}" y1="{y:.1f}" y2="{y:.1f}" class="g"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" class="r">{short(value)}</text>')
    parts.append(f'<text x="4" y="12">{escape(unit)}</text>')
    return "".join(parts)


def _labels(days: Sequence[str], step: float) -> str:
    every = max(1, ceil(len(days) / 10))
    return "".join(
        f'<text x="{LEFT + (at + 0.5) * step:.1f}" y="{HEIGHT - 8}" class="m">{escape(day)}</text>'
        for at, day in enumerate(days)
        if at % every == 0
    )


def short(value: float) -> str:
    """`1.2k`, `3.4M`."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:.4g}"
