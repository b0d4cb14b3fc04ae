"""Times of the week, by the clock of a place. Pure."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

from late.autoscaler.policy import DAYS, Policy, Window


def contains(window: Window, now_us: int) -> bool:
    """Return True if the clock of the window's zone shows a time within the window.

    Its minutes are those of that clock: a window that ends at 22:00 does so on days when the clock
    changes, too. An hour that a zone repeats counts both times; a window that would begin in a
    skipped hour begins after it.
    """
    now = datetime.fromtimestamp(now_us / 1e6, ZoneInfo(window.zone)).replace(tzinfo=None)
    for back in range(window.minutes // 1440 + 2):
        day = now.date() - timedelta(days=back)
        begin = datetime.combine(day, time.fromisoformat(window.at))
        end = begin + timedelta(minutes=window.minutes)
        if DAYS[day.weekday()] in window.days and begin <= now < end:
            return True
    return False


def scale_in_forbidden_by(policy: Policy, now_us: int) -> str:
    """Return the name of the policy's field that forbids scaling in now; empty if none does."""
    if any(contains(each, now_us) for each in policy.down_never):
        return "down_never"
    if policy.down_only and not any(contains(each, now_us) for each in policy.down_only):
        return "down_only"
    return ""
