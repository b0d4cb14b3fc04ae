"""Times as people write them: a duration, a moment, an age. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from late.errors import ConfigError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h|d|w)\Z")
_UNITS_US = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}


def duration_us(text: str, what: str) -> int:
    """Read `90s`, `15m`, `1.5h`, `2d` or plain seconds, and return microseconds.

    Raises:
        ConfigError: anything else.
    """
    match = _DURATION.match(text.strip())
    try:
        if match:
            return round(float(match[1]) * _UNITS_US[match[2]])
        return round(float(text) * 1_000_000)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{what} {text[:64]!r}: expected a time such as 90s, 15m, 2h or 7d"
        ) from None


WHEN = "2026-05-01T12:00:00Z, or an age such as 2h"


def moment_us(text: str, what: str, now_us: int, *, expected: str = WHEN) -> int:
    """Read a moment, ISO 8601 with a zone or how long ago (`2h`, `7d`), in microseconds.

    Args:
        now_us: the database's now, which an age counts back from.
        expected: what an error says is possible.

    Raises:
        ConfigError: neither, or no zone: a day's letters must not depend on a laptop's zone.
    """
    if _DURATION.match(text.strip()):
        return now_us - duration_us(text, what)
    return round(instant(text, what, expected=expected).timestamp() * 1_000_000)


def instant(text: str, what: str, *, expected: str = WHEN) -> datetime:
    """Read an ISO 8601 date and time with its zone.

    Raises:
        ConfigError: anything else.
    """
    try:
        found = datetime.fromisoformat(text.strip())
        if found.tzinfo is not None:
            return found.astimezone(UTC)
    except (ValueError, OverflowError):  # the second: a time before the year 1 in UTC
        raise ConfigError(f"{what} {text[:64]!r}: expected {expected}") from None
    raise ConfigError(f"{what} {text[:64]!r} has no time zone: append Z or +02:00")
