"""A token bucket: how many may start now at a steady rate. Pure; time comes in as microseconds."""

from __future__ import annotations

import math


class TokenBucket:
    """Full at first: `burst` may start at once, then `rate` a second.

    Invariant: within any time of `t` seconds at most `burst + rate * t` tokens are taken.
    """

    def __init__(self, rate: float, burst: float, now_us: int) -> None:
        self.rate = rate
        self.burst = max(1.0, burst)
        self._tokens = self.burst
        self._at_us = now_us

    def resize(self, rate: float, burst: float, now_us: int) -> None:
        """Another rate from now on; what was saved up stays, as far as it fits."""
        self._fill(now_us)
        self.rate, self.burst = rate, max(1.0, burst)
        self._tokens = min(self._tokens, self.burst)

    def left(self, now_us: int) -> float:
        """Tokens that are there."""
        self._fill(now_us)
        return self._tokens

    def has(self, now_us: int) -> bool:
        """Whether a token can be taken."""
        self._fill(now_us)
        return self._tokens >= 1.0

    def take(self) -> None:
        """Take one, after `has`."""
        self._tokens -= 1.0

    def give_back(self) -> None:
        """It was not used after all."""
        self._tokens = min(self.burst, self._tokens + 1.0)

    def earn(self, tokens: float) -> None:
        """More of them, from elsewhere than time."""
        self._tokens = min(self.burst, self._tokens + tokens)

    def next_at_us(self, now_us: int, ahead: int = 0) -> int:
        """When a token is there for who has `ahead` others before it."""
        self._fill(now_us)
        missing = 1.0 + ahead - self._tokens
        return now_us if missing <= 0 else now_us + math.ceil(missing / self.rate * 1_000_000)

    def _fill(self, now_us: int) -> None:
        # A clock that was set back earns nothing until it has caught up.
        if now_us > self._at_us:
            earned = (now_us - self._at_us) * self.rate / 1_000_000
            self._tokens = min(self.burst, self._tokens + earned)
            self._at_us = now_us
