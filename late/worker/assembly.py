"""The small parts that `worker.py` assembles, and the start of a worker process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import random
import signal
import sys
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from late import config, events
from late.app.app import App
from late.app.handlers import handlers_of
from late.concurrency import Beats
from late.dispatcher.dispatcher import Dispatcher
from late.dispatcher.settler import Settler
from late.handler.fingerprint import UNKNOWN
from late.model import handlers
from late.model.handlers import ROUTE
from late.model.task import PULL, Policy
from late.notify import notifier
from late.notify.listener import HintListener
from late.scheduler.events_effects import Hold
from late.scheduler.limits.limits import LOCAL_POOL
from late.scheduler.limits.outages import Outages
from late.scheduler.scheduler import Scheduler
from late.scheduler.settings import CoreSettings
from late.schema.engine import shown
from late.store import open_wake_ups
from late.store.base import Membership, NameEnds, Settlement, WakeUps, WorkerInfo
from late.tailer import placement
from late.tailer.discovery import own_name
from late.tailer.heartbeat import Exchange, Heartbeat
from late.tailer.lease_keeper import LeaseKeeper
from late.tailer.tailer import Tailer
from late.worker.background import BackgroundJob, BackgroundService
from late.worker.file_limit import raise_file_limit
from late.worker.pools import Dispatchers
from late.worker.reload import Reading, Reloader, at_hangup
from late.worker.shadow import ShadowMode
from late.worker.watch.fence_report import Counts
from late.worker.watch.progress import SLOTS, Duty

if TYPE_CHECKING:
    from late.control import Control

COMMIT_US = 200_000
"""The time that a commit may take without making a retry late that its settlement writes."""
SWITCH_S = 0.0005
ASK_S = 0.2

logger = logging.getLogger("late.worker")


def identity(worker: str, url: str) -> dict[str, str]:
    """Return what a worker says of itself at its start. The path of a file is whole: a relative one
    means another file in another folder."""
    database, scheme = shown(url), "sqlite:///"
    if database.startswith(scheme):
        database = scheme + os.path.abspath(database.removeprefix(scheme))
    return {"worker": worker, "version": config.package_version(), "database": database}


def freeze_gc() -> None:
    """Tune the interpreter for a process that does nothing but run tasks.

    The objects in memory now stay and are never collected: a full collection of what was imported
    takes 20 ms, in which nothing starts. A thread that needs the interpreter beside a busy loop
    gets it within half a millisecond, not five: SQLite's needs it some ten times for a settlement,
    and a worker stops starting tasks when too many wait for theirs.
    """
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(SWITCH_S)


def policies_of(app: App) -> dict[str, Policy]:
    """Map each task name to its policy, and each routed queue to the policy of unnamed tasks."""
    found = {name: task.policy for name, task in app.tasks.items()}
    return found | {ROUTE + queue: policy for queue, policy in app.routes.items()}


def queues_of(policies: Mapping[str, Policy]) -> tuple[str, ...]:
    """Return the queues of these policies, ascending; see `policies_of`."""
    found = (name.removeprefix(ROUTE) if name.startswith(ROUTE) else policy.queue
             for name, policy in policies.items())  # fmt: skip
    return tuple(sorted(set(found)))


def exchange_of(outages: Outages, worker_id: str, shadow: ShadowMode) -> Exchange:
    """Return what takes in the failures that the other workers told of, and returns ours. A shadow
    tells of none: its code is on trial, and nothing else is."""

    def exchange(fleet: Membership) -> tuple[NameEnds, ...]:
        if shadow.on:
            return ()
        others = (worker for worker in fleet.workers if worker.worker_id != worker_id)
        return outages.exchange((each for worker in others for each in worker.ends), fleet.now_us)

    return exchange


def as_pulled(policies: Mapping[str, Policy]) -> dict[str, Policy]:
    """Return the policies for a process without slots: other processes fetch its local tasks."""
    return {
        name: msgspec.structs.replace(policy, target=PULL)
        if policy.target == LOCAL_POOL
        else policy
        for name, policy in policies.items()
    }


def runnable_policies(policies: Mapping[str, Policy], pools: Collection[str]) -> dict[str, Policy]:
    """Leave out the policies of a target that this worker does not have: such a task is parked
    like one without a handler."""
    return {n: p for n, p in policies.items() if p.target == LOCAL_POOL or p.target in pools}


def worker_info(
    worker_id: str,
    groups: tuple[str, ...],
    settings: config.WorkerConfig,
    declared: str | None,
) -> WorkerInfo:
    """Return what a worker says of itself; `declared`: see `declared_handlers`."""
    members = config.Members.parse(settings.membership)
    return WorkerInfo(
        worker_id=worker_id,
        # Peers with a list of members know a worker by the first part.
        address=f"{own_name(members, settings.member)}:{os.getpid()}",
        groups=groups,
        capacity=settings.capacity,
        version=version_of(settings),
        handlers=declared,
    )


def version_of(settings: config.WorkerConfig, place: str | None = None) -> str:
    """Return the version that a worker announces, with its part in placement: at first, and from
    when it has a `place`, which is empty for that of its own id."""
    return placement.announced(
        config.package_version(),
        standby=place is None and settings.standby_s > 0,
        place=place or "",
        lanes=settings.lane_names,
    )


def declared_handlers(app: App, policies: Mapping[str, Policy]) -> str | None:
    """Return what a worker with these policies declares to handle; see `late.model.handlers`."""
    mine = handlers_of(app)
    return handlers.text_of({name: mine.get(name, UNKNOWN) for name in policies})


def duties(
    scheduler: Scheduler,
    slots: Dispatcher,
    tailer: Tailer,
    *,
    trusted: bool,
    refused: bool = False,
    exits: bool = False,
) -> Sequence[Duty]:
    """Report what a worker owes and has done of it: see `late/worker/watch/progress.py`.

    A worker that is not `trusted` may start nothing, so it owes no start: otherwise one that gave
    its shards up while tasks were ready would owe what it must not do, and never come back. A
    shard whose open tasks are being fetched is not read yet, so a fetch is part of reading.

    Settlements that the store `refused` for good are gone from memory and still owed. A settlement
    of any shard is progress: otherwise one row that nobody may write would stop every worker.

    A worker without a slot that could get free owes slots. One that `exits` then owes them as soon
    as one task holds its share of them: no more of this task starts here.
    """
    unsettled = scheduler.unrecorded > 0 or (trusted and refused)
    stuck = slots.stuck
    idle = trusted and bool(scheduler.ready or slots.waiting) and not slots.running
    return (
        Duty("start", idle and not stuck.everywhere, slots.ended),
        Duty(SLOTS, stuck.everywhere or (exits and bool(stuck.tasks)), stuck.over),
        Duty("settle", unsettled, scheduler.settlements),
        Duty("read", tailer.reading or scheduler.loading, tailer.reads + scheduler.loads),
    )


def core_settings(settings: config.WorkerConfig) -> CoreSettings:
    """Select the settings of the shards' cores from those of a worker."""
    return CoreSettings(
        window=settings.window,
        page_size=settings.page_size,
        horizon_us=round(settings.horizon_s * 1_000_000),
        timers_max=settings.timers_max,
        soon_us=round(settings.settle_delay_s * 1_000_000) + COMMIT_US,
        offers=True,
    )


