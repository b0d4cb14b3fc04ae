"""Waits before the next try: pure, except for the random source that is passed in."""

from __future__ import annotations

import random

BACKOFF_MIN_S = 0.1
BACKOFF_MAX_S = 30.0
JITTER = 0.2
QUIET_SHARE = 1 / 32


class Backoff:
    """Full jitter: the n-th wait in a row is uniform in [0, min(cap, base * 2^(n-1))].

    Workers that lost the same database at the same moment must not come back at the same moment.

    Source: Marc Brooker, "Exponential backoff and jitter" (AWS, 2015).
    """

    def __init__(
        self, rng: random.Random, *, base_s: float = BACKOFF_MIN_S, cap_s: float = BACKOFF_MAX_S
    ) -> None:
        self._rng = rng
        self._base_s = base_s
        self._cap_s = cap_s
        self._failures = 0

    def next_s(self) -> float:
        """Count one more failure in a row and return the wait after it."""
        # The exponent is bounded: after a night of failures 2**n would be a very long number.
        bound_s = min(self._cap_s, self._base_s * 2 ** min(self._failures, 32))
        self._failures += 1
        return self._rng.uniform(0, bound_s)

    @property
    def failures(self) -> int:
        """The failures in a row so far."""
        return self._failures

    def reset(self) -> None:
        """Note a success: the next failure is the first again."""
        self._failures = 0


def poll_after_s(quiet_s: float, least_s: float, most_s: float, rng: random.Random) -> float:
    """The wait before an idle log, quiet for `quiet_s`, is asked again: a 32nd of that time,
    between `least_s` and `most_s`, with 20 % of jitter.

    Waiting in proportion to the silence is exponential growth (each wait is 1/32 longer than the
    one before), with a bound that plain doubling lacks: a record that ends a silence of any
    length is late by that part of it at most, so a steady stream is read at `least_s` however
    its records are spaced, up to 32 * `least_s` apart. From 5 ms to 1 s it takes some 170 polls in
    half a minute. An eighth, which takes a quarter of them, left what came after two seconds of
    silence waiting for a quarter of a second: the worst of all that a service saw.
    """
    wait_s = min(most_s, max(least_s, quiet_s * QUIET_SHARE))
    return wait_s * rng.uniform(1 - JITTER, 1 + JITTER)
