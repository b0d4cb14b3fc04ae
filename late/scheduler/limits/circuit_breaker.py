"""A circuit breaker: stops calling a target that fails, and looks now and then if it is back.

    closed ── too many of enough calls failed ──▶ open ── after a while ──▶ half-open
       ▲                                            ▲                          │
       └────────── the probe succeeded ─────────────┼───── the probe failed ───┘

Counts are kept in ten buckets of a second each, so that they forget. Source: Nygard, "Release It!".

A few tasks that always fail are no failing target, however often they are tried: while a call has
worked within `ALIVE_US`, those of `TASKS_MIN` different tasks must have failed, or of as many tasks
as there are failures that open it.
"""

from __future__ import annotations

from typing import Literal

from late.clock import was_set_back

SPAN_US = 10_000_000
BUCKETS = 10
OPEN_MAX_S = 60.0
TASKS_MIN = 5
ALIVE_US = 60_000_000
PROBE_LOST_US = 600_000_000
"""A probe of which nothing is heard for so long (its shard was lost) no longer counts."""


class CircuitBreaker:
    """The circuit of one target in one worker."""

    def __init__(self, ratio: float, calls: int, open_s: float) -> None:
        self.ratio = ratio
        self.calls = calls
        self.open_s = open_s
        self.state: Literal["closed", "open", "half-open"] = "closed"
        self.opened = 0
        """Number of times that it has opened."""
        self.open_since_us: int | None = None
        """The time since when it has not been closed; None while it is."""
        self._at_opening = (0, 0)
        self._opened_at_us = self._until_us = 0
        self._pause_s = open_s
        self._probe_at_us: int | None = None
        self._good = [0] * BUCKETS
        self._bad = [0] * BUCKETS
        self._slot = 0
        self._failed: dict[object, int] = {}
        """The last tasks that failed, different ones, and the bucket of each."""
        self._good_at_us = -ALIVE_US

    def admits(self, now_us: int) -> bool:
        """Return whether a call may be made now; an open circuit admits one after its pause."""
        if self.state == "closed":
            return True
        over = now_us >= self._until_us or was_set_back(now_us, self._opened_at_us)
        if self.state == "open" and over:
            self.state, self._probe_at_us = "half-open", None
        if self.state == "open":
            return False
        lost = self._probe_at_us is not None and now_us - self._probe_at_us > PROBE_LOST_US
        return self._probe_at_us is None or lost

    def started(self, now_us: int) -> None:
        """Note that a call was made, after `admits`."""
        if self.state == "half-open":
            self._probe_at_us = now_us

    def undone(self) -> None:
        """Note that the call was not made after all, or says nothing of the target."""
        self._probe_at_us = None

    def ended(self, good: bool, now_us: int, task: object = None) -> bool:
        """Note that a call ended; return True when this has closed the circuit.

        Args:
            task: whose call it was; without it, that of a task of its own.
        """
        if self.state == "half-open":
            if good:
                self._close()
                return True
            self._open(now_us)
            return False
        self._count(good, now_us)
        if good:
            self._good_at_us = now_us
        else:
            self._note(object() if task is None else task)
        if self.state == "closed" and not good and self.failing(self.calls, self.ratio):
            self._pause_s = self.open_s
            self._open(now_us)
        return False

    def failing(self, calls: int, ratio: float) -> bool:
        """Return whether there were `calls` recent calls, the share `ratio` of them failed, and it
        is not a few tasks alone that fail."""
        bad, good = sum(self._bad), sum(self._good)
        if bad + good < calls or bad < ratio * (bad + good):
            return False
        recent = [slot for slot in self._failed.values() if slot > self._slot - BUCKETS]
        alive = self._slot * SPAN_US // BUCKETS - self._good_at_us < ALIVE_US
        return len(recent) >= min(TASKS_MIN, self.calls * self.ratio) or not alive

    def recent(self, now_us: int) -> tuple[int, int]:
        """Return how many calls ended in the last ten seconds, and how many of them failed; of a
        circuit that is not closed those before it opened, because hardly any are made since."""
        if self.state != "closed":
            return self._at_opening
        self._forget(now_us)
        bad = sum(self._bad)
        return sum(self._good) + bad, bad

    @property
    def until_us(self) -> int:
        """The time at which an open circuit is tried next."""
        return self._until_us

    def _open(self, now_us: int) -> None:
        if self.open_since_us is None:
            self._at_opening = self.recent(now_us)
            self.open_since_us = now_us
        self.state = "open"
        self.opened += 1
        self._probe_at_us = None
        self._opened_at_us = now_us
        self._until_us = now_us + round(self._pause_s * 1_000_000)
        self._pause_s = min(OPEN_MAX_S, self._pause_s * 2)

    def _close(self) -> None:
        self.state, self.open_since_us = "closed", None
        self._probe_at_us = None
        self._pause_s = self.open_s
        self._good, self._bad = [0] * BUCKETS, [0] * BUCKETS
        self._failed.clear()

    def _count(self, good: bool, now_us: int) -> None:
        self._forget(now_us)
        (self._good if good else self._bad)[self._slot % BUCKETS] += 1

    def _note(self, task: object) -> None:
        self._failed.pop(task, None)
        self._failed[task] = self._slot
        if len(self._failed) > TASKS_MIN:
            del self._failed[next(iter(self._failed))]

    def _forget(self, now_us: int) -> None:
        """Empty the buckets of the seconds that have passed."""
        width_us = SPAN_US // BUCKETS
        slot = now_us // width_us
        if was_set_back(now_us, self._slot * width_us):
            self._slot = slot  # else nothing would be forgotten until it has caught up
            self._failed.clear()
            self._good_at_us = min(self._good_at_us, now_us)
        for passed in range(self._slot + 1, min(slot, self._slot + BUCKETS) + 1):
            self._good[passed % BUCKETS] = self._bad[passed % BUCKETS] = 0
        self._slot = max(slot, self._slot)
