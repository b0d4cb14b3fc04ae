"""The simulator itself: that it is deterministic, that time and processes are as they should be,
and that it finds what is broken. That nothing is broken is for `tests/simulation` to say."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pytest

from late.errors import StoreUnavailable
from late.model.task import Cursor
from late.scheduler import scheduler
from late.scheduler.core.commands import Commands
from late.scheduler.core.shard_core import ShardCore
from late.scheduler.core.state import CoreState
from late.scheduler.turns import Turns
from late.store.base import Page, Settlement, SettleResult
from tests.simulator import database, jumps, logs, resets
from tests.simulator.__main__ import Tally
from tests.simulator.job import Job, job_of
from tests.simulator.loop import Process, SimLoop, Spinning, Stalled, bury
from tests.simulator.minimise import describe, minimise
from tests.simulator.plan import FAULTS, PROFILES, Plan
from tests.simulator.world import Result, World

pytestmark = pytest.mark.usefixtures("quick_worlds")


def live(loop: SimLoop, main: Any) -> Any:
    try:
        return loop.run_until_complete(main())
    finally:
        loop.forget()


def test_time_passes_only_when_everything_waits() -> None:
    loop = SimLoop()

    async def main() -> list[tuple[float, str]]:
        seen = []

        async def sleeper(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append((loop.now_s, name))

        await asyncio.gather(sleeper("hour", 3600), sleeper("second", 1), sleeper("now", 0))
        return seen

    assert live(loop, main) == [(0, "now"), (1, "second"), (3600, "hour")]


def test_a_process_has_a_clock_of_its_own() -> None:
    loop = SimLoop()
    process = Process("w", offset_s=100, rate=2)

    async def inside() -> None:
        assert asyncio.get_running_loop().time() == 100
        async with asyncio.timeout(10):  # by its own clock: five seconds of the world
            await asyncio.sleep(4)
        assert (loop.time(), loop.now_s) == (104, 2)

    async def main() -> None:
        loop.start(process, inside)
        await asyncio.sleep(10)

    live(loop, main)
    assert loop.errors == []


def test_a_paused_process_misses_nothing_and_a_killed_one_everything() -> None:
    loop = SimLoop()
    paused, killed = Process("paused"), Process("killed")
    seen: list[tuple[str, float]] = []

    async def work(name: str) -> None:
        try:
            for _ in range(4):
                await asyncio.sleep(1)
                seen.append((name, loop.now_s))
        finally:
            seen.append((name, -1))

    async def main() -> None:
        loop.start(paused, lambda: work("paused"))
        loop.start(killed, lambda: work("killed"))
        await asyncio.sleep(1.5)
        loop.pause(paused)
        loop.kill(killed)
        await asyncio.sleep(8.5)
        loop.resume(paused)
        await asyncio.sleep(10)

    live(loop, main)
    assert seen == [
        ("paused", 1), ("killed", 1), ("paused", 10), ("paused", 11), ("paused", 12), ("paused", -1)
    ]  # fmt: skip
    bury([killed])


def test_a_world_in_which_nothing_can_happen_any_more_says_so() -> None:
    loop = SimLoop()
    with pytest.raises(Stalled):
        live(loop, asyncio.Event().wait)


def test_a_callback_that_calls_for_itself_without_end_is_found() -> None:
    loop = SimLoop()

    async def main() -> None:
        def again() -> None:
            loop.call_soon(again)

        again()
        await asyncio.Event().wait()

    with pytest.raises(Spinning):
        live(loop, main)


def test_the_same_seed_gives_the_same_trace_in_another_process() -> None:
    program = (
        "import logging; logging.disable(logging.CRITICAL)\n"
        "from tests.simulator.plan import PROFILES, Plan\n"
        "from tests.simulator.world import World\n"
        "for seed, profile in enumerate(PROFILES):\n"
        "    r = World(Plan.draw(seed, profile)).run(); print(r.trace, r.steps, r.error)\n"
    )
    first, second = (
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for salt in ("1", "2")
    )
    assert first == second
    assert first.count("None") == len(PROFILES)


def test_a_timer_never_comes_before_its_time() -> None:
    """By the clock of its process, to the last bit: who asks again for what is left would ask
    without end while no time passes."""
    loop, rng = SimLoop(), random.Random(1)
    early: list[float] = []

    async def wait() -> None:
        for _ in range(200):
            due = loop.time() + rng.uniform(0, 1)
            moment = loop.create_future()
            loop.call_at(due, moment.set_result, None)
            await moment
            early.extend([due - loop.time()] if loop.time() < due else [])

    async def main() -> None:
        for number in range(20):
            rate = 1 + rng.uniform(-2e-4, 2e-4)
            process = Process(f"p{number}", offset_s=rng.uniform(0, 20), rate=rate)
            loop.start(process, wait)
        await asyncio.sleep(1_000)

    live(loop, main)
    assert loop.errors == []
    assert early == []


def test_a_core_that_is_passed_by_had_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A world in which every core is granted slots in every pass is the same to the letter."""
    # A pass comes sooner where a core may have something to do: here all come at the same times.
    monkeypatch.setattr(scheduler, "CALM_PASS_S", scheduler.PASS_MAX_S)
    # Each pass begins with another shard, so that one pass more gives another order.
    monkeypatch.setattr(Turns, "order", lambda self, shards: list(shards))
    plans = [Plan.draw(seed) for seed in range(1_000, 1_008)]
    traces = [World(plan).run().trace for plan in plans]
    monkeypatch.setattr(CoreState, "quiet_us", lambda core: 0)
    monkeypatch.setattr(ShardCore, "skip_grant", lambda core, *fitting: False)

    assert [World(plan).run().trace for plan in plans] == traces


