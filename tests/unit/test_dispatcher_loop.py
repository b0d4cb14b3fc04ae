"""Coroutines and threads through the dispatcher: what comes out, in which batches."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from typing import Any

import pytest

from late.dispatcher import outcome_buffer as finished
from late.dispatcher.dispatcher import LOOK_S
from late.handler.context import AsyncContext, Context
from late.handler.outcomes import Retry, Snooze
from late.model.task import Attempt, Outcome
from tests.unit.dispatcher_kit import NOW_US, Task, attempt, by_id, rig, task

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="clean")


async def test_async_and_sync_handlers_get_their_arguments() -> None:
    seen: list[tuple[str, int]] = []

    @task()
    async def on_loop(trip: int) -> None:
        seen.append(("loop", trip))

    @task()
    def in_thread(trip: int) -> None:
        seen.append((threading.current_thread().name.rpartition("-")[0], trip))

    async with rig(on_loop, in_thread) as it:
        first, second = attempt("on_loop", trip=7), attempt("in_thread", trip=8)
        outcomes = by_id(await it.run(first, second))
    assert sorted(seen) == [("late-handler", 8), ("loop", 7)]
    done = outcomes[first.record.task_id]
    assert (done.kind, done.target, done.started_at_us) == ("done", "local", NOW_US)
    assert done.attempt is first


@pytest.mark.parametrize("is_async", [True, False])
async def test_what_is_raised_decides_the_outcome(is_async: bool) -> None:
    def act(how: str) -> Any:
        match how:
            case "retry":
                raise Retry(after_s=2)
            case "snooze":
                return Snooze(3)
            case "stop":
                raise StopIteration
            case "exit":
                raise SystemExit(3)
            case "give up":
                raise KeyError("gone")

    async def as_coroutine(how: str) -> Any:
        return act(how)

    handler = Task(as_coroutine if is_async else act, retry=Retry(give_up_on=KeyError))
    async with rig(handler) as it:
        hows = ["", "retry", "snooze", "stop", "exit", "give up"]
        attempts = {how: attempt(handler.name, how=how) for how in hows}
        bad = attempt(handler.name, payload=b"{")
        outcomes = by_id(await it.run(*attempts.values(), bad))
    by_how = {how: outcomes[one.record.task_id] for how, one in attempts.items()}
    assert {how: one.kind for how, one in by_how.items()} == {
        "": "done",
        "retry": "failed",
        "snooze": "snooze",
        "stop": "failed",
        "exit": "failed",
        "give up": "failed",
    }
    assert by_how["retry"].after_us == 2_000_000
    assert by_how["snooze"].after_us == 3_000_000
    assert not by_how["give up"].retryable
    assert by_how["exit"].retryable
    assert 0 <= by_how["exit"].jitter < 1
    assert by_how["exit"].jitter != by_how["stop"].jitter
    undecodable = outcomes[bad.record.task_id]
    assert (undecodable.kind, undecodable.reason) == ("dead", "undecodable")


async def test_expired_and_unknown_attempts_never_run() -> None:
    ran: list[str] = []

    @task()
    async def work(who: str) -> None:
        ran.append(who)

    async with rig(work) as it:
        late = attempt(who="late", deadline_us=NOW_US)
        unknown = attempt("nobody")
        in_time = attempt(who="in time", deadline_us=NOW_US + 1)
        outcomes = by_id(await it.run(late, unknown, in_time))
    assert ran == ["in time"]
    assert outcomes[late.record.task_id].kind == "expired"
    assert outcomes[unknown.record.task_id].kind == "not_capable"
    assert outcomes[unknown.record.task_id].reason == "unknown_handler"


async def test_no_more_than_concurrency_run_and_the_rest_waits_in_order() -> None:
    running, most, order = 0, 0, list[int]()
    gate, started = asyncio.Event(), asyncio.Semaphore(0)

    @task()
    async def work(trip: int) -> None:
        nonlocal running, most
        order.append(trip)
        running += 1
        most = max(most, running)
        started.release()
        await gate.wait()
        running -= 1

    async with rig(work, concurrency=3) as it:
        dispatcher = it.dispatcher
        assert dispatcher.free == 3
        dispatcher.submit([attempt(trip=0)])
        assert dispatcher.free == 2
        dispatcher.submit([attempt(trip=trip) for trip in range(1, 8)])
        assert (dispatcher.free, dispatcher.load) == (0, 8)
        for _ in range(3):
            await started.acquire()
        gate.set()
        await it.ended(8)
        assert (dispatcher.free, dispatcher.load) == (3, 0)
    assert most == 3
    assert order == list(range(8))


async def test_idle_slots_share_what_is_submitted_at_once() -> None:
    """Also when the first one to wake keeps its attempt for long."""
    gate, started = asyncio.Event(), asyncio.Semaphore(0)

    @task()
    async def work() -> None:
        started.release()
        await gate.wait()

    async with rig(work, concurrency=4) as it:
        gate.set()
        await it.run(*[attempt() for _ in range(20)])  # All slots are idle now.
        for _ in range(20):
            await started.acquire()
        gate.clear()
        it.dispatcher.submit([attempt() for _ in range(4)])
        for _ in range(4):
            await asyncio.wait_for(started.acquire(), 120)
        gate.set()
        await it.ended(24)


async def test_outcomes_come_in_batches() -> None:
    @task()
    async def work() -> None:
        pass

    async with rig(work, concurrency=16) as it:
        await it.run(*[attempt() for _ in range(400)])
    assert len(it.batches) <= 20


async def test_outcomes_of_handlers_that_wait_come_in_batches_too() -> None:
    gate, started = asyncio.Event(), asyncio.Semaphore(0)

    @task()
    async def work() -> None:
        started.release()
        await gate.wait()

    async with rig(work, concurrency=64) as it:
        it.dispatcher.submit([attempt() for _ in range(64)])
        for _ in range(64):
            await started.acquire()
        gate.set()
        await it.ended(64)
    assert len(it.batches) <= 10


async def test_submitting_from_on_finished_keeps_the_slots_busy() -> None:
    """A receiver that hands in the next attempts while a slot delivers."""
    submitted = 0

    @task()
    async def work() -> None:
        if submitted % 7 == 0:
            await asyncio.sleep(0)

    def more(batch: list[Outcome]) -> None:
        nonlocal submitted
        count = min(it.dispatcher.free, 500 - submitted)
        submitted += count
        it.dispatcher.submit([attempt() for _ in range(count)])

    async with rig(work, concurrency=16, on_batch=more) as it:
        more([])
        await it.ended(500)
    assert len(it.outcomes) == 500
    assert len(it.batches) < 250


async def test_attempts_that_never_wait_let_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of no-op attempts must not keep a timer from firing: a turn ends, here at once."""
    monkeypatch.setattr(finished, "TURN_S", 0.0)
    ticks = 0

    @task()
    async def work() -> None:
        pass

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    async with rig(work, concurrency=1) as it:
        ticking = asyncio.create_task(tick())
        await asyncio.sleep(0)
        await it.run(*[attempt() for _ in range(300)])
        ticking.cancel()
    assert ticks > 200


