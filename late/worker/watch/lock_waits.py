"""Look at who waits for whose locks, on PostgreSQL, by one worker for all groups.

A deadlock is seen by its victim, which does not know the other one, and a wait that ends well is
seen by nobody. A look every second finds both: PostgreSQL ends a deadlock after one second. What
waits for less is mostly missed. An idle fleet does not look: nobody there is in another's way.
Where groups have separate workers, the one that looks knows only whether it is idle itself. It
looks then as well, but rarely after a minute in which nobody waited. The waits are recorded like
all other conflicts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from late.concurrency import in_thread
from late.observability import conflicts
from late.tailer.ownership import first_holder
from late.worker.background import BackgroundJob

if TYPE_CHECKING:
    from late.control import Control
    from late.control.analyze.postgres import Sampler
    from late.store.base import Membership
    from late.worker.metrics import WorkerView

LOOK_EVERY_S = 1.0
TELL_EVERY_S = 10.0
QUIET_S = 60.0
"""Seconds in which nobody waited, after which an idle worker looks rarely."""
RARELY_S = 10.0


class LockWaits:
    """Samples and records waits.

    Args:
        control: the worker's, called in a thread.
    """

    def __init__(
        self,
        control: Callable[[], Control],
        *,
        record: Callable[..., None] = conflicts.default.record,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._control = control
        self._record = record
        self._clock = clock
        self._sampler: Sampler | None = None
        self._looked = self._told = self._met = clock()

    @property
    def rests(self) -> bool:
        """Tell whether an idle worker may leave a look out: nobody waited lately."""
        now = self._clock()
        return now - self._met >= QUIET_S and now - self._looked < RARELY_S

    async def look(self) -> None:
        """Take one sample; it reads the server's own views and no table of `late`."""
        await in_thread(self._look)

    def _look(self) -> None:
        control = self._control()
        if self._sampler is None:
            self._sampler = control.lock_sampler()
        rows = control.lock_waits()
        now = self._clock()
        # After a pause, as while another worker did this, a wait counts no more than one step.
        self._sampler.take(rows, now, min(now - self._looked, 2 * LOOK_EVERY_S))
        self._looked = now
        if rows:
            self._met = now
        if now - self._told >= TELL_EVERY_S:
            self._told = now
            self._tell(self._sampler)

    def _tell(self, sampler: Sampler) -> None:
        for wait in sampler.drain():
            self._record(
                "waiting",
                wait.tag,
                duration_s=wait.lost_s,
                count=wait.count,
                key=wait.place,
                other=wait.other,
                statement=wait.statement,
                other_statement=wait.other_statement,
                other_idle=wait.other_idle,
            )


def lock_waits_job(worker: WorkerView) -> BackgroundJob:
    """Look while this worker is the one that does so for all groups."""
    waits = LockWaits(worker.control)

    def looks() -> bool:
        fleet = worker.keeper.fleet
        if fleet is None or first_holder(fleet) != worker.id:
            return False
        cores = worker.scheduler.cores.values()
        if any(each.state.running for each in cores):
            return True
        return _serves_less(worker, fleet) and not waits.rests

    return BackgroundJob(
        name="lock waits",
        run=waits.look,
        period_s=LOOK_EVERY_S,
        recheck_s=2 * LOOK_EVERY_S,
        condition=looks,
    )


def _serves_less(worker: WorkerView, fleet: Membership) -> bool:
    """Return whether others serve groups that this worker does not: it cannot see them at work."""
    mine = {*worker.groups, *fleet.shadows}
    return any(not mine.issuperset(other.groups) for other in fleet.workers)
