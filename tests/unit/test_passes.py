"""A pass over many shards gives way: what it has started runs before the next shard is granted. And
what starts is held up by what has run and is not recorded, not by what is only being parked."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import pytest

from late.model.queue_settings import QueueSettings
from late.model.task import (
    TRANSACTION_POOL,
    Attempt,
    Cursor,
    Epoch,
    Outcome,
    Policy,
    ShardId,
)
from late.scheduler import read_ahead
from late.scheduler import scheduler as scheduling
from late.scheduler.scheduler import Scheduler
from late.scheduler.turns import GRAIN, NEXT_US, Turns
from late.store.base import Lease, Page, SettleResult, Store
from tests.conformance.kit import record

SHARDS = [ShardId(number) for number in range(5)]


class Slots:
    """Room for all; what is submitted runs in the next turn of the event loop."""

    load = 0
    queued: tuple[Attempt, ...] = ()

    def __init__(self) -> None:
        self.told: list[str] = []
        self.got: list[Attempt] = []

    def submit(self, attempts: Sequence[Attempt]) -> None:
        self.got += attempts
        self.told.append("granted")
        asyncio.get_running_loop().call_soon(self.told.append, "ran")

    def abandon(self, group: str, shard_id: int, epoch: int) -> None: ...


class Empty:
    """A store without parked tasks."""

    async def due(self, *_: Any, **__: Any) -> list[Any]:
        return []


def made(
    slots: Slots,
    shards: Sequence[ShardId],
    policies: Mapping[str, Policy] | None = None,
    **options: Any,
) -> Scheduler:
    """A scheduler that holds `shards`."""
    scheduler = Scheduler(
        cast(Store, Empty()),
        policies or {"n": Policy()},
        slots=slots,
        now_us=lambda: 1,
        settle_soon=lambda shard, outcomes, urgent: None,
        read_soon=lambda: None,
        **({"concurrency": 16} | options),
    )
    scheduler.acquired([Lease("g", s, "me", Epoch(1), 1, Cursor(""), (), {}) for s in shards])
    return scheduler


async def told(passes_s: float, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens when five shards have one task each and a pass may take `passes_s`."""
    monkeypatch.setattr(scheduling, "TURN_S", passes_s)
    slots = Slots()
    scheduler = made(slots, SHARDS)
    for shard in SHARDS:
        one = record(shard_id=shard, name="n", created_at_us=1)
        scheduler.pages("g", [Page(shard, [one], Cursor("a"), "w", more=False, now_us=1)])
    running = asyncio.create_task(scheduler.run())
    for _ in range(30):
        await asyncio.sleep(0)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    return slots.told


async def test_a_pass_that_took_its_time_lets_what_it_started_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert await told(0.0, monkeypatch) == ["granted", "ran"] * 5


async def test_a_quick_pass_takes_all_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await told(60.0, monkeypatch) == ["granted"] * 5 + ["ran"] * 5


async def test_a_jam_that_is_parked_holds_no_start_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "UNRECORDED_MAX", 3)
    slots = Slots()
    scheduler = made(slots, SHARDS[:1])
    later = [record(name="n", created_at_us=1, options='{"delay_us":60000000}') for _ in range(5)]
    now = record(name="n", created_at_us=1)
    page = Page(SHARDS[0], [*later, now], Cursor("a"), "w", more=False, now_us=1)
    scheduler.pages("g", [page])
    scheduler._pass()
    assert (scheduler.unrecorded, slots.told) == (5, ["granted"])


