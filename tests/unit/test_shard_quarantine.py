"""A shard that is given up for a settlement that the store refuses: tried again, and said."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from late.dispatcher.settler import Settler
from late.errors import StoreRefused
from late.events import Emitter
from late.model.task import Attempt, Cursor, Epoch, OpenTask, Outcome, Policy, Record, ShardId
from late.scheduler.scheduler import Scheduler
from late.store.base import (
    Lease,
    LeaseView,
    Membership,
    Settlement,
    SettleResult,
    Store,
    WorkerInfo,
)
from late.tailer.lease_keeper import LeaseKeeper
from late.tailer.ownership import Key
from late.tailer.shard_quarantine import TRY_S, WAIT_MAX_S, WAIT_MIN_S, ShardQuarantine
from late.testing.clock import VirtualClock
from late.worker.assembly import duties, hold
from late.worker.watch.progress import Watchdog
from tests.conformance.kit import record

SHARD: Key = ("default", ShardId(3))
BEAT_S = 0.75
STALL_S = 60.0


class Refusing:
    """A database with one shard and one open task, whose settlements it refuses while `right` is
    missing. All else is allowed."""

    def __init__(self) -> None:
        self.right = False
        self.owner: str | None = None
        self.epoch = self.seq = 0
        self.task: Record | None = record(3)
        self.acquired: list[float] = []

    async def acquire(self, worker_id: str, shards: Sequence[Key]) -> list[Lease]:
        self.acquired.append(asyncio.get_running_loop().time())
        self.owner, self.epoch, self.seq = worker_id, self.epoch + 1, self.seq + 1
        opened = () if self.task is None else (OpenTask(self.task.position, self.task.task_id),)
        return [Lease(*SHARD, worker_id, Epoch(self.epoch), self.seq, Cursor("5"), opened, {})]

    async def release(self, leases: Sequence[Lease]) -> None:
        self.owner = None

    async def fetch(self, shard_id: ShardId, keys: Sequence[OpenTask]) -> list[Record]:
        return [] if self.task is None else [self.task]

    async def due(self, *_: Any, **__: Any) -> list[Any]:
        return []

    async def settle(self, settlements: Sequence[Settlement]) -> list[SettleResult]:
        if not self.right:
            raise StoreRefused("permission denied for table late_timer")
        self.seq = settlements[0].seq
        if not settlements[0].open:
            self.task = None
        return [SettleResult.SETTLED]


class Slots:
    """Runs each attempt in no time."""

    load = 0
    queued: tuple[Attempt, ...] = ()

    def __init__(self, world: World) -> None:
        self._world = world
        self.runs = 0

    def submit(self, attempts: Sequence[Attempt]) -> None:
        self.runs += len(attempts)
        now_us = self._world.clock.now_us()
        done = [Outcome(attempt, "done", now_us, now_us) for attempt in attempts]
        asyncio.get_running_loop().call_soon(self._world.scheduler.finished, done)

    def abandon(self, group: str, shard_id: int, epoch: int) -> None:
        pass


class World:
    """A worker's keeper, scheduler and settler, wired as `late.worker` does, and its watchdog."""

    def __init__(self, clock: VirtualClock, keep_s: float = 0.0) -> None:
        self.clock = clock
        self.store = Refusing()
        self.slots = Slots(self)
        self.dog = Watchdog(STALL_S)
        self.heard: list[tuple[str, dict[str, Any]]] = []
        emitter = Emitter()
        emitter.subscribe(lambda event, values: self.heard.append((event.name, dict(values))))
        store = cast(Store, self.store)
        self.settler = Settler(
            store,
            collect=lambda urgent: self.scheduler.collect(urgent),
            on_result=lambda settlement, result: self.scheduler.settled(settlement, result),
            on_error=lambda refused, error: self.keeper.refused(refused, error),
            on_kept=lambda refused: hold(self.scheduler, refused),
            keep_s=keep_s,
            rng=random.Random(1), monotonic=clock.monotonic, emitter=emitter,
        )  # fmt: skip
        self.scheduler = Scheduler(
            store, {"count": Policy()}, slots=self.slots, concurrency=1, now_us=clock.now_us,
            settle_soon=self.settler.poke, read_soon=lambda: None, rng=random.Random(1),
            trusted=lambda: self.keeper.trusted, on_fenced=lambda key: self.keeper.forget(key),
            emitter=emitter,
        )  # fmt: skip
        self.keeper = LeaseKeeper(
            self.store, "me",
            on_acquired=self.scheduler.acquired,
            before_release=lambda shards: self.scheduler.hand_over(shards, 1.0),
            on_lost=self.scheduler.lost, on_distrusted=self.scheduler.wake,
            rng=random.Random(1), monotonic=clock.monotonic, emitter=emitter,
        )  # fmt: skip

    async def live(self, seconds: float) -> None:
        """Heartbeats, and a look of the watchdog with each."""
        loops = (self.settler.run(), self.scheduler.run(), self.keeper.run())
        tasks = [asyncio.ensure_future(loop) for loop in loops]
        until = self.clock.monotonic() + seconds
        tailer: Any = SimpleNamespace(reading=False, reads=0)
        stuck = SimpleNamespace(everywhere=False, tasks=[], over=0)
        slots: Any = SimpleNamespace(waiting=0, running=0, stuck=stuck, ended=self.slots.runs)
        while self.clock.monotonic() < until:
            now_s = self.clock.monotonic()
            self.keeper.observe(self.view(), now_s + 5.0, now_s)
            await asyncio.sleep(BEAT_S)
            parts = (self.scheduler, slots, tailer)
            self.dog.look(
                BEAT_S, duties(*parts, trusted=True, refused=self.keeper.quarantine.recent)
            )
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def view(self) -> Membership:
        it = self.store
        workers = (WorkerInfo("me", "host:1", ("default",)),)
        leases = (LeaseView(*SHARD, it.owner, Epoch(it.epoch)),) if it.epoch else ()
        return Membership(self.clock.now_us(), workers, leases, (SHARD[1],))

    def said(self, name: str) -> list[dict[str, Any]]:
        return [values for heard, values in self.heard if heard == name]