async def test_a_long_sync_handler_does_not_block_the_loop() -> None:
    release = threading.Event()

    @task()
    def slow() -> None:
        release.wait(120)

    @task()
    async def quick() -> None:
        pass

    async with rig(slow, quick, concurrency=2) as it:
        it.dispatcher.submit([attempt("slow")])
        await it.run(attempt("quick"))
        assert it.kinds == ["done"]
        release.set()
        await it.ended(2)


async def test_as_many_threads_as_slots_run_at_once() -> None:
    barrier = threading.Barrier(5, timeout=120)

    @task()
    def meet() -> None:
        barrier.wait()

    async with rig(meet, concurrency=5) as it:
        assert {o.kind for o in await it.run(*[attempt("meet") for _ in range(5)])} == {"done"}


@pytest.mark.parametrize("waits", [False, True])
async def test_context_variables_do_not_leak_into_the_next_attempt(waits: bool) -> None:
    seen: list[str] = []
    inner: list[str] = []

    async def look() -> None:
        inner.append(VARIABLE.get())

    @task()
    async def work(who: str) -> None:
        seen.append(VARIABLE.get())
        VARIABLE.set(who)
        if waits:
            await asyncio.sleep(0)
        await asyncio.create_task(look())
        seen.append(VARIABLE.get())

    async with rig(work, concurrency=1) as it:
        await it.run(attempt(who="a"), attempt(who="b"))
    assert seen == ["clean", "a", "clean", "b"]
    assert inner == ["a", "b"]


