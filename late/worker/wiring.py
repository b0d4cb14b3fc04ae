"""What of an app a worker can run: small parts of the wiring in `worker.py`."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from collections.abc import Collection, Mapping, Sequence

import msgspec

from late import events
from late.app.app import App
from late.config import WorkerConfig
from late.dispatcher.dispatcher import Dispatcher
from late.model.task import PULL, Policy
from late.notify import notifier as waking
from late.notify.listener import Ear
from late.scheduler.limits.limits import LOCAL_POOL
from late.scheduler.scheduler import Scheduler
from late.scheduler.settings import CoreSettings
from late.scheduler.task_state import ROUTE
from late.tailer.tailer import Tailer
from late.worker.fence_report import Counts
from late.worker.progress import Duty

SWITCH_S = 0.0005


def devote() -> None:
    """For a process that does nothing but work.

    What is in memory now is to stay and is never collected: a full collection of what was imported
    takes 20 ms, in which nothing starts. A thread that needs the interpreter beside a busy loop
    gets it within half a millisecond, not five: SQLite's needs it some ten times for a settlement,
    and a worker stops starting tasks when too many wait for theirs.
    """
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(SWITCH_S)


def policies_of(app: App) -> dict[str, Policy]:
    """How tasks are run, by name, and by queue for those without."""
    found = {name: task.policy for name, task in app.tasks.items()}
    return found | {ROUTE + queue: policy for queue, policy in app.routes.items()}


def fetched(policies: Mapping[str, Policy]) -> dict[str, Policy]:
    """The same for a process without slots of its own: others fetch what would run here."""
    return {
        name: msgspec.structs.replace(policy, target=PULL)
        if policy.target == LOCAL_POOL
        else policy
        for name, policy in policies.items()
    }


def possible(policies: Mapping[str, Policy], pools: Collection[str]) -> dict[str, Policy]:
    """Without those of a target that this worker does not have: such a task is parked like one
    without a handler."""
    return {n: p for n, p in policies.items() if p.target == LOCAL_POOL or p.target in pools}


def duties(
    scheduler: Scheduler,
    slots: Dispatcher,
    tailer: Tailer,
    *,
    trusted: bool,
    refused: bool = False,
) -> Sequence[Duty]:
    """What a worker owes, and what it has done of it: see `late/worker/progress.py`.

    Who is not `trusted` may start nothing, so it owes no start: else one that has given its shards
    up, and has tasks that are ready, would owe what it must not do, and never come back. A shard
    whose open tasks are being fetched is not read yet, so a fetch is part of reading.

    What the store has `refused` for good is gone from memory and still owed. A settlement of any
    shard is progress: else one row that nobody may write would take worker after worker down.
    """
    unsettled = scheduler.unrecorded > 0 or (trusted and refused)
    idle = trusted and bool(scheduler.ready or slots.waiting) and not slots.running
    return (
        Duty("start", idle or slots.all_stuck, slots.ended),
        Duty("settle", unsettled, scheduler.settlements),
        Duty("read", tailer.reading or scheduler.loading, tailer.reads + scheduler.loads),
    )


def core_settings(settings: WorkerConfig) -> CoreSettings:
    """Of a worker's settings, those of its shards' cores."""
    return CoreSettings(
        window=settings.window,
        page_size=settings.page_size,
        horizon_us=round(settings.horizon_s * 1_000_000),
        timers_max=settings.timers_max,
    )


def ear_of(settings: WorkerConfig, heard: waking.Heard) -> Ear | None:
    """Where a worker hears of commits, if it is to: listens from now on.

    Raises:
        ConfigError: it cannot, or must not without a secret.
    """
    if settings.wake_port is None:
        return None
    return Ear(settings.wake_host, settings.wake_port, waking.secret(), heard)


async def hear(ear: Ear | None, heard: waking.Heard) -> None:
    """Until cancelled, take the hints of this process, and with an `ear` those of others."""
    loop = asyncio.get_running_loop()

    def from_any_thread(shards: waking.Shards) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: it goes away
            loop.call_soon_threadsafe(heard, shards)

    with waking.listening(from_any_thread):
        if ear is None:
            await loop.create_future()
        else:
            events.default.emit(events.HINTS_HEARD, host=ear.host, port=ear.port)
            await ear.run()


def alone(error: Exception) -> Exception:
    """The one error of a group of one, which is how a task group raises it."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def sweep(url: str, history_keep_s: float) -> None:
    """House-keeping that is not the store's: what `Control.sweep` does, from any thread."""
    from late.control import Control

    with Control(url) as control:
        control.sweep(history_keep_s=history_keep_s)


def add_refused(url: str, more: Counts) -> None:
    """Count what was refused, by shard."""
    # From the package, as everywhere: two threads that import it from different ends at the
    # same time would each wait for the other, and one of them would see half of it.
    from late.control import Control, Refused

    with Control(url) as control:
        control.status.add_refused({shard: Refused(*counts) for shard, counts in more.items()})
