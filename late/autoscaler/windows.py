"""Times of the week, by the clock of a place. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from late.autoscaler.policy import DAYS, Policy, Window


def within(window: Window, now_us: int) -> bool:
    """Whether now is in the window, by its zone's clock. In the hour that a zone repeats it counts
    both times; in the one that it skips it begins after it."""
    tz = ZoneInfo(window.zone)
    now = datetime.fromtimestamp(now_us / 1e6, UTC)
    hour, minute = int(window.at[:2]), int(window.at[3:])
    local = now.astimezone(tz)
    for back in range(window.minutes // 1440 + 2):
        day = local.date() - timedelta(days=back)
        if DAYS[day.weekday()] not in window.days:
            continue
        begin = datetime(day.year, day.month, day.day, hour, minute, tzinfo=tz).astimezone(UTC)
        if begin <= now < begin + timedelta(minutes=window.minutes):
            return True
    return False


def keeps_up(policy: Policy, now_us: int) -> str:
    """The field that forbids to scale in now; empty where none does."""
    if any(within(each, now_us) for each in policy.down_never):
        return "down_never"
    if policy.down_only and not any(within(each, now_us) for each in policy.down_only):
        return "down_only"
    return ""
