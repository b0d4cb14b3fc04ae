"""The waits before a next try. Pure, except for the random source that is passed in."""

from __future__ import annotations

import random

BACKOFF_MIN_S = 0.1
BACKOFF_MAX_S = 30.0
JITTER = 0.2
QUIET_SHARE = 1 / 32


class Backoff:
    """Exponential backoff with full jitter.

    The n-th wait in a row is uniform in [0, min(cap, base * 2^(n-1))]. Workers that lost the same
    database at the same time must not come back at the same time.

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
        # The exponent is bounded: after many hours of failures 2**n would be a very long number.
        bound_s = min(self._cap_s, self._base_s * 2 ** min(self._failures, 32))
        self._failures += 1
        return self._rng.uniform(0, bound_s)

    @property
    def failures(self) -> int:
        """The failures in a row so far."""
        return self._failures

    def reset(self) -> None:
        """Note a success: the next failure counts as the first one."""
        self._failures = 0


def poll_after_s(quiet_s: float, least_s: float, most_s: float, rng: random.Random) -> float:
    """Return the wait before the next read of a log in which nothing came for `quiet_s`.

    It is a 32nd of that time, between `least_s` and `most_s`, with 20 % of jitter.

    A wait in proportion to the silence grows exponentially (each wait is 1/32 longer than the one
    before), and it has a bound that plain doubling lacks: a record after a silence of any length is
    late by at most a 32nd of that silence. So a steady stream whose records are up to
    32 * `least_s` apart is read every `least_s`. The wait grows from 5 ms to 1 s in about 170 polls
    and half a minute. An eighth needs a quarter of those polls and was rejected: a record after two
    seconds of silence waited for a quarter of a second, which was the longest delay that a service
    saw.
    """
    wait_s = min(most_s, max(least_s, quiet_s * QUIET_SHARE))
    return wait_s * rng.uniform(1 - JITTER, 1 + JITTER)
