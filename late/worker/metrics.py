"""The metrics of one worker process: events are counted as they come, its own state is read when
somebody asks, and the database is read every few seconds by one worker for each group.

A request over HTTP is answered in another thread than the worker's. That thread asks the worker's
loop for fresh values and does not wait long: for a blocked loop it shows the last values, beside
the metric that says that it stalls.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from late import config
from late.autoscaler.keda.demand import Signals, workers_wanted
from late.control.status import real_groups
from late.dispatcher.pull.pool import PullPool
from late.errors import LateError
from late.events import Emitter
from late.events import default as default_emitter
from late.observability import metrics, otel
from late.observability.metrics import Registry
from late.scheduler.limits.limiter import Limiter
from late.store.common.statement_counts import statements

if TYPE_CHECKING:
    from late.clock import DatabaseClock
    from late.config import WorkerConfig
    from late.control import Control
    from late.control.status.server import Server
    from late.control.views import Status
    from late.dispatcher.dispatcher import Dispatcher
    from late.dispatcher.settler import Settler
    from late.scheduler.pools import Pool
    from late.scheduler.scheduler import Scheduler
    from late.tailer.discovery import MemberList
    from late.tailer.lease_keeper import LeaseKeeper
    from late.tailer.tailer import Tailer
    from late.worker.shadow import ShadowMode

    _Look = tuple[Status, dict[str, Signals], dict[tuple[str, str], Signals], Server]

logger = logging.getLogger("late.worker")

Value = tuple[str, tuple[str, ...], float]
"""The metric's name, the values of its labels, and the value of one series."""

PATIENCE_S = 0.5
"""The time that an answer waits for the worker's loop."""
LIMIT = 1_000
"""The count at which the depth of one group and shard is capped."""
DRAIN_S = 60.0
"""The time in which a backlog is to be gone, for the number of workers wanted."""
TICK_S = 0.5
_BREAKER = {"closed": 0.0, "half-open": 1.0, "open": 2.0}


