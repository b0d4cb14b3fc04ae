"""The line of a jammed flow: when each task that was parked for it is looked at again.

All of them after the same few seconds would come in vain and be parked again, each for a row
deleted and a row written: a jam of 100,000 would cost more than the work. So they come back one
after the other, twice as fast as the flow has moved lately. Twice, because a flow that gets no
more than it can do would never show that it could do more.
"""

from __future__ import annotations

LOOK_MIN_US = 5_000_000
LOOK_MAX_US = 60_000_000
"""Whatever the line's length: a limit may be lifted at any time."""
MEASURE_US = 1_000_000


class Line:
    """Of one flow in one shard. Times in microseconds, by the database's clock."""

    def __init__(self, now_us: int) -> None:
        self.starts = 0
        """Since the last measurement; the owner counts."""
        self._measured_at_us = now_us
        self._per_s = 1.0
        self._end_us = now_us + LOOK_MIN_US

    def over(self, now_us: int) -> bool:
        """Whether the last one has been looked at."""
        return self._end_us <= now_us

    def join_us(self, now_us: int) -> int:
        """When to look at one more."""
        elapsed_us = now_us - self._measured_at_us
        if elapsed_us >= MEASURE_US:
            self._per_s = max(1.0, (self._per_s + self.starts * 1e6 / elapsed_us) / 2)
            self.starts, self._measured_at_us = 0, now_us
        self._end_us = max(self._end_us, now_us + LOOK_MIN_US) + round(5e5 / self._per_s)
        if self._end_us > now_us + LOOK_MAX_US:
            self._end_us = now_us + LOOK_MIN_US  # evenly over the whole time, round by round
        return self._end_us
