"""Decide how long a worker waits between two heartbeats. Pure.

Heartbeats are most of what an idle fleet costs. Where the database tells of changes of the fleet
(a join, a leave, a grant, a release, an offer), a worker that hears of them needs no heartbeat to
learn of them. So while nothing has changed for `CALM_AFTER_S` it beats half as often. A notice ends
that: the next heartbeat comes at the usual pace after the last one, or at once if that is over. So
a change is seen as soon as by a worker that is not calm, and a flood of notices costs no more than
the usual pace. A notice that is lost costs the rest of the longer pause. While a worker of an older
version is in view, which tells nobody, nobody is calm.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from late.store.base import TELLS, LeaseView, WorkerInfo

_log = logging.getLogger("late.heartbeat")

CALM_AFTER_S = 8.0
"""Longer than a release waits for all peers to know of it (`release_notice.py`)."""
CALM_SHARE = 2.0
"""A calm worker waits so many times as long."""


class BeatPace:
    """The pace of one worker. All times are seconds of one monotonic clock.

    Args:
        every_s: the usual time between two heartbeats.
        trust_s: the time for which the answer to one is trusted. Two calm heartbeats fit in, so
            that one of them may be lost.
        told: returns whether this worker is told of changes now; called in any thread.
    """

    def __init__(self, every_s: float, trust_s: float, told: Callable[[], bool]) -> None:
        self.every_s = every_s
        self._calm_s = max(every_s, min(every_s * CALM_SHARE, trust_s / 2))
        self._told = told
        self._changed_s = -math.inf
        self._all_tell = False
        self._seen: tuple[tuple[WorkerInfo, ...], tuple[LeaseView, ...]] = ((), ())

    def saw(
        self, workers: tuple[WorkerInfo, ...], leases: tuple[LeaseView, ...], now_s: float
    ) -> None:
        """Take in the fleet that the last heartbeat brought."""
        if (workers, leases) != self._seen:
            self._seen = (workers, leases)
            self._changed_s = now_s
            self._all_tell = all(TELLS in each.version for each in workers)

    def heard(self, now_s: float) -> None:
        """Take in a notice of a change."""
        self._changed_s = now_s

    def pause_s(self, now_s: float) -> float:
        """Return the time from one heartbeat to the next."""
        is_quiet = self._all_tell and now_s >= self._changed_s + CALM_AFTER_S
        calm = is_quiet and self._is_told()
        return self._calm_s if calm else self.every_s

    def _is_told(self) -> bool:
        """Ask `told`. Its error must not end the heartbeat: the usual pace is always right."""
        try:
            return self._told()
        except Exception:
            _log.exception("not known whether this worker is told of changes")
            return False
