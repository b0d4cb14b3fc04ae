"""View the fleet: the workers that may own shards, their weights, and those that come and go."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

import msgspec

from late.config import member_name
from late.store.base import Membership, WorkerInfo

QUARANTINE_US = 30_000_000
"""A worker that vanished and came back must stay so long before peers give up shards for it."""

SILENCE_MARGIN_S = 1.0
"""The time by which the two clocks may differ about the end of a lease."""
SILENCE_UNKNOWN_S = 60.0
"""The least patience with a worker that was not seen to live; several heartbeats of any setting."""


def weights(membership: Membership, group: str) -> dict[str, float]:
    """Return worker id -> capacity of the live workers that serve `group`.

    A worker that states a capacity of zero, or none that can be compared, owns nothing.
    """
    return {
        worker.worker_id: worker.capacity
        for worker in membership.workers
        if group in worker.groups and 0 < worker.capacity < math.inf
    }


def member_of(worker: WorkerInfo) -> str:
    """Return the name by which a list of members knows a worker: the host of its address."""
    return member_name(worker.address.rpartition(":")[0])


def restricted(membership: Membership, names: Collection[str]) -> Membership:
    """Return the same fleet, in which only workers whose member is in `names` may own shards.

    The others stay in view with a capacity of zero: their heartbeats still count, so that a shard
    in their hands is handed over and not taken. A name without a live worker changes nothing: its
    shards belong to the others for as long.
    """
    return msgspec.structs.replace(
        membership,
        workers=tuple(
            worker if member_of(worker) in names else msgspec.structs.replace(worker, capacity=0.0)
            for worker in membership.workers
        ),
    )


def worked(membership: Membership) -> Membership:
    """Return the same fleet without groups that are paused or not registered (any more).

    Nobody serves such a group: what is held of it is released, and nothing of it is acquired.
    """
    active = membership.groups
    if active is None or all(active.issuperset(worker.groups) for worker in membership.workers):
        return membership
    return msgspec.structs.replace(
        membership,
        workers=tuple(
            msgspec.structs.replace(worker, groups=tuple(g for g in worker.groups if g in active))
            for worker in membership.workers
        ),
    )


class _SeenLease(NamedTuple):
    """The lease of a peer as the views have shown it."""

    end_us: int
    since_s: float
    """The monotonic time at which this end was seen first."""
    patience_s: float
    """The time from then on in which nobody need renew it."""
    longest_s: float
    """The most that it had left while the database's clock ran steadily; 0: not known."""


class SilentPeers:
    """Finds workers that are gone although the database's clock says that their lease goes on.

    A clock that is set back by ten minutes makes the last heartbeat of a dead worker good for ten
    minutes more. Whoever lives renews its lease; so one that nobody has renewed, by this process's
    own clock, for as long as it had left when its end was seen first is over.

    What it had left is true if the clock was not set between this view and the one before. More
    than it ever had, and more than our own time to live, is a clock that was set. (To take what
    it had left in earlier views is too little where those came late: it would remove the living.)
    """

    def __init__(self, ttl_s: float, unknown_s: float) -> None:
        """
        Args:
            ttl_s: the time to live of this worker; that of the others is the same as a rule.
            unknown_s: the patience with a worker of whom no heartbeat has been seen: what it had
                left at its last one is not known.
        """
        self._ttl_s = ttl_s
        self._unknown_s = unknown_s
        self._leases: dict[str, _SeenLease] = {}
        self._last: tuple[int, float, float] | None = None
        """The database's time of the last view, and between which times it was read here."""

    def observe(self, membership: Membership, asked_s: float, now_s: float) -> list[WorkerInfo]:
        """Take the next view in, and return who is gone.

        Args:
            asked_s, now_s: the time before the view was read, and the present, by the monotonic
                clock. A silence begins when it is known and ends when the view was asked for: a
                view that was late on its way shows no silence of others.
        """
        steady = self._is_steady(membership.now_us, asked_s, now_s)
        before, self._leases = self._leases, {}
        gone = []
        for worker in membership.workers:
            name, end_us = worker.worker_id, membership.expires_at_us.get(worker.worker_id, 0)
            left_s = (end_us - membership.now_us) / 1_000_000
            seen = before.get(name)
            if seen is None:
                seen = _SeenLease(end_us, now_s, self._unknown_s, 0.0)
            elif seen.end_us != end_us:
                most_s = left_s if steady else self._unknown_s
                if seen.longest_s:
                    most_s = max(seen.longest_s, self._ttl_s)
                patience_s = min(left_s, most_s)
                longest_s = max(seen.longest_s, left_s) if steady else seen.longest_s
                seen = _SeenLease(end_us, now_s, patience_s, longest_s)
            self._leases[name] = seen
            silent_s = asked_s - seen.since_s
            if silent_s > seen.patience_s + SILENCE_MARGIN_S and left_s > SILENCE_MARGIN_S:
                gone.append(worker)
        return gone

    def _is_steady(self, now_us: int, asked_s: float, now_s: float) -> bool:
        """Return whether both clocks, the database's and ours, went as far since the last view."""
        last, self._last = self._last, (now_us, asked_s, now_s)
        if last is None:
            return False
        last_us, last_asked_s, last_now_s = last
        passed_s = (now_us - last_us) / 1_000_000
        least_s, most_s = asked_s - last_now_s, now_s - last_asked_s
        return least_s - SILENCE_MARGIN_S <= passed_s <= most_s + SILENCE_MARGIN_S


class Roster:
    """Remembers workers that come and go.

    A new worker gets its share at once: its id has never been seen, because every process start
    makes a new one. One that **comes back** under its old id has lost heartbeats, by load or by
    the network, and is likely to do so again: moving shards to it and back would cost more than it
    can give. So its peers keep what they hold until it has stayed for `QUARANTINE_US`, by the
    database's clock. It may still take what is free.

    State: for every worker seen lately, since when it has been live without a break.
    """

    def __init__(self) -> None:
        self._live: frozenset[str] = frozenset()
        self._gone_us: dict[str, int] = {}
        self._back_us: dict[str, int] = {}

    def observe(self, membership: Membership) -> frozenset[str]:
        """Take the next view in and return the live workers that are in quarantine."""
        now_us = membership.now_us
        live = frozenset(worker.worker_id for worker in membership.workers)
        for worker_id in self._live - live:
            self._gone_us[worker_id] = now_us
            self._back_us.pop(worker_id, None)
        for worker_id in live & self._gone_us.keys():
            del self._gone_us[worker_id]
            self._back_us[worker_id] = now_us
        self._live = live
        # A clock that was set back makes an age negative; forgetting early costs a move at most.
        self._gone_us = _younger(self._gone_us, now_us, 10 * QUARANTINE_US)
        self._back_us = _younger(self._back_us, now_us, QUARANTINE_US)
        return frozenset(self._back_us)


def _younger(since: Mapping[str, int], now_us: int, age_us: int) -> dict[str, int]:
    return {key: at_us for key, at_us in since.items() if 0 <= now_us - at_us < age_us}