class WorkerView(Protocol):
    """The parts of a `Worker` that its metrics are read from."""

    @property
    def id(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def groups(self) -> tuple[str, ...]: ...
    @property
    def queues(self) -> tuple[str, ...]: ...
    @property
    def settings(self) -> WorkerConfig: ...
    @property
    def clock(self) -> DatabaseClock: ...
    @property
    def dispatcher(self) -> Dispatcher: ...
    @property
    def scheduler(self) -> Scheduler: ...
    @property
    def settler(self) -> Settler: ...
    @property
    def tailer(self) -> Tailer: ...
    @property
    def pools(self) -> Mapping[str, Pool]: ...
    @property
    def control(self) -> Callable[[], Control]: ...
    @property
    def trusted(self) -> bool: ...
    @property
    def shadow(self) -> ShadowMode: ...
    @property
    def keeper(self) -> LeaseKeeper: ...
    @property
    def members(self) -> MemberList: ...
    def is_maintainer(self) -> bool: ...


class Telemetry:
    """The metrics of one worker. `page` may be called in the loop of any thread, everything else
    only in the worker's.

    Raises:
        ConfigError: OpenTelemetry is wanted and not installed.
    """

    def __init__(self, worker: WorkerView, *, emitter: Emitter = default_emitter) -> None:
        self.registry = Registry()
        settings = worker.settings
        self.asked = settings.health_port is not None or settings.otel == 1
        """True if anybody can read the metrics; to be set before the worker starts. Without it
        nothing is counted, and the database is not read."""
        self._push = otel.make(worker.id) if settings.otel else None
        self._worker = worker
        self._emitter = emitter
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looking: asyncio.Future[_Look] | None = None

    async def run(self) -> None:
        """Count, and read the database while this worker is the maintainer, until cancelled."""
        self._loop = asyncio.get_running_loop()
        unfollow = metrics.follow(self._emitter, self.registry) if self.asked else None
        try:
            async with asyncio.TaskGroup() as tasks:
                if self.asked:
                    tasks.create_task(self._look_on())
                if self._push is not None:
                    tasks.create_task(self._push_on(self._push))
        finally:
            if unfollow is not None:
                unfollow()
            # A look under way has a connection, and would leave it open.
            if self._looking is not None:
                await asyncio.gather(self._looking, return_exceptions=True)

    async def _push_on(self, push: otel.OtelExporter) -> None:
        """Send the metrics every few seconds and once at the end; none of a shadow."""
        try:
            while True:
                await asyncio.sleep(self._worker.settings.otel_every_s)
                self._look()
                if not self._worker.shadow.on:
                    await asyncio.to_thread(push.metrics, self.registry)
        finally:
            self._look()
            await asyncio.to_thread(push.close, self.registry)

    async def page(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        await self._fresh()
        return metrics.render(self.registry, self.prefix)

    @property
    def prefix(self) -> str:
        """The beginning of the names of this worker's metrics."""
        return metrics.SHADOW_PREFIX if self._worker.shadow.on else metrics.PREFIX

    async def _fresh(self) -> None:
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        if loop is asyncio.get_running_loop():
            self._look()
            return
        looked = asyncio.run_coroutine_threadsafe(self._looked(), loop)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.wrap_future(looked)
        except TimeoutError:
            pass  # as it last was

    async def _looked(self) -> None:
        self._look()

    def _look(self) -> None:
        self.registry.replace(metrics.metrics_of("worker"), of_worker(self._worker))

    async def _look_on(self) -> None:
        due_s, shown = 0.0, False
        while True:
            every_s = self._worker.settings.look_every_s
            mine = every_s > 0 and self._worker.is_maintainer()
            if shown and not mine:
                self.registry.replace(metrics.metrics_of("database"), ())
                shown = False
            if mine and time.monotonic() >= due_s:
                shown = await self.look_at_database() or shown
                due_s = time.monotonic() + every_s
            await asyncio.sleep(min(TICK_S, every_s or TICK_S))

    async def look_at_database(self) -> bool:
        """Read the database once; False if that failed, which is logged."""
        slots = self._worker.settings.concurrency
        self._looking = asyncio.ensure_future(asyncio.to_thread(self._overview))
        try:
            seen, signals, paces, server = await asyncio.shield(self._looking)
        except Exception as error:
            # Telemetry must not take the work down with it, whatever it is.
            trace = None if isinstance(error, LateError) else error
            text = "the database could not be looked at for metrics: %s"
            logger.warning(text, error, exc_info=trace)
            return False
        values = itertools.chain(
            of_database(seen, signals, slots=slots), of_tenants(paces), of_server(server)
        )
        self.registry.replace(metrics.metrics_of("database"), values)
        return True

    def _overview(self) -> _Look:
        control = self._worker.control()
        status, signals, paces = real_groups.of_look(
            *control.status.detailed(limit=LIMIT), control.groups.shadows()
        )
        return status, signals, paces, control.status.server()


def of_worker(worker: WorkerView) -> Iterator[Value]:
    """Yield the values of one worker's state."""
    yield "late_worker_info", (worker.id, config.package_version()), 1.0
    yield "late_worker_trusted", (), float(worker.trusted)
    slots, scheduler, now_us = worker.dispatcher, worker.scheduler, worker.clock.now_us()
    yield "late_slots", (), worker.settings.concurrency
    yield "late_slots_busy", (), slots.running
    yield "late_slots_stuck", (), slots.stuck.count
    yield "late_slots_waiting", (), slots.waiting
    yield "late_unrecorded", (), scheduler.unrecorded
    yield "late_settling_seconds", (), worker.settler.writing_s
    for name, pool in worker.pools.items():
        yield "late_target_room", (name,), pool.room
        if isinstance(pool, PullPool):
            yield "late_consumers_unanswered_total", (pool.queue,), pool.unanswered
    for key, core in scheduler.cores.items():
        labels = (key[0], str(key[1]))
        yield "late_shard_ready", labels, core.state.ready
        yield "late_shard_limited", labels, core.state.limited
        yield "late_shard_running", labels, core.state.running
        yield "late_shard_unsettled", labels, core.state.unsettled
        yield "late_shard_epoch", labels, core.state.lease.epoch
        lag_s = worker.tailer.lag_s(key, now_us)
        if lag_s is not None:
            yield "late_tail_lag_seconds", labels, lag_s
    for scope, name, part in scheduler.limits.limiters():
        yield from _of_limiter((scope, name), part, now_us)
    for outage in scheduler.limits.outages.names(now_us):
        yield "late_outage", outage, 1.0
    for verb, count in statements.copy().items():
        yield "late_statements_total", (verb,), count
    offset_us, age_s = worker.clock.offset_us(time.time_ns() // 1_000), worker.clock.age_s
    if offset_us is not None and age_s is not None:
        yield "late_clock_offset_seconds", (), offset_us / 1_000_000
        yield "late_clock_age_seconds", (), age_s


def _of_limiter(labels: tuple[str, str], limiter: Limiter, now_us: int) -> Iterator[Value]:
    yield "late_limit_calls_total", (*labels, "good"), limiter.good
    yield "late_limit_calls_total", (*labels, "bad"), limiter.bad
    yield "late_limit_running", labels, limiter.running
    yield "late_paused", labels, float(bool(limiter.settings.paused))
    limit = limiter.limit(now_us)
    if limit is not None:
        yield "late_limit_concurrency", labels, limit
    if limiter.bucket is not None:
        yield "late_limit_tokens", labels, limiter.bucket.left(now_us)
    if limiter.budget is not None:
        yield "late_retry_budget", labels, limiter.budget.left(now_us)
    if limiter.breaker is not None:
        yield "late_breaker_state", labels, _BREAKER[limiter.breaker.state]
        yield "late_breaker_opened_total", labels, limiter.breaker.opened


def of_server(seen: Server) -> Iterator[Value]:
    """Yield the values that the database server reports of itself."""
    known: list[tuple[str, tuple[str, ...], float | None]] = [
        ("size_bytes", (), seen.size_bytes),
        ("connections", (), seen.connections),
        ("connections_max", (), seen.connections_max),
        ("transactions_total", ("commit",), seen.commits),
        ("transactions_total", ("rollback",), seen.rollbacks),
        ("rows_total", ("read",), seen.rows_read),
        ("rows_total", ("insert",), seen.rows_inserted),
        ("rows_total", ("update",), seen.rows_updated),
        ("rows_total", ("delete",), seen.rows_deleted),
        ("blocks_total", ("cache",), seen.blocks_cached),
        ("blocks_total", ("disk",), seen.blocks_read),
        ("wal_bytes_total", (), seen.wal_bytes),
        ("temp_bytes_total", (), seen.temp_bytes),
        ("deadlocks_total", (), seen.deadlocks),
        ("oldest_transaction_seconds", (), seen.oldest_transaction_s),
        ("replica_lag_seconds", (), seen.replica_lag_s),
        ("dead_rows", (), seen.dead_rows),
        ("disk_free_bytes", (), seen.disk_free_bytes),
        ("disk_bytes", (), seen.disk_bytes),
    ]
    for name, labels, value in known:
        if value is not None:
            yield f"late_database_{name}", labels, value


def of_tenants(paces: Mapping[tuple[str, str], Signals]) -> Iterator[Value]:
    """Yield the shares of those tenants that send most, by (group, queue)."""
    for key, pace in paces.items():
        if pace.tenants_seen > 1:
            for each in pace.tenants:
                yield "late_tenant_share", (*key, each.tenant), each.share


def of_database(
    seen: Status, signals: Mapping[str, Signals], *, slots: int, drain_s: float = DRAIN_S
) -> Iterator[Value]:
    """Yield the values of one look at the database. `slots` of one worker are taken for all."""
    yield "late_looked_timestamp_seconds", (), seen.now_us / 1_000_000
    for queue in seen.queues:
        labels = (queue.group, queue.queue)
        yield "late_queue_depth", labels, queue.depth.n
        yield "late_queue_depth_capped", labels, float(queue.depth.capped)
        yield "late_queue_oldest_age_seconds", labels, queue.oldest_age_s or 0.0
        yield "late_queue_in_flight", labels, queue.in_flight.n
        yield "late_queue_parked", labels, queue.parked.n
        yield "late_queue_dead", labels, queue.dead.n
        yield "late_queue_killed", labels, queue.killed.n
    limited: Counter[tuple[str, str]] = Counter(
        {(queue.group, queue.queue): 0 for queue in seen.queues}
    )
    for held in seen.limited:
        limited[held.group, held.queue] += held.waiting.n
    for key, n in limited.items():
        yield "late_queue_limited", key, n
    for unhandled in seen.unhandled:
        able = "unknown" if unhandled.handlers is None else "some" if unhandled.handlers else "none"
        named = (unhandled.group, unhandled.queue, unhandled.task, able)
        yield "late_unhandled_tasks", named, unhandled.waiting.n
    for judged in seen.objectives:
        labels = (judged.group, judged.queue)
        yield "late_objective_budget_left", labels, judged.budget_left
        for burn in judged.burns:
            yield "late_objective_burn", (*labels, burn.window), burn.rate
    for group, each in signals.items():
        stale_s = seen.stale_s(group) or 0.0
        yield "late_freshness_seconds", (group,), stale_s
        fresh_until_s = seen.now_us / 1_000_000 - stale_s
        yield "late_fresh_until_timestamp_seconds", (group,), fresh_until_s
        yield "late_attempt_rate", (group,), each.rate
        yield "late_drain_seconds", (group,), each.drain_s
        yield "late_saturation", (group,), each.saturation(slots)
        yield "late_workers", (group,), each.workers
        yield "late_workers_wanted", (group,), workers_wanted(each, slots=slots, drain_s=drain_s)
        yield "late_shards", (group,), each.shards
        owned = sum(shard.owner_live for shard in seen.shards if shard.group == group)
        yield "late_shards_unowned", (group,), each.shards - owned
        deaths = (suspect.deaths for suspect in seen.suspects if suspect.group == group)
        yield "late_suspect_deaths", (group,), max(deaths, default=0)
