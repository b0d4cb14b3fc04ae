"""Days and months as finance has them: local to a time zone, half-open, some of 23 or 25 hours.

A zone's offset changes a few times a year, so a range is cut into the spans of one offset
(`Calendar.spans`). The day of a moment is then two additions and a division, the same in Python
(`Calendar.day`) and over a hundred million rows (`drivers.day`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from late.errors import ConfigError

DAY_US = 86_400_000_000
_EPOCH = date(1970, 1, 1)
_MONTH = re.compile(r"\d{4}-\d{2}\Z")
_DAYS_MAX = 3_700
"""Ten years: a longer range is a typing mistake, and every day of it costs a row somewhere."""


def zone(name: str, what: str) -> ZoneInfo:
    """An IANA time zone.

    Raises:
        ConfigError: there is none of that name.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigError(f"{what}: there is no time zone {name[:64]!r}") from None


def moment(text: str, what: str, tz: ZoneInfo) -> int:
    """A local month (`2026-03`), a local day (`2026-03-01`) or a time, in microseconds.

    Months and days begin at local midnight. A time needs a zone of its own.

    Raises:
        ConfigError: none of these.
    """
    text = text.strip()
    try:
        if _MONTH.match(text):
            found = datetime.fromisoformat(f"{text}-01")
        else:
            found = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{what}: {text[:64]!r} is no month, day or time such as 2026-03, 2026-03-01 "
            "or 2026-03-01T12:00:00Z"
        ) from None
    if not 1970 <= found.year <= 9998:  # Beyond, another time zone has no such moment.
        raise ConfigError(f"{what}: {text[:64]!r} is not between 1970 and 9998")
    if found.tzinfo is None:
        if len(text) > 10:
            raise ConfigError(f"{what}: {text[:64]!r} has no time zone: append Z or +02:00")
        found = found.replace(tzinfo=tz)
    return microseconds(found)


def microseconds(at: datetime) -> int:
    """Since the Unix epoch, exactly."""
    return (at.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def iso(at_us: int) -> str:
    """A time in UTC, as bills have it."""
    found = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at_us)
    return found.isoformat().replace("+00:00", "Z")


def midnight(day: date, tz: ZoneInfo) -> int:
    """Return the begin of a local day; of its first hour, if the clock skips midnight."""
    return microseconds(datetime(day.year, day.month, day.day, tzinfo=tz))


@dataclass(frozen=True)
class Calendar:
    """The local days of the range [from_us, to_us), which begins and ends at local midnights."""

    from_us: int
    to_us: int
    tz: ZoneInfo

    @classmethod
    def of(cls, from_: str, to: str, tz: ZoneInfo) -> Calendar:
        """A range from two texts (`moment`).

        Raises:
            ConfigError: not a range, too long, or not of whole local days.
        """
        start, end = moment(from_, "--from", tz), moment(to, "--to", tz)
        if start >= end:
            raise ConfigError(f"--from {from_} is not before --to {to}")
        found = cls(start, end, tz)
        for what, text, at in (("--from", from_, start), ("--to", to, end)):
            if midnight(found.local(at).date(), tz) != at:
                raise ConfigError(f"{what} {text} is not a midnight of {tz.key}: give a day")
        if (end - start) // DAY_US > _DAYS_MAX:
            raise ConfigError(f"--from {from_} --to {to} is more than {_DAYS_MAX} days")
        return found

    def local(self, at_us: int) -> datetime:
        return (
            datetime.fromtimestamp(0, UTC).astimezone(self.tz)
            if at_us == 0
            else (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at_us)).astimezone(
                self.tz
            )
        )

    @cached_property
    def days(self) -> tuple[date, ...]:
        """Every local day, ascending."""
        first = self.local(self.from_us).date()
        last = self.local(self.to_us - 1).date()
        return tuple(first + timedelta(days=n) for n in range((last - first).days + 1))

    @cached_property
    def bounds(self) -> tuple[tuple[date, int, int], ...]:
        """(day, its begin, its end) in microseconds; without holes."""
        begins = [midnight(day, self.tz) for day in self.days]
        return tuple(zip(self.days, begins, [*begins[1:], self.to_us], strict=True))

    @cached_property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """(from when, offset to UTC), both in microseconds; the first begins the range."""
        found: list[tuple[int, int]] = []
        at = self.from_us
        while at < self.to_us:
            offset = self._offset(at)
            if not found or found[-1][1] != offset:
                found.append((self._change(at, offset) if found else at, offset))
            at += DAY_US // 4
        return tuple(found)

    def day(self, at_us: int) -> date:
        """The local day of a moment within the range."""
        return self.local(at_us).date()

    def _offset(self, at_us: int) -> int:
        offset = self.local(at_us).utcoffset()
        assert offset is not None
        return offset // timedelta(microseconds=1)

    def _change(self, at_us: int, offset: int) -> int:
        """The first moment of this offset in the quarter of a day before `at_us`: changes are on
        whole minutes, and looking by halves finds them in a few steps."""
        low, high = at_us - DAY_US // 4, at_us
        while high - low > 60_000_000:
            middle = (low + high) // 2 // 60_000_000 * 60_000_000
            low, high = (low, middle) if self._offset(middle) == offset else (middle, high)
        return high


def month_bounds(day: date, tz: ZoneInfo) -> tuple[int, int]:
    """Begin and end of a day's local month, in microseconds."""
    first = day.replace(day=1)
    after = (first + timedelta(days=32)).replace(day=1)
    return midnight(first, tz), midnight(after, tz)
