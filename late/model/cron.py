"""Due times of recurring tasks: cron expressions in a time zone, and intervals.

The rules at a change of the clocks (after Debian's cron, as `cronsim` implements them):

- a time that does not exist (spring) fires once, at the first moment after the gap;
- a time that exists twice (autumn) fires once, the first time, if the hour is fixed;
- a wildcard in the hour or minute counts real time: no hour is skipped, and none fires twice.

An interval, `every 90s`, counts elapsed seconds from its anchor and has no time zone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from late.errors import InvalidCron

_EVERY = re.compile(r"every (\d{1,9}(?:\.\d{1,6})?)s\Z")
_NAMED = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
"""Names of other crons, for the message: a rule is always five fields or an interval."""
RULE_CHARS_MAX = 200
SEARCH_YEARS = 8
"""A rule that does not fire within so many years never fires: 29 February is at most 8 years
away."""

GAPS = 100
"""Due times that are looked at for the least time between two."""


@lru_cache(maxsize=256)
def _zone(name: str) -> ZoneInfo:
    try:
        if not name or name != name.strip() or name.startswith("/") or ".." in name:
            raise ValueError(name)
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError, TypeError) as error:
        raise InvalidCron(f"unknown time zone {name[:64]!r}: use an IANA name") from error


def every_us(rule: str) -> int | None:
    """Return the interval of an `every …s` rule in microseconds, or None for a cron expression."""
    match = _EVERY.match(rule)
    return round(float(match[1]) * 1_000_000) if match else None


def check(rule: str, zone: str) -> None:
    """Check that a rule can be read and that it fires at some time.

    Raises:
        InvalidCron: it cannot be read, or never fires. The message names the rule (its first 64
            characters) or the zone.
    """
    if len(rule) > RULE_CHARS_MAX:
        raise InvalidCron(f"cron rule of {len(rule)} characters: at most {RULE_CHARS_MAX}")
    _zone(zone)
    if next_due_us(rule, zone, anchor_us=0, after_us=_us(datetime(2026, 1, 1, tzinfo=UTC))) is None:
        raise InvalidCron(f"cron rule {rule[:64]!r} does not fire within {SEARCH_YEARS} years")


def next_due_us(rule: str, zone: str, *, anchor_us: int, after_us: int) -> int | None:
    """Return the first due time strictly after `after_us`, or None if there is none.

    Raises:
        InvalidCron: the rule or the zone is wrong.
    """
    return next(dues_us(rule, zone, anchor_us=anchor_us, after_us=after_us), None)


def gap_us(rule: str, zone: str) -> int:
    """Return the least time between two of the next due times of a rule.

    Raises:
        InvalidCron: the rule or the zone is wrong.
    """
    after_us = _us(datetime(2026, 1, 1, tzinfo=UTC))
    dues = list(islice(dues_us(rule, zone, anchor_us=0, after_us=after_us), GAPS))
    return min((later - due for due, later in pairwise(dues)), default=86_400_000_000)


def dues_us(rule: str, zone: str, *, anchor_us: int, after_us: int) -> Iterator[int]:
    """Yield the due times strictly after `after_us`, ascending. For most rules it never ends.

    Raises:
        InvalidCron: the rule or the zone is wrong.
    """
    interval = every_us(rule)
    if interval is not None:
        if interval < 1_000_000:
            raise InvalidCron(f"interval {rule!r}: at least 1 s")
        due = anchor_us + max(0, (after_us - anchor_us) // interval + 1) * interval
        while True:
            yield due
            due += interval
    start = datetime.fromtimestamp(after_us // 1_000_000, UTC).astimezone(_zone(zone))
    try:
        simulator = CronSim(rule, start)
    except CronSimError as error:
        why = f"write {_NAMED[rule]!r}" if rule in _NAMED else error
        raise InvalidCron(f"cron rule {rule[:64]!r} cannot be read: {why}") from error
    if len(rule.split()) > 5:
        raise InvalidCron(f"cron rule {rule[:64]!r}: five fields; use an interval below a minute")
    for due_at in simulator:
        if due_at.year - start.year > SEARCH_YEARS:
            return
        # A search that begins in the second of two equal hours finds the times of the first one.
        if (due_us := _us(due_at)) > after_us:
            yield due_us


def _us(moment: datetime) -> int:
    return round(moment.timestamp()) * 1_000_000
