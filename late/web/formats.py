"""Numbers, ages and times for people. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from late.control.findings.phrases import age, count, number

__all__ = ["age", "count", "fitting", "number", "short", "size", "when"]
_YEAR_9999_US = 253_402_300_799_000_000


def size(octets: float) -> str:
    """Format a number of bytes as `3.2 KiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if octets < 1024:
            return f"{octets:,.0f} {unit}" if unit == "B" else f"{octets:,.1f} {unit}"
        octets /= 1024
    return f"{octets:,.1f} TiB"


def when(us: int | None) -> str:
    """Format a time as `2026-05-01T12:00:00Z`, which the browser shows as UTC; its own zone is
    a hover away.

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
