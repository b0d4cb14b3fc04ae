"""How many workers a queue needs: for an orchestrator that scales them. Pure.

By Little's law: tasks a second, times seconds of a slot that each takes, is how many slots must be
busy. To the rate of now comes what drains the backlog in the time that is allowed:

    wanted = (rate + backlog / drain) x busy / slots

A backlog that nobody works on tells nothing of its tasks: it asks for one worker, and the next
look knows more. No more workers than shards: the others would own none.
"""

from __future__ import annotations

import math

import msgspec


class Signals(msgspec.Struct, frozen=True):
    """What is known of one consumer group, or of one of its queues."""

    backlog: int
    """Tasks that wait for no time: in the log, started and not settled, or held by their key."""
    age_s: float
    """Of the oldest task that is not settled; 0 without one."""
    rate: float
    """Attempts that ended per second, lately."""
    busy_s: float
    """Seconds of a slot that one attempt takes, lately; 0 where nothing is known."""
    workers: int
    """Live ones of the group."""
    shards: int
    failed: float = 0.0
    """How many of `rate` failed: they will be retried, or the task died."""

    @property
    def drain_s(self) -> float:
        """How long the backlog takes at the present rate; infinite where nothing moves."""
        if not self.backlog:
            return 0.0
        return self.backlog / self.rate if self.rate > 0 else math.inf

    def saturation(self, slots: int) -> float:
        """Share of the workers' slots that is busy, as `slots` each."""
        return self.rate * self.busy_s / (slots * self.workers) if self.workers else 0.0


def workers_wanted(seen: Signals, *, slots: int, drain_s: float) -> int:
    """Workers for the load and its backlog: 0 only when there is nothing to do.

    Args:
        slots: tasks that one worker runs at once.
        drain_s: in what time a backlog is to be gone.
    """
    if not seen.backlog and seen.rate <= 0:
        return 0
    needed = (seen.rate + seen.backlog / drain_s) * seen.busy_s / slots
    # What is 2.0000001 by a rounding is 2.
    return min(max(1, math.ceil(needed - 1e-6)), max(1, seen.shards))
