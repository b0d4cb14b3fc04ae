"""Small charts that the server draws as SVG: they need no script. Pure.

A gap in the values is a gap in the line, and shaded. All charts of a window share its axis of time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from late.model.histogram import lower
from late.web.formats import age, number
from late.web.models.history import Point, quantiles, together, waited

WIDTH, HEIGHT = 600, 90
"""The size of a drawing, in its own units."""
COLUMNS = 30
"""The most columns of a heat map: slots are put together."""
ROWS = 12
"""The most rows of a heat map, each of twice the duration of the one below; the lowest has all
that is shorter."""
SHADES = 5
Values = Sequence[float | None]


class Stroke(msgspec.Struct, frozen=True):
    """One line of a chart."""

    name: str
    style: str
    """Its class: one look for one meaning."""
    path: str


class Chart(msgspec.Struct, frozen=True):
    """One drawing."""

    name: str
    says: str
    """The same in words, for who does not see it."""
    top: str
    """The value at its upper edge."""
    lines: tuple[Stroke, ...]
    gaps: tuple[tuple[float, float], ...]
    """Place and width of what was not read."""


class Heat(msgspec.Struct, frozen=True):
    """A heat map: time to the right, duration upwards, the stronger the more."""

    says: str
    top: str
    bottom: str
    shades: tuple[str, ...]
    """The cells of each shade as one path, the weakest first."""
    gaps: tuple[tuple[float, float], ...]


def charts(found: Sequence[Point], waits_now: int | None) -> tuple[Chart, ...]:
    """Draw one window: flow, failures, run time, lateness, and what waited.

    Args:
        waits_now: the tasks that are open or parked now; None leaves that chart out.
    """

    def per_minute(count: Callable[[Point], int]) -> Values:
        return [None if p.slot is None else count(p) / p.minutes for p in found]

    def shares(of: Callable[[Point], Mapping[int, int]]) -> list[Values]:
        rows = [(None,) * 3 if p.slot is None else tuple(quantiles(of(p))) for p in found]
        return [list(column) for column in zip(*rows, strict=True)]

    arrived = per_minute(lambda p: p.slot.arrived if p.slot else 0)
    ended = per_minute(lambda p: p.slot.ended if p.slot else 0)
    failed = per_minute(lambda p: p.slot.failed if p.slot else 0)
    dead = per_minute(lambda p: p.slot.ends.get("dead", 0) if p.slot else 0)
    run = shares(lambda p: p.slot.busy if p.slot else {})
    late = shares(lambda p: p.slot.waiting if p.slot else {})
    thirds = ("p50", "p95", "p99"), ("dim", "main", "top")
    unread = gaps(found)
    drawn = [
        _chart("Tasks a minute", number, unread, ("arrived", "dim", arrived),
               ("ended", "main", ended)),
        _chart("Failed a minute", number, unread, ("attempts", "warn", failed),
               ("dead", "bad", dead)),
        _chart("Run time", age, unread, *zip(*thirds, run, strict=True)),
        _chart("Lateness", age, unread, *zip(*thirds, late, strict=True)),
    ]  # fmt: skip
    if waits_now is not None:
        waits = waited(found, waits_now)
        drawn.append(_chart("Open or parked", number, unread, ("tasks", "main", waits)))
    return tuple(drawn)


class QueueHour(msgspec.Struct, frozen=True):
    """The last hour of a queue in a list."""

    path: str
    """The tasks that ended in each minute, as a line; empty if none did."""
    says: str
    p95_s: float | None
    """The run time that 95 % of its attempts did not exceed."""


def queue_hour(found: Sequence[Point]) -> QueueHour:
    """Draw the last hour of one queue."""
    values = [None if point.slot is None else float(point.slot.ended) for point in found]
    known = [value for value in values if value is not None]
    top, whole = max(known, default=0.0), together(p.slot for p in found if p.slot is not None)
    says = f"{sum(known):,.0f} ended in {len(known)} min" if known else "being read"
    return QueueHour(_path(values, top) if top else "", says, tuple(quantiles(whole.busy))[1])


def _chart(
    name: str,
    say: Callable[[float | None], str],
    unread: tuple[tuple[float, float], ...],
    *lines: tuple[str, str, Values],
) -> Chart:
    known = [value for _, _, values in lines for value in values if value is not None]
    top = max(known, default=0.0)
    last = {what: next((v for v in reversed(values) if v is not None), None)
            for what, _, values in lines}  # fmt: skip
    says = ", ".join(f"{what} {say(value)}" for what, value in last.items() if value is not None)
    drawn = tuple(Stroke(what, style, _path(values, top)) for what, style, values in lines)
    return Chart(name, says or "nothing", say(top) if known else "", drawn, unread)


def _path(values: Values, top: float) -> str:
    """Return a line that ends where a value is missing, and begins anew behind it."""
    step, parts, pen = WIDTH / max(1, len(values)), list[str](), "M"
    for place, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        x, y = (place + 0.5) * step, HEIGHT - 2 - (HEIGHT - 4) * value / (top or 1.0)
        # A point between two gaps would be invisible without a length.
        alone = pen == "M" and (place + 1 == len(values) or values[place + 1] is None)
        parts.append(f"{pen}{x:.0f} {y:.0f}" + ("h1" if alone else ""))
        pen = "L"
    return "".join(parts)


def gaps(found: Sequence[Point]) -> tuple[tuple[float, float], ...]:
    """Return place and width of the slots that were not read."""
    step, spans, begin = WIDTH / max(1, len(found)), list[tuple[float, float]](), None
    for place, unread in enumerate([*(point.slot is None for point in found), False]):
        if unread and begin is None:
            begin = place
        elif not unread and begin is not None:
            spans.append((round(begin * step, 1), round((place - begin) * step, 1)))
            begin = None
    return tuple(spans)


def heat(found: Sequence[Point]) -> Heat | None:
    """Draw the run times of a window; None while there are too few to show more than the lines."""
    size = -(-len(found) // COLUMNS)
    columns = [_doublings(found[at : at + size]) for at in range(0, len(found), size)]
    rows = [row for column in columns for row in column]
    if len(set(rows)) < 2:
        return None
    high = max(rows)
    low = max(min(rows), high - ROWS + 1)
    most = max(max(column.values(), default=0) for column in columns)
    width, height = WIDTH / len(columns), HEIGHT / (high - low + 1)
    cells: list[list[str]] = [[] for _ in range(SHADES)]
    for place, column in enumerate(columns):
        merged = Counter[int]()
        for row, count in column.items():
            merged[max(row, low)] += count
        for row, count in merged.items():
            # By the root: a tenth as many is still seen.
            shade = min(SHADES - 1, int(SHADES * (count / most) ** 0.5))
            x, y = place * width, (high - row) * height
            cells[shade].append(f"M{x:.1f} {y:.1f}h{width:.1f}v{height:.1f}h-{width:.1f}z")
    top, bottom = age(lower(high + 1 << 4) / 1e6), age(lower(low << 4) / 1e6)
    says = f"from {bottom} to {top}, each row twice the one below"
    return Heat(says, top, bottom, tuple("".join(each) for each in cells), gaps(found))


def _doublings(found: Sequence[Point]) -> Counter[int]:
    """Count attempts by the doubling of their run time."""
    counts = Counter[int]()
    for point in found:
        for index, count in (point.slot.busy if point.slot else {}).items():
            counts[index >> 4] += count
    return counts