async def test_what_has_run_and_is_not_recorded_holds_starts_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ended for good or to be tried again: both would run again after a death."""
    monkeypatch.setattr(scheduling, "UNRECORDED_MAX", 3)
    slots = Slots()
    scheduler = made(slots, SHARDS[:1])
    for kinds in (("done", "failed", "failed"), ("done",)):
        some = [record(name="n", created_at_us=1) for _ in kinds]
        scheduler.pages("g", [Page(SHARDS[0], some, Cursor("a"), "w", more=False, now_us=1)])
        scheduler._pass()
        if slots.got:
            scheduler.finished([Outcome(a, k, 1, 1) for a, k in zip(slots.got, kinds, strict=True)])
        slots.got = []
    assert (scheduler.unrecorded, slots.told) == (3, ["granted"])
    scheduler.settled(scheduler.collect()[0], SettleResult.SETTLED)
    scheduler._pass()
    assert slots.told == ["granted"] * 2


async def test_a_shard_that_is_lost_gives_back_what_its_queue_may_run_at_once() -> None:
    slots = Slots()
    scheduler = made(slots, SHARDS[:2])
    scheduler.limits.set({"default": QueueSettings(concurrency=1)}, {}, 1)
    for shard in SHARDS[:2]:
        one = record(shard_id=shard, name="n", created_at_us=1)
        scheduler.pages("g", [Page(shard, [one], Cursor("a"), "w", more=False, now_us=1)])
    scheduler._pass()
    scheduler._pass()
    [first] = [attempt.record.shard_id for attempt in slots.got]
    scheduler.lost(("g", ShardId(first)))
    scheduler._pass()
    assert len(slots.got) == 2


class Remote(Slots):
    """A pool of another service with room for many."""

    room = 100


async def test_what_has_run_elsewhere_and_is_not_recorded_holds_starts_up_there_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A database that does not settle: with a service that answers quickly it would be all that
    the windows hold, of which each call would be made again after a death."""
    monkeypatch.setattr(scheduling, "UNRECORDED_MAX", 3)
    pool = Remote()
    scheduler = made(Slots(), SHARDS[:1], {"n": Policy(target="svc")}, pools={"svc": pool})
    some = [record(name="n", created_at_us=1) for _ in range(6)]
    scheduler.pages("g", [Page(SHARDS[0], some, Cursor("a"), "w", more=False, now_us=1)])
    for _ in range(6):  # one at a time, as a target that has just come up is called
        scheduler._pass()
        scheduler.finished([Outcome(a, "done", 1, 1, target="svc") for a in pool.got])
        pool.got = []
    assert scheduler.unrecorded == 3
    scheduler.settled(scheduler.collect()[0], SettleResult.SETTLED)
    scheduler._pass()
    assert pool.got


def busy(concurrency: int, shards: int, tasks: int) -> tuple[Slots, Scheduler]:
    """A worker with so many tasks ready in each of its shards."""
    slots = Slots()
    numbers = [ShardId(number) for number in range(shards)]
    scheduler = made(slots, numbers, concurrency=concurrency)
    for shard in numbers:
        some = [record(shard_id=shard, name="n", created_at_us=1) for _ in range(tasks)]
        scheduler.pages("g", [Page(shard, some, Cursor("a"), "w", more=False, now_us=1)])
    return slots, scheduler


async def test_of_many_shards_each_gets_many_starts_in_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One after the other, and none again before all have had a turn."""
    monkeypatch.setattr(read_ahead, "READAHEAD_MAX", 0)
    monkeypatch.setattr(scheduling, "UNRECORDED_MAX", 10_000)
    monkeypatch.setattr(scheduling, "TURN_S", 60.0)
    slots, scheduler = busy(concurrency=256, shards=64, tasks=40)
    turns: list[int] = []
    for _ in range(8):
        wake_us = scheduler._pass()
        granted = Counter(attempt.record.shard_id for attempt in slots.got)
        assert set(granted.values()) == {GRAIN}
        assert len(granted) == 256 // GRAIN
        assert wake_us <= 1 + NEXT_US, "the others are not left for long"
        turns += granted
        scheduler.finished([Outcome(attempt, "done", 1, 1) for attempt in slots.got])
        slots.got = []
    assert sorted(turns) == list(range(64))


async def test_few_slots_are_shared_by_all_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "TURN_S", 60.0)
    slots, scheduler = busy(concurrency=16, shards=5, tasks=40)
    scheduler._pass()
    granted = Counter(attempt.record.shard_id for attempt in slots.got)
    assert len(granted) >= 4
    assert max(granted.values()) == 4


async def test_a_worker_without_room_steps_no_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task that ends makes a pass, and where slots are few hardly one of them starts any."""
    monkeypatch.setattr(scheduling, "TURN_S", 60.0)
    slots, scheduler = busy(concurrency=16, shards=5, tasks=40)
    scheduler._pass()
    slots.load = len(slots.got)
    stepped: list[int] = []
    step = scheduler._step

    def counted(shard: Any, core: Any, event: Any) -> int:
        stepped.append(shard[1])
        return step(shard, core, event)

    monkeypatch.setattr(scheduler, "_step", counted)
    wake_us = scheduler._pass()
    assert (stepped, slots.load) == ([], len(slots.got))
    assert wake_us == 1 + int(scheduling.PASS_MAX_S * 1e6), "it is not looked at all the time"
    slots.load -= 1
    scheduler._pass()
    assert len(stepped) == 1
    assert len(slots.got) == 17