def open_listener(settings: config.WorkerConfig, heard: notifier.Heard) -> HintListener | None:
    """Open the socket on which a worker learns of commits, if it has a port for it.

    Raises:
        ConfigError: the address cannot be used, or it needs a secret.
    """
    if settings.wake_port is None:
        return None
    return HintListener(settings.wake_host, settings.wake_port, notifier.secret(), heard)


async def take_hints(listener: HintListener | None, tailer: Tailer, heartbeat: Heartbeat) -> None:
    """Take the hints of this process, with a `listener` those of others, and the notices of the
    database, until cancelled."""
    loop = asyncio.get_running_loop()

    def from_any_thread(shards: notifier.Shards) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the worker stops
            loop.call_soon_threadsafe(tailer.hint, shards)

    with notifier.listening(from_any_thread):
        if listener is None:
            await tailer.listen(heartbeat.stir)
            await loop.create_future()
        else:
            events.default.emit(events.HINTS_HEARD, host=listener.host, port=listener.port)
            await asyncio.gather(listener.run(), tailer.listen(heartbeat.stir))


def wake_ups_of(url: str, settings: config.WorkerConfig) -> WakeUps | None:
    """Return what tells a worker of commits while it sleeps, or None if nothing does.

    Raises:
        ConfigError: `listen_url` cannot be read.
    """
    if settings.waking == "off":
        return None
    return open_wake_ups(url, listen_url=settings.listen_url, prepared=settings.waking == "on")


