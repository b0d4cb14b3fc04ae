"""The forecast of the load from the same hour of earlier weeks. Pure.

It is the median of the weeks, so that one past burst or outage does not become a forecast, and the
highest value of the time ahead. Load is in units of size at 100 % CPU.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from statistics import median

WEEK_US = 7 * 86_400 * 1_000_000
SLOT_US = 300 * 1_000_000


def forecast(
    at_us: Sequence[int], load: Sequence[float], now_us: int, *, weeks: int, lead_us: int
) -> float | None:
    """Return the load to be ready for between now and `lead_us` from now.

    Args:
        at_us: times when `load` was observed, ascending.

    Returns:
        None if fewer than two earlier weeks are known of that hour: a single one may have been
        the exception.
    """
    highest: float | None = None
    for slot in range(0, lead_us + 1, SLOT_US):
        seen = []
        for week in range(1, weeks + 1):
            begin = now_us + slot - week * WEEK_US
            first, last = bisect_left(at_us, begin), bisect_left(at_us, begin + SLOT_US)
            if last > first:
                seen.append(sum(load[first:last]) / (last - first))
        if len(seen) >= min(2, weeks):
            highest = max(highest or 0.0, median(seen))
    return highest
