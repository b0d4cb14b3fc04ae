"""Time: a monotonic source that tests can replace, and what is known of the database's clock.

The database's clock is the only one that decides anything: due times, expiries, leases. A worker
cannot ask it before each task, so it keeps a **lower bound** of it. A lower bound can make a task
late by a little; it can never make one early.

Wall time of this machine is never read here. It is for people, and `offset_us` shows how far it
is from the database's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

Monotonic = Callable[[], float]
"""Seconds from an arbitrary start, never going back. Production uses `time.monotonic`, tests
`late.testing.clock.VirtualClock().monotonic`."""

DRIFT_MAX = 500e-6
"""The share by which the database's clock may be slower than this machine's: the kernel slews a
clock by at most 500 ppm, and a free-running quartz stays far below that."""

_SECOND_US = 1_000_000
SET_BACK_US = 1_000_000
"""A lower bound goes back by milliseconds when a reply was slow; by more than this, somebody has
set the clock."""


def was_set_back(now_us: int, since_us: int) -> bool:
    """Return whether the database's clock was set back since it showed `since_us`.

    Whoever waits for a time to pass since then would wait for as long as the clock went back.
    """
    return now_us < since_us - SET_BACK_US


class DatabaseClock:
    """A lower bound of the database's clock, from samples that arrive with every reply.

    A sample says: the database's clock showed `db_us` at some moment **before** the reply was
    here, at `monotonic_after_s`. So at any later moment `m` it shows at least::

        db_us + (m - monotonic_after_s) * (1 - DRIFT_MAX)

    The latest sample decides alone. Keeping the highest bound of all samples would be tighter
    after a slow reply, but it would stay ahead for good once the database's clock is set back;
    this way it follows with the next sample. Between a step back and that sample nobody can know.

    Nothing here waits or does I/O. `sample` and `now_us` may be called from different threads:
    the state is one tuple, replaced as a whole.

    Args:
        monotonic: the time source.
        resolution_us: the step of the database's clock as the store reads it. Elapsed time is
            rounded down to whole steps, because a clock that shows milliseconds shows *less*
            than the true time for most of each of them.
        confirmed_s: how long a sample confirms the time, for `confirmed_us`. A worker's time to
            live.
    """

    __slots__ = ("_confirmed_s", "_monotonic", "_resolution_us", "_sample")

    def __init__(
        self,
        monotonic: Monotonic = time.monotonic,
        *,
        resolution_us: int = 1,
        confirmed_s: float = math.inf,
    ) -> None:
        assert resolution_us >= 1
        self._monotonic = monotonic
        self._resolution_us = resolution_us
        self._confirmed_s = confirmed_s
        self._sample: tuple[int, float] | None = None

    def sample(self, db_us: int, monotonic_after_s: float) -> None:
        """Learn that the database's clock showed `db_us` before local time `monotonic_after_s`.

        Replies can overtake each other: one that was received before the current sample is
        ignored.
        """
        if self._sample is None or monotonic_after_s >= self._sample[1]:
            self._sample = (db_us, monotonic_after_s)

    def now_us(self) -> int:
        """Microseconds since the Unix epoch by the database's clock, or a little less.

        0 before the first sample: a lower bound too, under which nothing is due. It goes back
        when the database's clock does, so differences of two calls may be negative.
        """
        if self._sample is None:
            return 0
        db_us, after_s = self._sample
        elapsed_us = int((self._monotonic() - after_s) * (1 - DRIFT_MAX) * _SECOND_US)
        # A sample taken by another thread may lie in this thread's future by a hair.
        return db_us + max(0, elapsed_us - elapsed_us % self._resolution_us)

    def confirmed_us(self) -> int:
        """Return the same as `now_us`, but stand still `confirmed_s` after the last sample.

        Whether a task is due is decided by this one. A worker that was paused, or that has lost
        the database, does not know whether the clock was set back meanwhile: what is due only by
        the time that ran on here may not be due at all. (To forbid starts alone is not enough: a
        task that was found due before the next sample would start after it.)
        """
        if self._sample is None:
            return 0
        db_us, after_s = self._sample
        elapsed_s = min(self._monotonic() - after_s, self._confirmed_s)
        elapsed_us = int(elapsed_s * (1 - DRIFT_MAX) * _SECOND_US)
        return db_us + max(0, elapsed_us - elapsed_us % self._resolution_us)

    @property
    def age_s(self) -> float | None:
        """Seconds since the last sample, None before the first. For doctor and metrics."""
        return None if self._sample is None else self._monotonic() - self._sample[1]

    def offset_us(self, wall_us: int) -> int | None:
        """The time by which the database is ahead of a wall clock that shows `wall_us` now.

        None before the first sample. Wrong by the age of the sample * `DRIFT_MAX` and the time
        that the reply took. For people: nothing may be decided by it.
        """
        return None if self._sample is None else self.now_us() - wall_us
