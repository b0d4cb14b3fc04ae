"""Moments for people, and from them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(us: int) -> datetime:
    """The moment, in UTC."""
    return EPOCH + timedelta(microseconds=us)


def micros(at: datetime) -> int:
    """Microseconds since the Unix epoch; `at` has a zone."""
    return (at - EPOCH) // timedelta(microseconds=1)


def shown(us: int) -> str:
    """Format a time for messages: ISO 8601 in UTC, to the second."""
    return moment(us).isoformat(timespec="seconds").replace("+00:00", "Z")
