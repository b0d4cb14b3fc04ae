"""The number of workers that a queue needs, for an orchestrator that scales them. Pure.

By Little's law the number of busy slots is tasks a second times the seconds of a slot that each
takes. The rate that drains the backlog in the allowed time is added to the present rate:

    wanted = (rate + helped / drain) x busy / slots

`helped` is the part of the backlog that more workers would start: what waits for a target that is
away, or at a rate of its queue, waits for that with any number of them.

A backlog without a worker tells nothing about its tasks: it asks for one worker, and the next look
knows more. There are never more workers than shards: the rest would own none.
"""

from __future__ import annotations

import math

import msgspec


class TenantPace(msgspec.Struct, frozen=True):
    """The load that one tenant makes in a queue with a fair key, lately."""

    tenant: str
    arrivals: float
    """Tasks a second."""
    share: float
    """The part of what arrives in the queue, or of what ends there if that is more: the few that
    one sends beside the backlog of another are no flood."""
    slots: float
    """Slots that its attempts keep busy."""
    slot_share: float
    """The part of the queue's busy slots."""


class Signals(msgspec.Struct, frozen=True):
    """The load of one consumer group, or of one of its queues."""

    backlog: int
    """Tasks that do not wait for their time: in the log, started and not settled, or held by their
    key."""
    age_s: float
    """Age of the oldest task that is not settled; 0 without one."""
    rate: float
    """Attempts that ended per second, lately."""
    busy_s: float
    """Seconds of a slot that one attempt takes, lately; 0 if unknown."""
    workers: int
    """Live ones of the group."""
    shards: int
    failed: float = 0.0
    """The part of `rate` that failed: they will be retried, or the task died."""
    tenants: tuple[TenantPace, ...] = ()
    """The tenants of a queue with a fair key that send most or have most slots, those first."""
    tenants_seen: int = 0
    """The number of all its tenants."""
    helped: int | None = None
    """The tasks that more workers would start: the backlog without what a limit holds back, and
    what is parked because its tenant has its share of the slots. None: all of the backlog."""
    limits: tuple[str, ...] = ()
    """The limits that hold some of it back, for people."""
    expired: float = 0.0
    """Tasks a second that ended as expired, lately: they never ran."""

    @property
    def moving(self) -> int:
        """The part of the backlog that no limit holds back."""
        return self.backlog if self.helped is None else min(self.backlog, self.helped)

    @property
    def moving_s(self) -> float:
        """The time that this part takes, as `drain_s` is that of the whole."""
        return msgspec.structs.replace(self, backlog=self.moving).drain_s

    @property
    def drain_s(self) -> float:
        """The time that the backlog takes at the rate of what ends well; infinite if nothing does:
        an attempt that fails comes again."""
        if not self.backlog:
            return 0.0
        well = self.rate - self.failed
        return self.backlog / well if well > 0 else math.inf

    def saturation(self, slots: int) -> float:
        """Return the busy share of the workers' slots, with `slots` each."""
        return self.rate * self.busy_s / (slots * self.workers) if self.workers else 0.0


def workers_wanted(seen: Signals, *, slots: int, drain_s: float) -> int:
    """Return the number of workers for the load and its backlog; 0 only if there is nothing to do.

    Args:
        slots: tasks that one worker runs at once.
        drain_s: time in which a backlog shall be worked off.
    """
    if not seen.backlog and seen.rate <= 0:
        return 0
    helped = seen.backlog if seen.helped is None else seen.helped
    needed = (seen.rate + helped / drain_s) * seen.busy_s / slots
    # 2.0000001 from a rounding error is 2.
    return min(max(1, math.ceil(needed - 1e-6)), max(1, seen.shards))