async def test_handlers_are_not_repeated_in_a_hot_loop() -> None:
    """Given a settlement that the store will never take, when ten minutes pass, then its tasks were
    tried some dozens of times, ever more slowly, and each time the worker said so."""
    with VirtualClock() as clock:
        world = World(clock)
        await world.live(600)
        assert 20 <= world.slots.runs <= 60
        told = world.said("settlement_refused")
        assert len(told) == world.slots.runs
        assert max(values["retry_in_s"] for values in told) <= WAIT_MAX_S
        assert "late_timer" in str(told[0]["error"])


async def test_in_between_the_shard_is_free_for_whoever_may_have_it() -> None:
    with VirtualClock() as clock:
        world = World(clock)
        free = 0
        for _ in range(40):
            await world.live(3)
            free += world.store.owner is None
        assert free >= 20, "most of the time, once the pauses are long"
        assert world.said("lease_released")


async def test_who_settles_nothing_any_more_stalls_by_that() -> None:
    with VirtualClock() as clock:
        world = World(clock)
        await world.live(STALL_S - 2)
        assert world.dog.stalled == frozenset()
        await world.live(4)
        assert world.dog.stalled == {"settle"}


async def test_when_the_right_is_back_all_goes_on() -> None:
    with VirtualClock() as clock:
        world = World(clock)
        await world.live(STALL_S + 1)
        world.store.right = True
        await world.live(2 * STALL_S)
        assert world.store.task is None
        assert world.slots.runs == len(world.said("settlement_refused")) + 1
        assert world.store.owner == "me"
        assert world.dog.stalled == frozenset()


async def test_a_task_that_was_taken_away_leaves_nothing_owed() -> None:
    """What was refused does not come again: an idle worker is no stalled one."""
    with VirtualClock() as clock:
        world = World(clock)
        await world.live(5)
        world.store.task = None
        await world.live(10 * STALL_S)
        assert world.dog.stalled == frozenset()
        assert world.store.owner == "me"


async def test_a_refusal_of_a_term_that_is_over_drops_nothing() -> None:
    with VirtualClock() as clock:
        world = World(clock)
        world.store.task = None
        await world.live(1)
        [epoch] = [lease.epoch for lease in world.keeper.leases.values()]
        for old in (epoch - 1, epoch + 1):
            late = Settlement("id", *SHARD, 9, Epoch(old), "me", Cursor(""), ())
            world.keeper.refused([late], StoreRefused("no"))
        await world.live(1)
        assert world.said("settlement_refused") == []
        assert len(world.store.acquired) == 1


def test_pauses_grow_to_a_bound_and_a_success_begins_anew() -> None:
    class Longest(random.Random):
        def uniform(self, a: float, b: float) -> float:
            return b

    now = [0.0]
    quarantine = ShardQuarantine(Longest(), lambda: now[0])
    assert not quarantine.recent
    waits = [quarantine.add(SHARD, "no right", again=True) for _ in range(8)]
    assert waits == [WAIT_MIN_S, 2 * WAIT_MIN_S, 4 * WAIT_MIN_S, *(5 * [WAIT_MAX_S])]
    assert quarantine.error == "no right"
    other: Key = ("default", ShardId(4))
    assert quarantine.add(other, "no right", again=True) == WAIT_MIN_S, "each shard for itself"
    assert quarantine.add(SHARD, "no right", again=False) == WAIT_MIN_S
    assert quarantine.waits(SHARD)
    now[0] = WAIT_MIN_S
    assert not quarantine.waits(SHARD)
    assert quarantine.recent, "it is being tried"
    now[0] = WAIT_MAX_S + TRY_S
    assert not quarantine.recent
    assert quarantine.error == ""
