"""Handlers that run on after their time-out: what becomes of them, of their slots and of others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from late import events
from late.handler.context import AttemptOver, Context
from late.model.task import Attempt
from tests.unit.dispatcher_kit import Rig, Task, attempt, rig, task


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Lets stuck threads go at the end of the test, also when it fails."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def told() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Every event that was emitted."""
    seen: list[tuple[str, dict[str, Any]]] = []
    end = events.default.subscribe(lambda event, values: seen.append((event.name, dict(values))))
    yield seen
    end()


async def stuck(it: Rig, count: int) -> None:
    async with asyncio.timeout(120):
        while it.dispatcher.stuck.count != count:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def hanging(release: threading.Event, name: str = "work", **options: Any) -> Task:
    def work() -> None:
        release.wait(120)

    work.__name__ = name
    return Task(work, **({"timeout_s": 0.02} | options))


@task()
def quick() -> None:
    pass


async def test_the_attempt_of_a_stuck_thread_ends_when_the_thread_does(
    release: threading.Event, told: list[tuple[str, dict[str, Any]]]
) -> None:
    one = attempt()
    async with rig(hanging(release), quick, concurrency=4) as it:
        it.dispatcher.submit([one])
        await stuck(it, 1)
        # Then it has no outcome, so that nothing can repeat it; and its slot is taken
        assert it.dispatcher.stuck.attempts == [one]
        assert it.dispatcher.stuck.unsettled == {("default", 0)}
        assert (it.dispatcher.free, it.dispatcher.running) == (3, 0)
        values = next(values for name, values in told if name == "stuck_handler")
        assert values["task"] == one.record.task_id
        # When others run, they have slots and threads of their own
        (other,) = await it.run(attempt("quick"))
        assert (other.attempt.record.name, other.kind) == ("quick", "done")
        # And what the handler did counts when it has done it
        release.set()
        await stuck(it, 0)
        (_, outcome) = await it.ended(2)
        assert (outcome.attempt, outcome.kind) == (one, "done")
        assert (it.dispatcher.late_results, it.dispatcher.free) == (0, 4)
        assert it.dispatcher.stuck.over == 1


async def test_a_stuck_handler_that_raises_in_the_end_has_timed_out(
    release: threading.Event,
) -> None:
    @task(timeout_s=0.02)
    def work(ctx: Context) -> None:
        release.wait(120)
        with pytest.raises(AttemptOver):
            ctx.check()
        ctx.heartbeat()

    async with rig(work) as it:
        it.dispatcher.submit([attempt()])
        await stuck(it, 1)
        release.set()
        (outcome,) = await it.ended(1)
    assert (outcome.kind, outcome.retryable) == ("failed", True)
    assert (outcome.error or "").startswith("timed out after 0.02 s: late.handler.context.Attempt")


async def test_a_coroutine_that_ignores_its_cancellation_is_stuck() -> None:
    gate = asyncio.Event()

    @task(timeout_s=0.02)
    async def work() -> None:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue

    async with rig(work, concurrency=2, cancel_grace_s=0.02) as it:
        it.dispatcher.submit([attempt()])
        await stuck(it, 1)
        assert (it.outcomes, it.dispatcher.free) == ([], 1)
        gate.set()
        (outcome,) = await it.ended(1)
        assert outcome.kind == "done"
        assert it.dispatcher.free == 2


async def test_a_task_may_say_that_its_repeat_can_run_beside_it(release: threading.Event) -> None:
    one = attempt()
    async with rig(hanging(release, overlap_on_timeout=True), concurrency=2) as it:
        (outcome,) = await it.run(one)
        assert (outcome.kind, outcome.retryable) == ("failed", True)
        assert "its thread runs on" in (outcome.error or "")
        assert it.dispatcher.stuck.attempts == [one]
        assert it.dispatcher.stuck.unsettled == set()
        release.set()
        await stuck(it, 0)
        assert it.dispatcher.late_results == 1
        assert len(it.outcomes) == 1


@asynccontextmanager
async def full(release: threading.Event, *names: str) -> AsyncIterator[Rig]:
    """Eight slots, and stuck runs of each of `names` in all that are free, one after the other.

    The time-out is long for a test: on a busy machine all of a name must start within it.
    """
    tasks = [hanging(release, name, timeout_s=2.0) for name in names]
    async with rig(*tasks, quick, concurrency=8) as it:
        for number, name in enumerate(names):
            it.dispatcher.submit([attempt(name) for _ in range(it.dispatcher.free)])
            await stuck(it, 8 + 4 * number)
        yield it
        release.set()


async def test_one_task_that_hangs_leaves_half_of_the_slots_to_others(
    release: threading.Event,
) -> None:
    async with full(release, "work") as it:
        # Given eight stuck runs in eight slots: the half stays, and is there for others
        assert (it.dispatcher.free, it.dispatcher.stuck.everywhere) == (4, False)
        assert it.dispatcher.stuck.tasks == ["work"]
        others = await it.run(*(attempt("quick") for _ in range(20)))
        assert [o.kind for o in others] == ["done"] * 20
        # And no further attempt of the task starts here: it waits, which costs it nothing
        (outcome,) = await it.run(attempt())
        assert (outcome.attempt.record.name, outcome.kind) == ("work", "snooze")
        assert 30_000_000 <= (outcome.after_us or 0) <= 60_000_000
        # When they end, there are as many slots as before
        release.set()
        await stuck(it, 0)
        await it.ended(29)
        assert (it.dispatcher.free, it.dispatcher.load, len(it.dispatcher._slots)) == (8, 0, 8)
        assert (await it.run(attempt()))[-1].kind == "done"


async def test_two_tasks_that_hang_can_hold_all_slots(release: threading.Event) -> None:
    async with full(release, "first", "second") as it:
        assert (it.dispatcher.free, it.dispatcher.stuck.everywhere) == (0, True)
        assert len(it.dispatcher._slots) == 12
        # When it stops, which ends the threads as well, what is stuck is settled
        await it.dispatcher.stop(20)
        assert [o.kind for o in it.outcomes] == ["failed"] * 12
        assert all("its thread runs on" in (o.error or "") for o in it.outcomes)
        assert it.dispatcher.stuck.unsettled == set()


async def test_a_single_slot_may_be_stuck(release: threading.Event) -> None:
    async with rig(hanging(release), quick, concurrency=1) as it:
        it.dispatcher.submit([attempt()])
        await stuck(it, 1)
        assert it.dispatcher.stuck.everywhere
        waiting: Attempt = attempt("quick")
        it.dispatcher.submit([waiting])
        release.set()
        assert [o.kind for o in await it.ended(2)] == ["done", "done"]


async def test_who_hears_of_a_stuck_run_may_ask_what_waits(release: threading.Event) -> None:
    """Also at a stop, of which the event says so. To ask takes the locks of the slots."""
    seen: list[tuple[str, str, int]] = []

    def hear(event: events.Event, values: Mapping[str, Any]) -> None:
        held = any(slot.lock.locked() for slot in it.dispatcher._slots)
        seen.append((event.name, values["name"], -1 if held else it.dispatcher.waiting))

    end = events.default.subscribe(hear, [events.STUCK_HANDLER, events.HANDLER_LEFT])
    try:
        patient = hanging(release, "patient", timeout_s=1_000.0)
        async with rig(hanging(release), patient, concurrency=4) as it:
            it.dispatcher.submit([attempt(), attempt("patient")])
            await stuck(it, 1)
        assert seen == [("stuck_handler", "work", 0), ("handler_left", "patient", 0)]
    finally:
        end()
