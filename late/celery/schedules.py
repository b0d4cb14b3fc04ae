"""`crontab` and `schedule` by Celery's names, for `beat_schedule` where Celery is not installed.

They hold what `late celery beat` reads, as those of Celery do. See `late/celery/beat.py`.

Source: the grammar of the fields is that of `celery/schedules.py` (Celery 5).
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterable
from datetime import timedelta

Field = int | str | Iterable[int]

_PART = re.compile(r"(?:\*|(\w+)-(\w+))(?:/(\d+))?|(\w+)")
_NAMES = {name.lower(): n for n, name in enumerate(calendar.month_abbr) if name} | {
    name.lower(): (n + 1) % 7 for n, name in enumerate(calendar.day_abbr)
}


class crontab:
    """Times of the clock. A day has to be in all three of its fields, other than in cron.

    Args:
        minute, hour, day_of_week, day_of_month, month_of_year: a number, numbers, or text such as
            `*/15`, `7-19`, `mon-fri`. Sunday is 0; a range may go over the end, as `fri-mon`.

    Raises:
        ValueError: a field cannot be read.
    """

    def __init__(
        self,
        minute: Field = "*",
        hour: Field = "*",
        day_of_week: Field = "*",
        day_of_month: Field = "*",
        month_of_year: Field = "*",
    ) -> None:
        self.minute = _numbers(minute, range(60))
        self.hour = _numbers(hour, range(24))
        self.day_of_week = _numbers(day_of_week, range(7))
        self.day_of_month = _numbers(day_of_month, range(1, 32))
        self.month_of_year = _numbers(month_of_year, range(1, 13))
        self._shown = (minute, hour, day_of_month, month_of_year, day_of_week)

    def __repr__(self) -> str:
        return f"<crontab: {' '.join(map(str, self._shown))} (m/h/dM/MY/d)>"


class schedule:
    """An interval: `run_every` is seconds or a timedelta."""

    def __init__(self, run_every: float | timedelta, relative: bool = False) -> None:
        if not isinstance(run_every, timedelta):
            run_every = timedelta(seconds=run_every)
        self.run_every = run_every
        self.relative = relative

    def __repr__(self) -> str:
        return f"<freq: {self.run_every}>"


def _numbers(field: Field, most: range) -> set[int]:
    if isinstance(field, str):
        found = {number for part in field.split(",") for number in _part(part, most)}
    else:
        found = {field} if isinstance(field, int) else set(field)
    if not found or not found <= set(most):
        raise ValueError(f"crontab: {field!r} is not within {most[0]}-{most[-1]}")
    return found


def _part(part: str, most: range) -> list[int]:
    match = _PART.fullmatch(part)
    if match is None:
        raise ValueError(f"crontab: {part!r} cannot be read")
    first, last, step, one = match.groups()
    if first is None and one is None:
        return list(most)[:: _step(step)]
    low = _number(first or one)
    high = low if last is None else _number(last)
    if not {low, high} <= set(most):
        raise ValueError(f"crontab: {part!r} is not within {most[0]}-{most[-1]}")
    # A range may go over the end: `fri-mon`.
    found = [*most, *most]
    start = found.index(low)
    return found[start : found.index(high, start) + 1 : _step(step)]


def _step(text: str | None) -> int:
    if text is not None and int(text) == 0:
        raise ValueError("crontab: a step is at least 1")
    return int(text or 1)


def _number(text: str) -> int:
    if text.isdigit():
        return int(text)
    if text[:3].lower() not in _NAMES:
        raise ValueError(f"crontab: {text!r} is no day or month")
    return _NAMES[text[:3].lower()]
