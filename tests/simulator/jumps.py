"""The database's clock is set forward or back in the middle of a simulated world.

Only where that can be: commit timestamps of Spanner and CockroachDB never go back. What is judged
goes on as promised: nothing is lost, nothing runs twice at a time under one owner, and everything
comes to an end. Two promises are by the clock:

- nothing starts before its time: that the clock has shown once, or would have shown within the
  lease of a worker that has not heard of a step back;
- nothing starts after its lease, as far as a worker can know that has not heard of a step forward.

A worker that may start tasks has had an answer of the database within its time to live, and every
answer has the time.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

EPOCH_US = 1_800_000_040_000_000
"""When a world begins: 20 s before a whole minute, which cron rules wait for."""
SHARE = 0.2
"""Of worlds that have any, where there can be."""
PROFILES = ("sqlite", "postgres")
NEAR_S = (-60.0, -20.0, -2.0, -0.3, 0.3, 2.0, 20.0)
"""Shorter than a lease, or a few of them."""
FAR_S = (-600.0, -240.0, 300.0, 3600.0)
"""Longer than everything that anybody waits for in a world."""
FAR_SHARE = 0.4
"""Of jumps."""
MARGIN_S = 1.0
"""An answer has been on its way."""


class Jump(msgspec.Struct, frozen=True):
    """Somebody sets the clock."""

    at_s: float
    by_s: float


def draw(rng: random.Random, live_s: float, profile: str) -> tuple[Jump, ...]:
    """None, one or two."""
    if profile not in PROFILES or rng.random() > SHARE:
        return ()
    found = [
        Jump(rng.uniform(0.5, live_s), rng.choice(FAR_S if rng.random() < FAR_SHARE else NEAR_S))
        for _ in range(rng.choice((1, 1, 2)))
    ]
    return tuple(sorted(found, key=lambda jump: jump.at_s))


class JumpingClock:
    """The database's clock, and the readings of it that a worker may still go by."""

    def __init__(self, now_s: Callable[[], float], ttl_s: float) -> None:
        """
        Args:
            now_s: the time of the world, which nobody sets.
            ttl_s: of a worker's lease.
        """
        self._now_s = now_s
        self._kept_s = ttl_s + MARGIN_S
        self._jumps: list[tuple[float, int, int]] = []
        """(when, from, to): how far it was ahead of the time that really passes, microseconds."""
        self._ahead_us = 0

    @property
    def back_us(self) -> int:
        """By how much it was set back, all in all."""
        return sum(max(0, before - after) for _, before, after in self._jumps)

    @property
    def jumped(self) -> bool:
        return bool(self._jumps)

    def was_set_back(self, since_us: int) -> bool:
        """Whether somebody set it back since then, by `elapsed_us`."""
        return any(
            before > after and self._real_us(at_s) >= since_us
            for at_s, before, after in self._jumps
        )

    def set(self, jump: Jump) -> None:
        before, self._ahead_us = self._ahead_us, self._ahead_us + round(jump.by_s * 1e6)
        self._jumps.append((self._now_s(), before, self._ahead_us))

    def elapsed_us(self) -> int:
        """The time that has really passed, from the same beginning."""
        return self._real_us(self._now_s())

    def longest_us(self) -> int:
        """The same with each step forward, by which budgets earn as well."""
        return self.elapsed_us() + sum(max(0, after - before) for _, before, after in self._jumps)

    def now_us(self) -> int:
        """What it shows."""
        return self.elapsed_us() + self._ahead_us

    def latest_us(self) -> int:
        """The latest time that a worker may have taken it to be so far."""
        believed = [
            self._real_us(min(self._now_s(), at_s + self._kept_s)) + before
            for at_s, before, _ in self._jumps
        ]
        return max(self.now_us(), *believed, 0)

    def earliest_us(self) -> int:
        """The earliest time that a worker may take it to be."""
        since_s = self._now_s() - self._kept_s
        lately = (before for at_s, before, _ in self._jumps if at_s >= since_s)
        return self.elapsed_us() + min(self._ahead_us, *lately, self._ahead_us)

    @staticmethod
    def _real_us(at_s: float) -> int:
        return EPOCH_US + round(at_s * 1e6)