async def test_context_variables_do_not_leak_between_threads() -> None:
    seen: list[str] = []

    @task()
    def work(who: str) -> None:
        seen.append(VARIABLE.get())
        VARIABLE.set(who)

    async with rig(work, concurrency=1) as it:
        await it.run(attempt(who="a"))
        await it.run(attempt(who="b"))
    assert seen == ["clean", "clean"]


async def test_asyncio_tools_work_inside_a_handler() -> None:
    @task()
    async def work() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        async with asyncio.TaskGroup() as group:
            one = group.create_task(asyncio.sleep(0, "x"))
        assert one.result() == "x"
        assert await asyncio.wait_for(asyncio.sleep(0, "y"), 120) == "y"

    async with rig(work, concurrency=1) as it:
        first, second = await it.run(attempt(), attempt())
        assert (first.error, second.error) == (None, None)


async def test_a_handler_that_cancels_its_own_task_hurts_nobody() -> None:
    @task()
    async def suicide(wait: bool) -> None:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        if wait:
            await asyncio.sleep(0)

    @task()
    async def work() -> None:
        await asyncio.sleep(0)
        current = asyncio.current_task()
        assert current is not None
        assert current.cancelling() == 0

    async with rig(suicide, work, concurrency=1) as it:
        attempts = [attempt("suicide", wait=True), attempt("suicide", wait=False), attempt()]
        outcomes = await it.run(*attempts)
        assert [o.kind for o in outcomes] == ["failed", "done", "done"]
        assert (await it.run(attempt()))[0].kind == "done"


async def test_contexts_are_given_to_those_who_ask() -> None:
    seen: list[Any] = []

    @task()
    async def on_loop(ctx: AsyncContext, trip: int) -> None:
        seen.append((type(ctx), ctx.attempt, trip))

    @task()
    def in_thread(ctx: Context, trip: int) -> None:
        seen.append((type(ctx), ctx.attempt, trip))

    async with rig(on_loop, in_thread) as it:
        await it.run(attempt("on_loop", number=2, trip=1))
        await it.run(attempt("in_thread", number=3, trip=1))
    assert seen == [(AsyncContext, 2, 1), (Context, 3, 1)]


async def test_a_fenced_epoch_is_dropped_and_counted() -> None:
    gate, started = asyncio.Event(), asyncio.Semaphore(0)

    @task()
    async def work() -> None:
        started.release()
        await gate.wait()

    def of(shard_id: int, epoch: int) -> Attempt:
        return attempt(shard_id=shard_id, epoch=epoch)

    async with rig(work, concurrency=2) as it:
        # Two run, four wait; shard 1 is then lost under epoch 4.
        mine, lost, waiting, newer = of(0, 4), of(1, 4), of(1, 4), of(1, 5)
        it.dispatcher.submit([mine, lost, waiting, newer])
        await started.acquire()
        await started.acquire()
        it.dispatcher.abandon("default", 1, 4)
        assert (it.dispatcher.dropped, it.dispatcher.load) == (1, 3)
        gate.set()
        outcomes = await it.ended(2)
        assert {o.attempt for o in outcomes} == {mine, newer}
        assert it.dispatcher.dropped == 2
        # An older fence does not lift a newer one.
        it.dispatcher.abandon("default", 1, 3)
        it.dispatcher.submit([of(1, 4)])
        await it.run(of(1, 5))
        assert it.dispatcher.dropped == 3


async def test_a_receiver_that_raises_takes_no_slot_down() -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))

    @task()
    async def work() -> None:
        pass

    def broken(batch: list[Outcome]) -> None:
        raise ZeroDivisionError

    async with rig(work, concurrency=1, on_batch=broken) as it:
        await it.run(*[attempt() for _ in range(20)])
        await it.run(attempt())
    assert isinstance(told[0]["exception"], ZeroDivisionError)


async def test_what_waited_for_a_slot_does_not_start_once_trust_has_run_out() -> None:
    """A process that was stopped and woke up must not work on what it had taken before."""
    started: list[int] = []
    trusted = True

    @task()
    async def handler(trip: int) -> None:
        nonlocal trusted
        started.append(trip)
        trusted = False  # the lease ends while the first one runs, or the process is paused
        time.sleep(LOOK_S)  # noqa: ASYNC251

    async with rig(handler, concurrency=1, trusted=lambda: trusted) as it:
        outcomes = await it.run(*(attempt("handler", trip=trip) for trip in range(3)))
    assert started == [0]
    assert sorted((outcome.kind, outcome.begun) for outcome in outcomes) == [
        ("done", True),
        *[("interrupted", False)] * 2,
    ]
