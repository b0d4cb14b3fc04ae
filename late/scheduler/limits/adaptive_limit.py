"""Find by trying how many calls a target bears at once (AIMD), and start slowly after silence.

Additive increase: one more for each full window of good answers while the limit was in use.
Multiplicative decrease: times 0.7 on a sign of overload, once a second at most, because one brown
second answers many calls alike. Source: the congestion avoidance of TCP (Jacobson, 1988).
"""

from __future__ import annotations

from late.clock import was_set_back

LEAST = 2
MOST = 256
FIRST = 16.0
DECREASE = 0.7
CUT_EVERY_US = 1_000_000
SLOW_START_SHARE = 0.1
DOUBLINGS = 3.4
"""From a tenth to all of it: log2(10)."""


class AdaptiveLimit:
    """The limit of one target in one worker."""

    def __init__(self) -> None:
        self._limit = FIRST
        self._cut_at_us = -CUT_EVERY_US

    @property
    def limit(self) -> int:
        """Calls at once."""
        return int(self._limit)

    def good(self, running: int) -> None:
        """Count an answer without overload, while `running` calls were out, itself included."""
        # A limit that is not reached is not tested: it must not grow on quiet nights.
        if running * 2 >= self._limit:
            self._limit = min(float(MOST), self._limit + 1.0 / self._limit)

    def overloaded(self, now_us: int) -> None:
        """Take in a sign of overload: a refusal, a time-out."""
        over = now_us - self._cut_at_us >= CUT_EVERY_US
        if over or was_set_back(now_us, self._cut_at_us):
            self._cut_at_us = now_us
            self._limit = max(float(LEAST), self._limit * DECREASE)


class SlowStart:
    """From a tenth to the whole of a limit, doubling, over `seconds` since `begin`."""

    def __init__(self, seconds: float, now_us: int) -> None:
        self.seconds = seconds
        self._begun_us = now_us
        self._over = seconds <= 0

    def begin(self, now_us: int) -> None:
        """Start slowly from now on."""
        self._begun_us = now_us
        self._over = self.seconds <= 0

    def of(self, limit: int, now_us: int) -> int:
        """Return how much of `limit` is allowed now; one at least."""
        if self._over or self.seconds <= 0:
            return limit
        if was_set_back(now_us, self._begun_us):
            self._begun_us = now_us
        share = (now_us - self._begun_us) / (self.seconds * 1_000_000)
        if share >= 1.0:
            self._over = True
            return limit
        return max(1, int(limit * SLOW_START_SHARE * 2 ** (DOUBLINGS * max(0.0, share))))
