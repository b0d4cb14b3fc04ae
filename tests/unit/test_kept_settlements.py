"""A settlement that the database refuses is kept: nothing runs twice while an operator mends it."""

from __future__ import annotations

import asyncio
import random

import msgspec

from late.dispatcher.kept_settlements import KEEP_S, WAIT_MAX_S, WAIT_MIN_S, KeptSettlements
from late.errors import SchemaMismatch
from late.model.task import Cursor, ShardId
from late.scheduler.events_effects import PageRead
from late.store.base import Page
from late.testing.clock import VirtualClock
from tests.conformance.kit import record
from tests.unit.test_settler import Journal, Rig, running, settlement
from tests.unit.test_shard_quarantine import SHARD, World

NO = SchemaMismatch("permission denied for table late_dead")


async def test_what_has_run_is_recorded_once_the_right_is_back_and_never_runs_again() -> None:
    with VirtualClock() as clock:
        world = World(clock, keep_s=KEEP_S)
        await world.live(KEEP_S - 60)
        assert world.slots.runs == 1
        assert len(world.store.acquired) == 1
        told = world.said("settlement_refused")
        assert 20 < len(told) < 100
        assert all(each["kept"] and each["retry_in_s"] <= WAIT_MAX_S for each in told)
        assert world.settler.refused
        assert "late_timer" in world.settler.kept_error
        world.store.right = True
        await world.live(WAIT_MAX_S + 1)
        assert world.store.task is None
        assert (world.slots.runs, len(world.store.acquired)) == (1, 1)
        assert not world.settler.refused


async def test_its_shard_starts_nothing_until_then() -> None:
    with VirtualClock() as clock:
        world = World(clock, keep_s=KEEP_S)
        await world.live(10)
        state = world.scheduler.cores[SHARD].state
        assert state.stopped
        page = Page(SHARD[1], [record(4)], Cursor("6"), "w", more=False, now_us=clock.now_us())
        world.scheduler.cores[SHARD].step(PageRead(page))
        await world.live(10)
        assert world.slots.runs == 1
        world.store.right = True
        await world.live(WAIT_MAX_S + 1)
        assert not state.stopped
        assert world.slots.runs == 2


async def test_a_shard_that_leaves_does_not_start_again_when_it_is_settled() -> None:
    with VirtualClock() as clock:
        world = World(clock, keep_s=KEEP_S)
        await world.live(10)
        core = world.scheduler.cores[SHARD]
        handing = asyncio.ensure_future(world.scheduler.hand_over([SHARD], 300.0))
        await asyncio.sleep(0)
        world.store.right = True
        await world.live(WAIT_MAX_S + 1)
        await handing
        assert core.state.stopped


async def test_after_its_time_the_shard_is_given_up() -> None:
    with VirtualClock() as clock:
        world = World(clock, keep_s=KEEP_S)
        await world.live(KEEP_S + WAIT_MAX_S + 10)
        given_up = [each for each in world.said("settlement_refused") if not each["kept"]]
        assert len(given_up) == 1
        assert world.slots.runs == 2


async def test_a_stop_does_not_wait_for_it() -> None:
    with VirtualClock() as clock:
        world = World(clock, keep_s=KEEP_S)
        await world.live(10)
        loop = asyncio.ensure_future(world.settler.run())
        began = clock.monotonic()
        world.settler.give_up()
        await world.scheduler.hand_over([SHARD], 300.0)
        assert clock.monotonic() - began < 1
        assert not world.settler.refused
        loop.cancel()


async def test_other_shards_go_on_meanwhile() -> None:
    good, bad, later = settlement(0), settlement(1), settlement(0)
    it = Rig(Journal(NO, None, NO), keep_s=KEEP_S)
    async with running(it.settler):
        it.add(good, bad)
        await it.until(lambda: it.results == [good])
        it.add(later)
        await it.until(lambda: it.results == [good, later])
    assert it.journal.calls == [[good, bad], [good], [bad], [later]]
    assert (it.errors, it.settler.kept_error) == ([], str(NO))


async def test_one_that_is_being_sent_again_survives_a_cancellation() -> None:
    asked = asyncio.Event()

    async def hang() -> None:
        asked.set()
        await asyncio.sleep(3600)

    bad = settlement(1)
    it = Rig(Journal(NO, hang, None), keep_s=KEEP_S)
    async with running(it.settler):
        it.add(bad)
        while not it.settler.refused:  # noqa: ASYNC110
            await asyncio.sleep(0)
        it.settler.give_up()
        await asked.wait()
    await it.settler.flush()
    assert (it.results, it.errors) == ([bad], [])


def test_each_shard_is_for_itself_although_their_settlements_have_one_name() -> None:
    kept = KeptSettlements(random.Random(1), lambda: 0.0)
    one = settlement(1)
    several = [msgspec.structs.replace(one, shard_id=ShardId(n)) for n in range(8)]
    waits = [kept.add(each, "no right") or 0.0 for each in several]
    assert max(waits) <= WAIT_MIN_S
    kept.give_up()
    assert kept.due() == several


def test_pauses_grow_to_a_bound() -> None:
    class Longest(random.Random):
        def uniform(self, a: float, b: float) -> float:
            return b

    now = [0.0]
    kept, one = KeptSettlements(Longest(), lambda: now[0], keep_s=1_000.0), settlement()
    waits = [kept.add(one, "no right") for _ in range(8)]
    assert waits == [2.0, 4.0, 8.0, 16.0, *(4 * [WAIT_MAX_S])]
    assert waits[0] == WAIT_MIN_S
    assert kept.due() == []
    now[0] = WAIT_MAX_S
    assert kept.due() == [one]
    now[0] = 1_000.0
    assert kept.add(one, "no right") is None
    assert (kept.error, kept.due_s) == ("", None)
