"""Maintenance: old rows go, by one worker of the fleet for all.

Any worker may do it, and one is enough: by convention the one that holds the lowest shard of one
of its groups.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from late import events
from late.app.backpressure import EVERY_S, BacklogPublisher
from late.concurrency import in_thread
from late.config import WorkerConfig
from late.store.base import PruneReport
from late.worker.background import BackgroundJob
from late.worker.watch.lag_alarm import LagAlarm, lag_alarm_job
from late.worker.watch.lock_waits import lock_waits_job

if TYPE_CHECKING:
    from late.worker.worker import Worker

SWEEP_EVERY_S = 600.0


def jobs_of(worker: Worker, store: Prunable) -> Iterator[BackgroundJob]:
    """Yield what a worker does in the background. It reads the settings anew at each run."""

    async def sweep() -> None:
        keep_s = worker.settings.journal_keep_s
        await in_thread(lambda: worker.control().sweep(history_keep_s=keep_s))

    def watches_lag() -> bool:
        return bool(worker.settings.lag_alarm_s) and mine()

    mine = worker.is_maintainer
    yield worker.refusals.job
    yield backlog_job(worker.backlog)
    yield prune_job(store, is_maintainer=mine, settings=lambda: worker.settings)
    yield sweep_job(sweep, is_maintainer=mine, recheck_s=worker.settings.prune_every_s)
    if worker.app.url.startswith("postgresql"):
        yield lock_waits_job(worker)
    yield lag_alarm_job(LagAlarm(worker.groups), worker.control, is_maintainer=watches_lag)


class Prunable(Protocol):
    """The part of a `Store` that maintenance needs."""

    async def prune(
        self, *, journal_keep_s: float, journal_detail_s: float, journal_minute_s: float
    ) -> PruneReport: ...


def prune_job(
    store: Prunable,
    *,
    is_maintainer: Callable[[], bool],
    settings: Callable[[], WorkerConfig],
) -> BackgroundJob:
    """Remove settled rows of the task log, old settlements and dead workers from the store, and put
    settlements together that are older than their detail is kept."""

    async def prune() -> None:
        began, now = time.monotonic(), settings()
        report = await store.prune(
            journal_keep_s=now.journal_keep_s,
            journal_detail_s=now.journal_detail_s,
            journal_minute_s=now.journal_minute_s,
        )
        events.default.emit(
            events.PRUNED,
            tasks=report.tasks,
            partitions=report.partitions,
            settlements=report.settlements,
            workers=report.workers,
            compacted=report.compacted,
            duration_s=time.monotonic() - began,
        )

    period_s = settings().prune_every_s
    return BackgroundJob(
        name="prune",
        run=prune,
        period_s=period_s,
        # Soon the first time: on PostgreSQL it lays out the partitions for what is to come.
        first_s=min(1.0, period_s),
        condition=is_maintainer,
    )


def sweep_job(
    sweep: Callable[[], Awaitable[object]],
    *,
    is_maintainer: Callable[[], bool],
    recheck_s: float,
    every_s: float = SWEEP_EVERY_S,
) -> BackgroundJob:
    """Remove small rows that are not urgent (`Control.sweep`); first after a tenth of its time."""
    return BackgroundJob(
        name="sweep",
        run=sweep,
        period_s=every_s,
        first_s=every_s / 10,
        recheck_s=min(recheck_s, every_s),
        condition=is_maintainer,
    )


def backlog_job(publisher: BacklogPublisher) -> BackgroundJob:
    """Publish what takes no new tasks, for all producers."""
    return BackgroundJob(
        name="backlog",
        run=publisher.publish,
        period_s=EVERY_S,
        first_s=0.0,
        condition=publisher.due,
    )
