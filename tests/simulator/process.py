"""A worker process of the simulation: the real loops of `late`, wired as `late.worker` wires them.

Real are the scheduler with its cores, the tailer, the settler, the keeper with placement, and the
heartbeat. Not real are the handlers, which do what their payload says, and the heartbeat's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

from late import events
from late.clock import DatabaseClock
from late.dispatcher.settler import Settler
from late.errors import LateError, StoreError
from late.model.lanes import Layout
from late.model.queue_settings import QueueSettings
from late.model.task import DEFAULT_GROUP, Attempt
from late.scheduler.scheduler import Scheduler
from late.scheduler.settings import CoreSettings
from late.scheduler.shared_settlements import Commit, SharedSettlements
from late.store.base import Page, WorkerInfo
from late.tailer.heartbeat import Heartbeat
from late.tailer.lease_keeper import LeaseKeeper
from late.tailer.placement import announced, lanes_of
from late.tailer.release_notice import ReleaseNotice
from late.tailer.tailer import Tailer
from tests.simulator.budget import QUEUE
from tests.simulator.handlers import CONCURRENCY, Slots
from tests.simulator.loop import Process, SimLoop
from tests.simulator.network import NetworkStore
from tests.simulator.transactions import SharedSlots
from tests.simulator.truth import POLICY, Shard

GRACE_S = 5.0
SETTLE_S = 5.0
"""Beyond the grace, until all that ran is recorded."""


class SimHeartbeat(Heartbeat):
    """The heartbeat as a task of the worker's own loop: a simulation has no threads."""

    _living: asyncio.Task[None]

    def start(self) -> None:
        self._callers_loop = self._loop = asyncio.get_running_loop()
        self._living = self._loop.create_task(self._live())

    async def end(self) -> None:
        """`stop`, for a caller in the same loop."""
        self._stopping.set()
        await self._living


