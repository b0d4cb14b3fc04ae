"""A pass over many shards gives way: what it has started runs before the next shard is granted. And
what starts is held up by what has run and is not recorded, not by what is only being parked."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import pytest

from late.model.task import Attempt, Cursor, Epoch, Outcome, Policy, ShardId
from late.scheduler import scheduler as scheduling
from late.scheduler.scheduler import Scheduler
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
        self.abandoned: list[tuple[str, int, int]] = []

    def submit(self, attempts: Sequence[Attempt]) -> None:
        self.got += attempts
        self.told.append("granted")
        asyncio.get_running_loop().call_soon(self.told.append, "ran")

    def abandon(self, group: str, shard_id: int, epoch: int) -> None:
        self.abandoned.append((group, shard_id, epoch))


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
        concurrency=16,
        now_us=lambda: 1,
        settle_soon=lambda outcomes, urgent: None,
        read_soon=lambda: None,
        **options,
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


async def test_a_shard_that_is_won_anew_leaves_what_ran_under_its_older_epoch() -> None:
    slots = Slots()
    scheduler = made(slots, SHARDS[:2])
    assert slots.abandoned == [], "nothing was held before"
    scheduler.acquired([Lease("g", SHARDS[1], "me", Epoch(2), 1, Cursor(""), (), {})])
    assert slots.abandoned == [("g", SHARDS[1], 1)]
    assert [core.state.lease.epoch for core in scheduler.cores.values()] == [1, 2]
