"""Numbers, ages and times for people. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from late.control.views import Count

NOTHING = "–"
_STEPS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))
_YEAR_9999_US = 253_402_300_799_000_000


def age(seconds: float | None) -> str:
    """Format a duration as `4.2 s`, `12 min`, `3.5 h`; a dash for None."""
    if seconds is None:
        return NOTHING
    for size, unit in _STEPS:
        if seconds >= size:
            value = seconds / size
            return f"{value:.1f} {unit}" if value < 10 else f"{value:,.0f} {unit}"
    return f"{seconds * 1_000:.0f} ms" if seconds > 0 else "0 s"


def count(value: Count) -> str:
    """Format a count as `1,200`, or as `1,000+` if counting stopped there."""
    return f"{value.n:,}+" if value.capped else f"{value.n:,}"


def number(value: float | None) -> str:
    """Format a number with separators and few decimals; a dash for None."""
    if value is None:
        return NOTHING
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.2f}"


def size(octets: float) -> str:
    """Format a number of bytes as `3.2 KiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if octets < 1024:
            return f"{octets:,.0f} {unit}" if unit == "B" else f"{octets:,.1f} {unit}"
        octets /= 1024
    return f"{octets:,.1f} TiB"


def when(us: int | None) -> str:
    """Format a time as `2026-05-01T12:00:00Z`, which the browser shows in its own zone.

    The text is empty for None and for times outside of the calendar.
    """
    if us is None or not 0 <= us <= _YEAR_9999_US:
        return ""
    return datetime.fromtimestamp(us / 1_000_000, UTC).isoformat(timespec="seconds")[:-6] + "Z"


def fitting(texts: Sequence[str], most: int, *, least: int = 200) -> list[str]:
    """Cut texts to `most` characters together, but to no less than `least` each.

    The last ones tell most and stay whole. Of those before them the beginnings are kept.
    """
    found = []
    for text in reversed(texts):
        kept = text if len(text) <= max(most, least) else text[: max(most, least) - 1] + "…"
        most -= len(kept)
        found.append(kept)
    return found[::-1]


def short(text: str, most: int = 120) -> str:
    """Return the beginning of a text in one line."""
    line = " ".join(text[: most * 4].split())
    return line if len(line) <= most else line[: most - 1] + "…"