async def test_what_goes_ahead_is_handed_over_by_the_half_and_of_one_shard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduling, "TURN_S", 60.0)
    slots, scheduler = busy(concurrency=16, shards=5, tasks=40)
    ahead = scheduler._ahead
    ahead.rate, ahead.measured_at = 2_000.0, asyncio.get_running_loop().time() + 60
    scheduler._pass()
    assert len(slots.got) == 26
    slots.got = []
    slots.load = 22
    scheduler._pass()
    assert slots.got == [], "six wait for a slot still"
    slots.load = 20
    scheduler._pass()
    assert len(slots.got) == 6
    assert len({attempt.record.shard_id for attempt in slots.got}) == 1


async def test_a_consumer_gets_the_highest_priority_of_all_shards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduling, "TURN_S", 60.0)
    pool = Consumers()
    scheduler = made(Slots(), SHARDS, {"n": Policy(target="pull:q")}, pools={"pull:q": pool})
    for shard in SHARDS:
        low = record(shard_id=shard, name="n", created_at_us=1)
        high = record(
            shard_id=shard, name="n", created_at_us=1, options=f'{{"priority":{10 + shard}}}'
        )
        scheduler.pages("g", [Page(shard, [low, high], Cursor("a"), "w", more=False, now_us=1)])
    for _ in range(len(SHARDS) + 1):
        pool.room = 1
        scheduler._pass()
    got = [(one.record.shard_id, one.record.options is not None) for one in pool.got]
    assert got[:5] == [(4, True), (3, True), (2, True), (1, True), (0, True)]
    assert [high for _, high in got[5:]] == [False]


class Consumers(Slots):
    """A pool of a pulled queue: one consumer that asks again when it is told to."""

    room = 0

    def submit(self, attempts: Sequence[Attempt]) -> None:
        self.got += attempts
        self.room -= len(attempts)


def test_of_a_pool_of_shared_transactions_one_shard_after_the_other_has_its_turn() -> None:
    turns = Turns()
    assert turns.rooms({TRANSACTION_POOL: 40, "http": 40}, 8) == {TRANSACTION_POOL: 32, "http": 5}
    assert turns.rooms({TRANSACTION_POOL: 8, "http": 0}, 7) == {TRANSACTION_POOL: 8, "http": 0}
    assert turns.rooms({TRANSACTION_POOL: 400}, 2) == {TRANSACTION_POOL: 200}


async def test_what_is_handed_over_and_has_not_begun_is_not_told_as_started() -> None:
    """After a death nothing of it counts as an attempt whose end was lost."""
    slots = Slots()
    scheduler = made(slots, SHARDS[:1])
    some = [record(name="n", created_at_us=1) for _ in range(3)]
    scheduler.pages("g", [Page(SHARDS[0], some, Cursor("a"), "w", more=False, now_us=1)])
    scheduler._pass()
    ended, begun, queued = slots.got
    slots.queued = (queued,)
    scheduler.finished([Outcome(ended, "done", 1, 1)])
    [settlement] = scheduler.collect()
    assert {task.task_id: task.started for task in settlement.open} == {
        begun.record.task_id: True,
        queued.record.task_id: False,
    }


async def test_a_shard_that_is_new_here_is_read_at_once_and_then_at_the_pace_of_the_tail() -> None:
    reads: list[None] = []
    scheduler = made(Slots(), [])
    scheduler._read_soon = lambda: reads.append(None)
    scheduler.acquired([Lease("g", SHARDS[0], "me", Epoch(1), 1, Cursor(""), (), {})])
    assert len(reads) == 1
    one = record(name="n", created_at_us=1)
    scheduler.pages("g", [Page(SHARDS[0], [one], Cursor("a"), "w", more=False, now_us=1)])
    assert len(reads) == 1


@pytest.mark.parametrize(("per_s", "ahead"), [(100.0, 0), (1_000.0, 5)])
async def test_a_worker_takes_no_more_ahead_than_it_ends_in_some_milliseconds(
    per_s: float, ahead: int
) -> None:
    slots, scheduler = busy(concurrency=16, shards=1, tasks=40)
    ahead_of = scheduler._ahead
    ahead_of.rate, ahead_of.measured_at = per_s, asyncio.get_running_loop().time() + 60
    scheduler._pass()
    assert len(slots.got) == 16 + ahead
