"""The line of a flow that is held back: how fast it moves, and when its parked tasks come back.

All of them after the same few seconds would come in vain and be parked again, each for a row
deleted and a row written: a jam of 100,000 would cost more than the work. So they come back one
after the other, twice as fast as the flow has moved lately. Twice, because a flow that gets no
more than it can do would never show that it could do more.
"""

from __future__ import annotations

LOOK_MIN_US = 1_000_000
"""What moves within this time is not parked."""
LOOK_MAX_US = 60_000_000
"""Whatever the line's length: a limit may be lifted at any time."""
STANDS_US = 5_000_000
"""Of a flow that does not move, the first look."""
MEASURE_US = 200_000


class Line:
    """Of one flow in one shard. Times in microseconds, by the database's clock."""

    def __init__(self) -> None:
        self.starts = 0
        """Since the last measurement; the owner counts."""
        self.per_s: float | None = None
        """How fast it moves; None: it is too young for that to be known."""
        self._measured_at_us: int | None = None
        self._end_us = 0

    def measure(self, now_us: int) -> float | None:
        """`per_s` as it is now."""
        if self._measured_at_us is None:
            self.starts, self._measured_at_us = 0, now_us
        elapsed_us = now_us - self._measured_at_us
        if elapsed_us >= MEASURE_US:
            found = self.starts * 1e6 / elapsed_us
            # The longer the time, the more it says.
            weight = min(1.0, elapsed_us / LOOK_MIN_US)
            old = found if self.per_s is None else self.per_s
            self.per_s = old + (found - old) * weight
            self.starts, self._measured_at_us = 0, now_us
        return self.per_s

    @property
    def keeps(self) -> int:
        """Tasks that start before the first of the parked ones is back."""
        return round((self.per_s or 0.0) * LOOK_MIN_US / 1e6)

    def over(self, now_us: int) -> bool:
        """Whether the last one has been looked at."""
        return self._end_us <= now_us

    def join_us(self, now_us: int) -> int:
        """When to look at one more."""
        per_s = self.per_s or 0.0
        first_us = now_us + (LOOK_MIN_US if per_s >= 1.0 else STANDS_US)
        self._end_us = max(self._end_us, first_us) + round(5e5 / max(1.0, per_s))
        if self._end_us > now_us + LOOK_MAX_US:
            self._end_us = first_us  # evenly over the whole time, round by round
        return self._end_us
