"""A worker process: the only place that wires the components together.

    Heartbeat (thread) ─▶ LeaseKeeper ─▶ Scheduler ◀─ Tailer
                                     │    ▲
                          Dispatcher ◀┘    └─ Settler ─▶ store

It stops against the flow of the work: intake (tailer), what runs (dispatcher), its settlement
(settler), and the leases last, so that the worker counts as alive until everything is recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from late import config, events
from late.app.app import App
from late.app.backpressure import BacklogPublisher
from late.clock import DatabaseClock
from late.config import Members, WorkerConfig
from late.dispatcher.dispatcher import Dispatcher
from late.dispatcher.pull.pools import Pulls
from late.dispatcher.settler import Settler
from late.errors import LateError, StoreError
from late.model.offers import ELSEWHERE
from late.model.task import DEFAULT_GROUP, Policy
from late.scheduler.pools import Pool
from late.scheduler.scheduler import Scheduler, Shard
from late.store import open_store
from late.store.base import Lease, Membership, Page, Store
from late.tailer.discovery import MemberList
from late.tailer.heartbeat import Heartbeat
from late.tailer.lease_keeper import LeaseKeeper
from late.tailer.release_notice import ReleaseNotice
from late.tailer.tailer import Tailer
from late.worker import assembly
from late.worker.lane_follower import LaneFollower
from late.worker.maintenance import jobs_of
from late.worker.metrics import Telemetry
from late.worker.offers import offers_of
from late.worker.pools import Dispatchers, remote_pools
from late.worker.reload import Reading, of_keywords
from late.worker.settings_sync import SettingsSync
from late.worker.shadow import shadow_mode_of
from late.worker.shared_control import SharedControl
from late.worker.startup import open_resources, reach_database
from late.worker.transactions import transaction_pool_of
from late.worker.watch.fence_report import FenceReport
from late.worker.watch.health import Health, State
from late.worker.watch.progress import SLOTS, Duty
from late.worker.watch.reporter import reporter_of
from late.worker.watch.stall_monitor import StallMonitor

if TYPE_CHECKING:
    from late.control.queue_settings import Live

logger = logging.getLogger("late.worker")

STUCK_EXIT = 75
"""The exit code of a worker whose slots are stuck: EX_TEMPFAIL, a new process may get on."""
SETTLE_S = 5.0
"""The time that settling may take at a stop, after the grace."""


def run(
    app: App,
    *,
    groups: Sequence[str] | None = None,
    target: str | None = None,
    read: Callable[[], Reading] | None = None,
    **settings: Any,
) -> int:
    """Work until SIGTERM or SIGINT, then stop cleanly; a second signal stops at once.

    Args:
        app: with the tasks to run. `app.url` is the database.
        groups: consumer groups to work for; the app's own when None.
        target: where child processes import the app from, as `module:attr`; without it they find
            a handler by its module and name.
        read: reads the settings, and again at each SIGHUP; without it they are `settings`, fields
            of `late.config.WorkerConfig`.

    Returns:
        0 after a clean stop, 1 if a component failed, `STUCK_EXIT` with `exit_when_stuck`.

    Raises:
        LateError: wrong settings, no schema, a guard of the store refused: nothing was started.
    """
    make = partial(Worker, app, target=target)
    return assembly.run_process(app, make, groups, read or partial(of_keywords, settings))


class Worker:
    """One worker on the running event loop. For a process of its own, use `run`."""

    def __init__(
        self,
        app: App,
        *,
        groups: Sequence[str] | None = None,
        target: str | None = None,
        settings: WorkerConfig | None = None,
        rng: random.Random | None = None,
        policies: Mapping[str, Policy] | None = None,
    ) -> None:
        self.app = app
        self._policies = assembly.policies_of(app) if policies is None else policies
        self.settings = settings or config.load()
        self.id = f"w-{secrets.token_hex(8)}"
        self._rng = rng or random.Random()
        self.groups = tuple(groups or (app.group,))
        self._store: Store = open_store(app.url)
        step_us = max(1, round(self._store.features.time_resolution_s * 1_000_000))
        self.clock = DatabaseClock(resolution_us=step_us, confirmed_s=self.settings.lease_ttl_s)
        self._stop_asked, self._stop_at_once = asyncio.Event(), asyncio.Event()
        self._grace_s: float | None = None
        self._exit_code = 0
        self._hurried_stop: asyncio.Future[Any] | None = None
        self._loops: list[asyncio.Task[None]] = []
        self._closing = contextlib.AsyncExitStack()
        self._target = target
        self.control = SharedControl(app.url, alarm_s=self.settings.lag_alarm_s)
        self.telemetry = Telemetry(self)
        self.shadow = shadow_mode_of(self)
        self._wire()

    def _wire(self) -> None:
        """Make the components. They never import each other: calls between them go through here."""
        app, settings, store = self.app, self.settings, self._store
        self.pulls = self._pulls()
        remote = self._remote()
        self.pools: dict[str, Pool] = {**remote, **self.pulls.by_name}
        policies = assembly.runnable_policies(self.pulls.placed(self._policies), self.pools)
        self._declared = assembly.declared_handlers(app, policies)
        self.queues = assembly.queues_of(policies)
        self.offers = offers_of(self, store, self.groups, policies, remote, self._rng)
        self.pools[ELSEWHERE] = self.offers
        self.dispatcher = Dispatcher(
            app.tasks,
            worker_id=self.id,
            concurrency=settings.concurrency,
            now_us=self.clock.now_us,
            on_finished=lambda outcomes: self.offers.finished(outcomes),
            url=app.url,
            trusted=lambda: self.trusted,
            process_workers=settings.process_workers,
            rng=self._rng,
            app=self._target,
            offer=self.offers.offer,
            cancel_asked=lambda attempt: self.scheduler.cancel_asked(attempt),
        )
        self.dispatchers = Dispatchers(self.dispatcher, remote, self.pulls, self.offers)
        self.settler = Settler(
            store,
            collect=lambda urgent: self.scheduler.collect(urgent),
            on_result=lambda settlement, result: self.scheduler.settled(settlement, result),
            on_error=lambda refused, error: self.keeper.refused(refused, error),
            on_kept=lambda refused: assembly.hold(self.scheduler, refused),
            delay_s=settings.settle_delay_s,
            batch=settings.settle_batch,
            rng=self._rng,
        )
        self.tailer = Tailer(
            store,
            wanted=lambda: self.shadow.wanted(self.scheduler.wanted()),
            on_pages=self._pages,
            page_size=settings.page_size,
            poll_max_s=settings.poll_max_s or store.features.poll_max_s,
            rng=self._rng,
            wake_ups=assembly.wake_ups_of(app.url, settings),
            on_doubt=lambda: self.keeper.drop_all(),
        )
        self.scheduler = Scheduler(
            store,
            policies,
            slots=self.dispatcher,
            pools=self.pools,
            shards_total=lambda: self.keeper.shards_total,
            shards_beyond=lambda: self.keeper.shards_beyond,
            concurrency=settings.concurrency,
            now_us=self.clock.confirmed_us,
            settle_soon=self.settler.poke,
            read_soon=self.tailer.wake,
            trusted=lambda: self.trusted,
            commit_s=self.settler.commit_s,
            on_fenced=lambda shard: self.keeper.forget(shard),
            on_held=lambda: self.settings_sync.hurry(),
            settings=assembly.core_settings(settings),
            rng=self._rng,
        )
        self.listener = assembly.open_listener(settings, self.tailer.hint)
        self._wire_control()
        self._wire_ownership()

    def _wire_control(self) -> None:
        self.refusals = FenceReport(
            partial(assembly.refused, self.scheduler, self.dispatchers),
            partial(assembly.add_refused, self.control),
        )
        # A tick is one row of the log, for all groups: the default one's owners fire it.
        fires = DEFAULT_GROUP in self.groups
        self.settings_sync: SettingsSync = SettingsSync(
            self.control,
            on_settings=self._change_settings,
            on_lanes=LaneFollower(self.app, self.settings.lane_names, self.scheduler.resized).take,
            on_schedules=partial(self.scheduler.schedules, group=DEFAULT_GROUP) if fires else None,
            replays=self.shadow,
            is_maintainer=self.is_maintainer,
            waits=lambda: self.scheduler.gated,
            rng=self._rng,
        )
        self.backlog = BacklogPublisher(self.control, self.groups, mine=self.is_maintainer)
        self.beats, self.background = assembly.background(jobs_of(self, self._store), self._rng)

    def _change_settings(self, live: Live) -> None:
        self.scheduler.limits.set_groups(live.groups, live.reads)
        self.scheduler.change_settings(live.queues, live.targets)
        self.backlog.follow(live)

    def _remote(self) -> dict[str, Any]:
        pools = remote_pools(
            self.app,
            worker_id=self.id,
            now_us=self.clock.now_us,
            on_finished=lambda outcomes: self.offers.finished(outcomes),
            trusted=lambda: self.trusted,
            rng=self._rng,
        )
        return {**pools, **transaction_pool_of(self, self._rng)}

    def _pulls(self) -> Pulls:
        return Pulls(
            self._policies.values(),
            now_us=self.clock.now_us,
            on_finished=lambda outcomes: self.offers.finished(outcomes),
            wake=lambda: self.scheduler.wake(),
            trusted=lambda: self.trusted,
            rng=self._rng,
        )

    def _wire_ownership(self) -> None:
        app, settings, store = self.app, self.settings, self._store
        self.members = MemberList(Members.parse(settings.membership), self.id, rng=self._rng)
        self.keeper = LeaseKeeper(
            store,
            self.id,
            on_acquired=self._acquired,
            before_release=self._hand_over,
            on_lost=self.scheduler.lost,
            on_distrusted=self.scheduler.wake,
            on_trusted=self._trusted_again,
            hurry=lambda: self.heartbeat.hurry(),
            kept=lambda: self.dispatchers.overdue,
            seen=self.members.view,
            layout=lambda: self.scheduler.gate.layout,
            announce=lambda place: self.heartbeat.announce(assembly.version_of(settings, place)),
            notice=ReleaseNotice(settings.beat_every_s),
            takeovers_max=settings.takeovers_max,
            ttl_s=settings.lease_ttl_s,
            standby_s=settings.standby_s,
            rng=self._rng,
        )
        info = assembly.worker_info(self.id, self.groups, settings, self._declared)
        self.address = info.address
        self.heartbeat: Heartbeat = Heartbeat(
            app.url,
            info,
            ttl_s=settings.lease_ttl_s,
            every_s=settings.beat_every_s,
            margin_s=config.margin_s(settings, self._store.features.lease_margin_min_s),
            on_membership=self._observe,
            clock=self.clock,
            rng=self._rng,
            beside=self._beside(),
            exchange=assembly.exchange_of(self.scheduler.limits.outages, self.id, self.shadow),
            told=lambda: self.tailer.told_of_fleet,
        )

    def _acquired(self, leases: list[Lease]) -> None:
        self.scheduler.acquired(self.shadow.fitting(leases))
        self.settings_sync.read_again()

    def _trusted_again(self) -> None:
        self.scheduler.recovered()
        self.tailer.resume()

    def _observe(self, membership: Membership, trusted_until: float, sent_s: float) -> None:
        self.keeper.observe(self.shadow.view(membership), trusted_until, sent_s)
        self.settings_sync.told(membership.settings)
        self.offers.told(membership.offers)
        self.scheduler.wake()
        self.beats.beat()

    def _beside(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        """Make what runs in the heartbeat's thread, where a blocked loop cannot hold it up."""
        settings = self.settings
        self.stall_monitor = StallMonitor(
            settings.stall_s,
            self._duties,
            reachable=lambda: self.heartbeat.reachable and not self.settler.refused,
            on_change=self._stalled,
            wait=lambda most_s: self.heartbeat.beats.within(most_s),
        )
        self.reporter = reporter_of(
            self, self.stall_monitor, lambda s: self.heartbeat.beats.near(s)
        )
        self.health: Health | None = None
        host, port, fd = settings.health_host, settings.health_port, settings.health_fd
        if port is None and fd is None:
            return [self.stall_monitor.run, self.reporter.run]
        self.health = Health(host, port or 0, self._state, metrics=self.telemetry.page, fd=fd)
        return [self.stall_monitor.run, self.reporter.run, self.health.run]

    def _duties(self) -> Sequence[Duty]:
        return assembly.duties(
            *(self.scheduler, self.dispatcher, self.tailer),
            trusted=self.trusted,
            refused=self.keeper.quarantine.recent,
            exits=bool(self.settings.exit_when_stuck),
        )

    def _stalled(self, undone: frozenset[str]) -> None:
        """Give the shards up. One whose slots are stuck is alive: it keeps those of the handlers
        that run on, and hands the others over. It runs in the heartbeat's thread."""
        self.heartbeat.resign(bool(undone - {SLOTS}))
        self.heartbeat.withdraw(SLOTS in undone)
        if SLOTS in undone and self.settings.exit_when_stuck and not self._stop_asked.is_set():
            self._exit_code = STUCK_EXIT
            self.stall_monitor.call(self.ask_to_stop)

    @property
    def trusted(self) -> bool:
        """True if a task may be started now."""
        return self.keeper.trusted and not self.heartbeat.resigned

    def _state(self) -> State:
        """Answer the health check. It runs in the heartbeat's thread, so it changes nothing."""
        stalled = tuple(sorted(self.stall_monitor.stalled))
        reason = ""
        if self._stop_asked.is_set():
            reason = "it stops"
        elif stalled:
            reason = "it stalls"
        elif not self._loops:
            reason = self.app.span.waits_for or "it starts: the database has not answered yet"
        elif time.monotonic() >= self.heartbeat.trusted_until:
            reason = "its heartbeat has no answer"
        return State(self.id, live=not stalled, ready=not reason, stalled=stalled, reason=reason)

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Check the database, begin to work.

        Raises:
            StoreError: no connection, no schema, or a guard refused. Nothing runs then.
        """
        settings, health, stop = self.settings, self.health, self._stop_asked
        try:
            await reach_database(self._store.open, settings.wait_for_database_s, stop, health)
            self.clock.sample(await self._store.now(), time.monotonic())
            if await self.shadow.begin(self.control):
                self.dispatchers.record()
            await open_resources(self._closing, self.app.span, stop, health)
            await self.dispatchers.start()
            rates = {} if self.shadow.on else self.app.first_rates
            lanes, name = settings.lane_names, self.address
            await self.settings_sync.open(self.app.schedules, self.groups, rates, lanes, name)
        except BaseException:
            await self.dispatchers.stop(0.0)
            await self._close()
            raise
        self.stall_monitor.watch(asyncio.get_running_loop())
        if health is not None and settings.health_fd is None:
            events.default.emit(events.HEALTH_SERVED, host=settings.health_host, port=health.port)
        for name, loop in (
            ("telemetry", self.telemetry.run),
            ("scheduler", self.scheduler.run),
            ("settler", self.settler.run),
            ("tailer", self.tailer.run),
            ("hints", partial(assembly.take_hints, self.listener, self.tailer, self.heartbeat)),
            ("keeper", self.keeper.run),
            ("heartbeat", self.heartbeat.until_refused),
            ("members", self.members.run),
            ("settings", self.settings_sync.run),
            ("background", self.background.run),
            ("offers", self.offers.watch),
        ):
            self._loops.append(asyncio.create_task(self._guard(name, loop), name=f"late-{name}"))
        self.heartbeat.start()
        if self._store.features.experimental:
            events.default.emit(events.STORE_EXPERIMENTAL, store=type(self._store).__name__)
        events.default.emit(events.WORKER_STARTED, **assembly.identity(self.id, self.app.url))

    async def _guard(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        """Run a component. When it fails the worker stops: half a one would hold its shards."""
        try:
            await loop()
        except Exception as failure:
            error = assembly.unwrap_group(failure)
            # A refusal of the database needs no traceback; a fault of our own does.
            trace = None if isinstance(error, StoreError) else error
            logger.error("%s failed, the worker stops: %s", name, error, exc_info=trace)
            self._exit_code = 1
            self.ask_to_stop()

    def take(self, settings: WorkerConfig) -> None:
        """Go on with settings that differ in `config.LIVE` alone."""
        self.settings = settings
        self.control.set_alarm(settings.lag_alarm_s)

    def ask_to_stop(self) -> None:
        """Stop soon; when asked again, do not wait for what runs."""
        if self._stop_asked.is_set():
            self._stop_at_once.set()
            self._hurried_stop = asyncio.ensure_future(self.dispatchers.stop(0.0))
        self._stop_asked.set()

    async def stop_asked(self) -> None:
        """Wait until somebody asks to stop."""
        await self._stop_asked.wait()

    async def wait(self) -> int:
        """Work until asked to stop, stop, and return the exit code."""
        await self._stop_asked.wait()
        await self.stop()
        return self._exit_code

    async def stop(self) -> None:
        """Announce the stop, then stop against the flow; a lease ends once its shard is quiet."""
        self._stop_asked.set()
        began = time.monotonic()
        # It works on until the peers know that they are about to get this worker's shards.
        self.heartbeat.leave()
        await assembly.until(self._stop_at_once, self.keeper.leave(self.settings.beat_every_s))
        self.tailer.stop()
        self.settler.give_up()
        left_s = max(0.0, self.settings.grace_s - (time.monotonic() - began))
        grace_s = 0.0 if self._stop_at_once.is_set() else left_s
        # What has not started goes back at once; what runs may finish, and is settled meanwhile.
        self._grace_s = grace_s + SETTLE_S
        over = partial(assembly.has_nothing, self.dispatchers, self.scheduler, self.keeper)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s + 2 * SETTLE_S):
                await assembly.unless(over, self.dispatchers.stop(grace_s), self._hand_over_all())
        with contextlib.suppress(TimeoutError, LateError):
            async with asyncio.timeout(self.settings.lease_ttl_s):
                await assembly.unless(over, assembly.release(self.settler, self.keeper))
        await assembly.within(SETTLE_S, self.refusals.tell())
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        self.shadow.close()
        await asyncio.to_thread(self.heartbeat.stop)
        await assembly.within(SETTLE_S, self.reporter.end())
        await self._close()
        events.default.emit(events.WORKER_STOPPED, worker=self.id)

    async def _close(self) -> None:
        if self.health is not None:
            self.health.close()
        if self.listener is not None:
            self.listener.close()
        await asyncio.to_thread(self.control.close)
        await self._store.close()
        await self._closing.aclose()

    async def _hand_over(self, shards: Sequence[Shard]) -> None:
        # First, and in the same pass: attempts that no consumer has begun get no answer.
        self.dispatchers.recall(set(shards))
        grace_s = self.settings.grace_s if self._grace_s is None else self._grace_s
        await self.scheduler.hand_over(shards, grace_s, lambda: self.dispatchers.overdue)

    async def _hand_over_all(self) -> None:
        try:
            await self.keeper.hand_over(self.keeper.leases)
        except* StoreError as refused:
            logger.warning("not all shards were released, the last heartbeat frees them: %s",
                           assembly.unwrap_group(refused))  # fmt: skip

    # ------------------------------------------------------------------ between components

    def _pages(self, group: str, pages: list[Page]) -> None:
        # Every reply carries the database's time: a busy worker's clock is never older than this.
        self.clock.sample(max(page.now_us for page in pages), time.monotonic())
        self.scheduler.pages(group, self.shadow.paced(group, pages))

    def is_maintainer(self) -> bool:
        """Tell whether it does what one must do for all; several may (note 0019), shadows not."""
        lowest = ((group, self.keeper.lowest_shard(group)) for group in self.groups)
        return any(key in self.scheduler.cores for key in lowest) and not self.shadow.on