class SimWorker:
    """One worker, from its start to its stop. Everything runs in its process's context."""

    def __init__(
        self,
        loop: SimLoop,
        process: Process,
        store: NetworkStore,
        *,
        groups: Sequence[str],
        ttl_s: float,
        window: int,
        version: str,
        layout: Layout,
        standby_s: float,
        queue_settings: QueueSettings,
        rng: random.Random,
        calm: bool,
        die: Callable[[], None],
        shares: str | None,
    ) -> None:
        self._store = store
        self.version = version
        self._ttl_s = ttl_s
        self._grace_s = GRACE_S
        emitter = events.Emitter()
        clock = self.clock = DatabaseClock(loop.time, confirmed_s=ttl_s)
        self.slots = Slots(store, process.name, rng, die, clock.now_us, lambda: self.keeper.trusted)
        settings = CoreSettings(
            window=window, page_size=max(4, window // 3), horizon_us=2_000_000, timers_max=64,
            idle_settle_us=1_000_000,
        )  # fmt: skip
        self.tailer = Tailer(
            store, wanted=lambda: self.scheduler.wanted(), on_pages=self._pages,
            page_size=settings.page_size, poll_max_s=0.5, rng=rng, emitter=emitter,
        )  # fmt: skip
        self.settler = Settler(
            store,
            collect=lambda urgent: self.scheduler.collect(urgent),
            on_result=lambda settlement, result: self.scheduler.settled(settlement, result),
            on_error=lambda refused, error: self.keeper.refused(refused, error),
            rng=rng,
            monotonic=loop.time,
            emitter=emitter,
        )
        self.scheduler = Scheduler(
            store, {"job": POLICY}, slots=self.slots, concurrency=CONCURRENCY,
            now_us=clock.confirmed_us, settle_soon=self.settler.poke, read_soon=self.tailer.wake,
            trusted=self._trusts, commit_s=self.settler.commit_s,
            on_fenced=lambda shard: self.keeper.forget(shard),
            settings=settings, rng=rng, emitter=emitter,
        )  # fmt: skip
        self.slots.on_finished = self.scheduler.finished
        self.scheduler.change_settings({QUEUE: queue_settings}, {})
        if shares is not None:
            self.slots.shared = self._shared_slots(rng, one_writer=shares == "sqlite")
        self.keeper = LeaseKeeper(
            store, process.name,
            on_acquired=self.scheduler.acquired,
            before_release=lambda shards: self.scheduler.hand_over(shards, self._grace_s),
            on_lost=self.scheduler.lost,
            on_distrusted=self.scheduler.wake, on_trusted=self.scheduler.wake,
            hurry=lambda: self.heartbeat.hurry(), notice=ReleaseNotice(ttl_s / 3), ttl_s=ttl_s,
            announce=lambda place: self.heartbeat.announce(
                announced("2", place=place, lanes=lanes_of(version))
            ),
            layout=lambda: layout,
            standby_s=standby_s, rng=rng, monotonic=loop.time, emitter=emitter,
        )  # fmt: skip
        self.heartbeat = SimHeartbeat(
            "simulation://", WorkerInfo(process.name, process.name, tuple(groups), version=version),
            on_membership=self.keeper.observe, ttl_s=ttl_s, clock=clock, rng=rng,
            monotonic=loop.time, emitter=emitter, store_factory=lambda url: store,
            told=lambda: calm,
        )  # fmt: skip
        self.trusted = False
        """Whether it was at its last pass, by its own clock."""
        self._rng = rng
        self._loops: list[asyncio.Task[None]] = []

    def _trusts(self) -> bool:
        self.trusted = self.keeper.trusted
        return self.trusted

    def _shared_slots(self, rng: random.Random, *, one_writer: bool) -> SharedSlots:
        """As `late.worker.transactions`."""

        def alone(attempts: Sequence[Attempt]) -> AbstractAsyncContextManager[Commit | None]:
            settlements = SharedSettlements(
                self.scheduler,
                self.settler,
                holders=lambda: (self.slots,),
                on_error=lambda refused, error: self.keeper.refused(refused, error),
                now_us=self.clock.now_us,
            )
            return settlements.alone(attempts)

        return SharedSlots(self.slots, alone, rng, one_writer=one_writer)

    async def run(self) -> None:
        """Start. Returns once the loops run."""
        create = asyncio.get_running_loop().create_task
        for loop in (self.scheduler, self.settler, self.tailer, self.keeper):
            self._loops.append(create(loop.run()))
        self._loops.append(create(self._maintain()))
        self._loops.append(create(self._watch_schedules()))
        self.heartbeat.start()

    async def lift_settings(self) -> None:
        """What an operator does when the trouble is over."""
        self.scheduler.change_settings({}, {})

    async def stop(self) -> None:
        """A clean stop, as `late.worker.worker.Worker.stop`."""
        self.heartbeat.leave()
        await self.keeper.leave(self._ttl_s / 3)
        self.tailer.stop()
        self._grace_s = GRACE_S + SETTLE_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S + 2 * SETTLE_S):
                await asyncio.gather(
                    self.slots.stop(GRACE_S), self.keeper.hand_over(self.keeper.leases)
                )
        with contextlib.suppress(TimeoutError, LateError):
            async with asyncio.timeout(self._ttl_s):
                await self.settler.flush()
                await self.keeper.release_all()
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await self.heartbeat.end()

    def _pages(self, group: str, pages: list[Page]) -> None:
        now_s = asyncio.get_running_loop().time()
        self.clock.sample(max(page.now_us for page in pages), now_s)
        self.scheduler.pages(group, pages)

    async def _maintain(self) -> None:
        while True:
            await asyncio.sleep(3.0 * self._rng.uniform(0.8, 1.2))
            with contextlib.suppress(StoreError):
                await self._store.prune(journal_keep_s=0.0)

    async def _watch_schedules(self) -> None:
        while True:
            with contextlib.suppress(StoreError):
                self.scheduler.schedules(await self._store.schedules(), DEFAULT_GROUP)
            await asyncio.sleep(2.0 * self._rng.uniform(0.8, 1.2))

    @property
    def held(self) -> list[Shard]:
        """The shards that it works on."""
        return [(group, int(shard_id)) for group, shard_id in self.scheduler.cores]
