"""Numbers and ages for people. Pure."""

from __future__ import annotations

from late.control.views import Count

NOTHING = "–"
_STEPS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))
_SIZES = ((1024, "KiB"), (1024**2, "MiB"), (1024**3, "GiB"))


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


def size(n: int) -> str:
    """Format bytes as `64.0 MiB`, `3.2 GiB`."""
    if n < 1024:
        return f"{n} bytes"
    unit, name = next((each for each in _SIZES if n < 1024 * each[0]), _SIZES[-1])
    return f"{n / unit:,.0f} {name}" if n >= 100 * unit else f"{n / unit:,.1f} {name}"