def test_seeds_draw_every_profile_and_every_fault() -> None:
    plans = [Plan.draw(seed) for seed in range(100)]
    assert {plan.profile for plan in plans} == set(PROFILES)
    assert {fault.kind for plan in plans for fault in plan.faults} == set(FAULTS)
    assert any(not plan.faults for plan in plans)
    fates = {(b.fate, b.done) for plan in plans for b in plan.bookings}
    assert fates == {(f, d) for f in ("commit", "abort", "unsure") for d in (True, False)}
    plans_of_jobs = plans + [Plan.draw(seed) for seed in range(700_000, 700_010)]
    bookings = [booking for plan in plans_of_jobs for booking in plan.bookings]
    jobs = [job_of(task.payload) for booking in bookings for task in booking.tasks]
    for field in Job.__struct_fields__:
        assert any(getattr(job, field) for job in jobs), field
    asked = {order.row.name for plan in plans for order in plan.orders}
    assert asked == {"late.cancel", "late.reschedule", "late.redrive"}
    assert {order.together for plan in plans for order in plan.orders} == {True, False}
    assert {reset.to for plan in plans for reset in plan.resets} == {"beginning", "now"}
    assert {plan.settings.retry_min for plan in plans} == {None, 1.0, 3.0}
    steps = {jump.by_s for seed in range(1_000) for jump in Plan.draw(seed).jumps}
    assert steps == {*jumps.NEAR_S, *jumps.FAR_S}
    schedules = [schedule for plan in plans for schedule in plan.schedules]
    assert {s.overlap for s in schedules} == {"allow", "queue", "skip"}
    assert {s.catch_up for s in schedules} == {"all", "latest", "skip"}


def _last_row(read: Any) -> Any:
    def broken(self: Any, shard_id: int, cursor: Cursor, limit: int) -> logs.Read:
        found: logs.Read = read(self, shard_id, cursor, limit)
        if not found.records:
            return found
        return msgspec.structs.replace(found, cursor=Cursor(str(found.records[-1].position)))

    return broken


def test_a_cursor_that_is_the_last_rows_timestamp_is_found_and_minimised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs.SpannerLog, "read", _last_row(logs.SpannerLog.read))
    broken = next(
        result
        for seed in range(100)
        if (result := World(Plan.draw(seed, "spanner")).run()).error is not None
    )
    smallest = minimise(broken)
    assert smallest.error is not None
    assert "S2" in smallest.error or "E1" in smallest.error
    assert smallest.plan.faults == ()  # no fault is needed to lose a tie
    assert len(smallest.plan.bookings) < len(broken.plan.bookings)
    assert f"seed {broken.plan.seed} on spanner" in describe(smallest)


def test_a_database_that_does_not_fence_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = database.Database._settle

    def unfenced(self: database.Database, s: Settlement) -> SettleResult:
        journal = self.journals[s.group, s.shard_id]
        if journal.ids.get(s.seq) == s.settlement_id:
            return SettleResult.SETTLED
        journal.epoch = s.epoch
        return settle(self, msgspec.structs.replace(s, seq=journal.seq + 1))

    monkeypatch.setattr(database.Database, "_settle", unfenced)
    assert any(World(Plan.draw(seed)).run().error for seed in range(40))


def _first(word: str, plans: Iterable[Plan]) -> str:
    """The first error that names the invariant."""
    for plan in plans:
        error = World(plan).run().error
        if error is not None and word in error:
            return error
    raise AssertionError(f"no world has found it: {word}")


def _with_orders(first: int) -> Iterator[Plan]:
    """Plans with commands, from a seed on that has shown what is looked for."""
    return (plan for seed in range(first, 300) if (plan := Plan.draw(seed)).orders)


def test_commands_that_are_not_carried_out_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    change = Commands._change

    def forgets(kind: str) -> Any:
        def broken(self: Commands, waiting: Any, target: Any) -> None:
            if waiting.command.kind == kind and target is not None:
                self._done(waiting, "discarded")
            else:
                change(self, waiting, target)

        return broken

    monkeypatch.setattr(Commands, "_change", forgets("cancel"))
    assert "it was cancelled" in _first("S17", _with_orders(12))
    monkeypatch.setattr(Commands, "_change", forgets("reschedule"))
    assert "before the time it was put off to" in _first("S18", _with_orders(43))


def test_a_reset_that_leaves_tasks_where_they_were_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans = [plan for seed in range(80) if (plan := Plan.draw(seed)).resets]
    monkeypatch.setattr(resets, "goes_on", lambda key, again: True)
    assert _first("S6", plans)


def test_an_error_that_no_component_catches_ends_the_world(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(self: Any, cursors: Any, limit: int) -> list[Page]:
        raise RuntimeError("a defect")

    monkeypatch.setattr(database.Database, "read", broken)
    error = World(Plan.draw(1)).run().error
    assert error is not None
    assert "a defect" in error or "E1" in error


def test_a_store_error_is_no_defect() -> None:
    assert StoreUnavailable("x").transient
    quiet = msgspec.structs.replace(Plan.draw(5), faults=())
    assert World(quiet).run().error is None


def test_the_command_lives_worlds_in_several_processes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulator", "--seeds", "6", "--jobs", "2"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("6 worlds, 0 broke; ")


def test_a_world_that_is_lived_alone_says_its_trace() -> None:
    tally = Tally()
    tally.add(Result(Plan.draw(17), None, "5eed", 1, 1, 1, 1.0))
    assert tally.line.endswith("; trace 5eed")
    tally.add(Result(Plan.draw(18), None, "c0de", 1, 1, 1, 1.0))
    assert "trace" not in tally.line
