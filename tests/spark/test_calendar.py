"""Days and months of a time zone."""

from __future__ import annotations

from datetime import date
from zoneinfo import ZoneInfo

import pytest
from late_spark import calendar
from late_spark.calendar import Calendar

from late.errors import ConfigError

HOUR = 3_600_000_000
BERLIN, NEW_YORK = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York")


def test_a_month_of_new_york_has_one_day_of_23_hours() -> None:
    march = Calendar.of("2026-03", "2026-04", NEW_YORK)
    assert len(march.days) == 31
    lengths = {day: (end - start) // HOUR for day, start, end in march.bounds}
    assert {day for day, hours in lengths.items() if hours != 24} == {date(2026, 3, 8)}
    assert lengths[date(2026, 3, 8)] == 23
    assert calendar.iso(march.from_us) == "2026-03-01T05:00:00Z"
    assert calendar.iso(march.to_us) == "2026-04-01T04:00:00Z"


@pytest.mark.parametrize("tz", ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata",
                                "Australia/Lord_Howe", "Pacific/Apia"])  # fmt: skip
def test_the_spans_give_the_same_days_as_the_zone(tz: str) -> None:
    year = Calendar.of("2026-01", "2027-01", ZoneInfo(tz))
    for at in range(year.from_us, year.to_us, 7 * HOUR // 3):
        offset = [offset for start, offset in year.spans if start <= at][-1]
        assert (at + offset) // calendar.DAY_US == (year.day(at) - date(1970, 1, 1)).days
    for start, _ in year.spans[1:]:
        assert year.local(start).utcoffset() != year.local(start - 1).utcoffset()


def test_where_midnight_does_not_exist_the_day_begins_after_it() -> None:
    days = Calendar.of("2026-09-05", "2026-09-08", ZoneInfo("America/Santiago"))
    lengths = [(end - start) // HOUR for _, start, end in days.bounds]
    assert lengths == [24, 23, 24]


@pytest.mark.parametrize(
    ("from_", "to", "said"),
    [
        ("2026-03", "2026-02", "is not before"),
        ("2026-13", "2027-01", "--from: '2026-13' is no month"),
        ("2026-03-01T00:00:00", "2026-04", "--from: .* has no time zone"),
        ("2026-03-01T00:00:00Z", "2026-04", "is not a midnight of Europe/Berlin"),
        ("1990-01", "2026-01", "more than 3700 days"),
        ("0001-01", "2026-01", "--from: .* is not between 1970 and 9998"),
        ("2026-01", "9999-12", "--to: .* is not between 1970 and 9998"),
    ],
)
def test_a_wrong_range_is_refused(from_: str, to: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Calendar.of(from_, to, BERLIN)


def test_an_unknown_zone_is_refused() -> None:
    with pytest.raises(ConfigError, match="--tz: there is no time zone 'Mars/Base'"):
        calendar.zone("Mars/Base", "--tz")