def background(
    jobs: Iterable[BackgroundJob], rng: random.Random
) -> tuple[Beats, BackgroundService]:
    """Make the beats of a worker, one for each view of the fleet, and its jobs, which wait for
    them."""
    beats = Beats()
    return beats, BackgroundService([*jobs], rng, wait=beats.near)


async def until(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Do `work`, and give it up when `event` is set."""
    working, ended = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    await asyncio.wait({working, ended}, return_when=asyncio.FIRST_COMPLETED)
    for each in (working, ended):
        each.cancel()
    await asyncio.wait({working, ended})
    if not working.cancelled():
        working.result()  # a defect must not look like an end


async def within(seconds: float, work: Coroutine[Any, Any, None]) -> None:
    """Do `work`, and give it up after so long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await work


async def unless(is_over: Callable[[], bool], *work: Coroutine[Any, Any, object]) -> None:
    """Do `work`, all at once, and give it up when `is_over`, which is asked now and then."""
    working = asyncio.gather(*work)
    try:
        while not working.done() and not is_over():
            await asyncio.wait({working}, timeout=ASK_S)
    finally:
        working.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await working


def has_nothing(dispatchers: Dispatchers, scheduler: Scheduler, keeper: LeaseKeeper) -> bool:
    """Tell whether a worker that stops has nothing left to hand over or to record: nothing runs,
    and its leases have ended, because the database was away for so long."""
    return not (dispatchers.running or scheduler.unrecorded or keeper.trusted)


async def release(settler: Settler, keeper: LeaseKeeper) -> None:
    """Record what there is, and give the leases up."""
    await settler.flush()
    await keeper.release_all()


def unwrap_group(error: Exception) -> Exception:
    """Return the one error of a group of one, which is how a task group raises it."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def refused(scheduler: Scheduler, dispatchers: Dispatchers) -> Counts:
    """Count the writes of each shard that the fence refused, and the results that came late."""
    fenced, late = scheduler.fenced, scheduler.late_results
    dropped = dispatchers.late_by_shard
    return {
        shard: (fenced[shard], late[shard] + dropped[shard]) for shard in {*fenced, *late, *dropped}
    }


def hold(scheduler: Scheduler, settlement: Settlement) -> None:
    """Start nothing more of a shard whose settlement the store refuses, until it takes it."""
    core = scheduler.cores.get((settlement.group, settlement.shard_id))
    if core is not None and core.state.lease.epoch == settlement.epoch:
        core.step(Hold())


def add_refused(control: Callable[[], Control], more: Counts) -> None:
    """Add up, by shard, the writes that the fence refused."""
    # From the package, as everywhere: two threads that import it from different ends at the
    # same time would each wait for the other, and one of them would see half of it.
    from late.control import Refused

    control().status.add_refused({shard: Refused(*counts) for shard, counts in more.items()})


def run_process(
    app: App,
    make: Callable[..., Stoppable],
    groups: Sequence[str] | None,
    read: Callable[[], Reading],
) -> int:
    """Run what `make` makes until a signal, in an event loop of its own, uvloop's where it is
    installed.

    Args:
        make: takes `groups` and `settings`.
        read: reads the settings: now, and again at each SIGHUP.

    Raises:
        ConfigError: wrong settings.
    """
    reading = read()

    async def serve() -> int:
        service = make(groups=tuple(groups or (app.group,)), settings=reading.worker)
        return await run_until_signal(service, Reloader(read, reading, service.take))

    raise_file_limit()
    loop_factory = None
    with contextlib.suppress(ImportError):
        import uvloop

        loop_factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(serve())


class Stoppable(Protocol):
    """A worker, or a server with one."""

    async def start(self) -> None: ...
    async def wait(self) -> int: ...
    def ask_to_stop(self) -> None: ...
    def take(self, settings: config.WorkerConfig) -> None: ...


async def run_until_signal(service: Stoppable, reload: Reloader) -> int:
    """Start `service`, stop it at SIGTERM or SIGINT, and return the exit code. SIGHUP reads the
    settings anew, unless it says that the terminal is gone."""
    loop = asyncio.get_running_loop()
    asked = False

    def ask_to_stop() -> None:
        nonlocal asked
        logger.info(
            "stopping at once"
            if asked
            else "stopping: what runs has its grace (LATE_GRACE_S); a second signal does not wait"
        )
        asked = True
        service.ask_to_stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask_to_stop)
    loop.add_signal_handler(signal.SIGHUP, at_hangup(reload, ask_to_stop))
    await service.start()
    freeze_gc()
    return await service.wait()
