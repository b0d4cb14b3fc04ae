"""Let a new worker wait for one that leaves, and take its place. Pure.

A deployment starts each new worker before it stops an old one. If the new one joins at once, it
gets shards of all others, and soon after all others get the shards of the old one. So a worker may
begin on **standby** (`LATE_STANDBY_S`): it lives and is ready, and owns nothing. When a worker says
that it is about to leave, the standby takes its **place**, which is the name by which placement
knows a worker: its own id at first. Then each shard of the one that leaves moves once, to the
standby, and no other shard moves.

Who has which place follows from one view of the fleet (`places`), so all workers agree:

| worker | place |
|---|---|
| may own shards | the one that it announces; its id if it announces none |
| the same, and another one has announced its id | its id with a `'` behind |
| is about to leave, has withdrawn, or is on no list of members | none; its place is vacant |
| on standby | a vacant place, by the order of names; none if there is none |
| on standby, and nobody in the group has a place by these lines | its id |

Workers with [lanes](docs/lanes.md) of their own count among those with the same lanes alone: the
shards of one that leaves are none for a worker of other lanes.

A standby announces its place when a view shows that it has one. From then on it is a worker like
all others. It joins under its own id when it has waited for long enough, when it is alone in a
group, or beside a worker of an older version, which knows no places. A worker that dies leaves no
place behind: it is in no view, and its shards must not wait.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from late.clock import Monotonic
from late.store.base import Membership, WorkerInfo
from late.tailer.placement import LANES, PLACES, agreed, lanes_of, place_of, waits


def places(workers: Iterable[WorkerInfo], group: str) -> tuple[dict[str, WorkerInfo], int]:
    """Return place -> worker for those that may own shards of `group`, and the number of the
    placement that they have in common.

    A worker that states a capacity of zero, or none that can be compared, owns nothing.
    """
    serving = sorted((w for w in workers if group in w.groups), key=lambda w: w.worker_id)
    able = [worker for worker in serving if 0 < worker.capacity < math.inf]
    number = agreed(worker.version for worker in able)
    if number < PLACES:
        return {worker.worker_id: worker for worker in able}, number
    found: dict[str, WorkerInfo] = {}
    # The worker that has taken a place keeps it when the one before comes back.
    for worker in sorted(able, key=lambda w: not place_of(w.version)):
        if not waits(worker.version):
            place = _place(worker)
            found[place if place not in found else f"{worker.worker_id}'"] = worker
    standbys = [worker for worker in able if waits(worker.version)]
    leaving = [w for w in serving if w.capacity == 0 and not waits(w.version)]
    for lanes, waiting in _by_lanes(standbys, number).items():
        vacant = {_place(w) for w in _by_lanes(leaving, number).get(lanes, ())} - found.keys()
        found.update(zip(sorted(vacant), waiting, strict=False))
        if lanes not in _by_lanes(found.values(), number):
            found.update((worker.worker_id, worker) for worker in waiting)
    return found, number


def _by_lanes(
    workers: Iterable[WorkerInfo], number: int
) -> dict[tuple[str, ...], list[WorkerInfo]]:
    """Return the workers by the lanes that they serve; all together by a placement without."""
    found: dict[tuple[str, ...], list[WorkerInfo]] = {}
    for worker in workers:
        lanes = lanes_of(worker.version) if number >= LANES else ()
        found.setdefault(lanes, []).append(worker)
    return found


class Standby:
    """One worker's wait.

    Args:
        me: its id.
        wait_s: the longest wait, from the first view on.
    """

    def __init__(self, me: str, wait_s: float, monotonic: Monotonic) -> None:
        self._me = me
        self._wait_s = wait_s
        self._monotonic = monotonic
        self._until_s = math.inf
        self.over = wait_s <= 0

    def observe(self, membership: Membership) -> str | None:
        """Take the next view in.

        Returns:
            The place to announce from now on, once; empty: that of its id. None before and after.
        """
        groups = [w.groups for w in membership.workers if w.worker_id == self._me]
        if self.over or not groups:
            return None
        now_s = self._monotonic()
        self._until_s = min(self._until_s, now_s + self._wait_s)
        for group in groups[0]:
            found, _ = places(membership.workers, group)
            for place, worker in found.items():
                if worker.worker_id == self._me:
                    self.over = True
                    return "" if place == self._me else place
        if now_s < self._until_s:
            return None
        self.over = True
        return ""


def _place(worker: WorkerInfo) -> str:
    return place_of(worker.version) or worker.worker_id
