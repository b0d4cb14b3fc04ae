"""Time-outs, handlers that cannot be ended, and stopping."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest

from late.dispatcher.handler import Bound
from late.dispatcher.local import timeouts
from late.dispatcher.local.slot import Slot
from late.dispatcher.outcome_buffer import TURN_S
from late.handler.context import AsyncContext, AttemptOver, Context
from late.model.task import Outcome
from tests.unit.dispatcher_kit import Rig, Task, attempt, rig, task


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Lets stuck threads go at the end of the test, also when it fails."""
    event = threading.Event()
    yield event
    event.set()


async def test_an_overdue_coroutine_is_cancelled_and_fails() -> None:
    cleaned: list[str] = []

    @task(timeout_s=0.02)
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append("up")

    @task()
    async def after() -> None:
        await asyncio.sleep(0)

    async with rig(work, after, concurrency=1) as it:
        (outcome,) = await it.run(attempt())
        assert (outcome.kind, outcome.error) == ("failed", "timed out after 0.02 s")
        assert outcome.retryable
        assert outcome.busy_us >= 20_000
        assert cleaned == ["up"]
        assert (await it.run(attempt("after")))[0].kind == "done"
        assert not it.dispatcher.stuck.count


async def test_what_a_cancelled_handler_raises_is_told_but_does_not_decide() -> None:
    @task(timeout_s=0.02)
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise LookupError("while cleaning up") from None

    async with rig(work) as it:
        (outcome,) = await it.run(attempt())
    assert outcome.kind == "failed"
    assert outcome.error is not None
    assert outcome.error.startswith("timed out after 0.02 s: LookupError: while cleaning up")


async def test_work_that_is_done_in_spite_of_the_cancellation_is_done() -> None:
    @task(timeout_s=0.02)
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)

    async with rig(work, concurrency=1) as it:
        first, second = await it.run(attempt(), attempt())
    assert (first.kind, second.kind) == ("done", "done")


async def test_a_cancelled_handler_has_time_to_clean_up() -> None:
    cleaned = asyncio.Event()

    @task(timeout_s=0.02)
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.1)  # Several sweeps long.
            cleaned.set()

    async with rig(work, cancel_grace_s=20) as it:
        (outcome,) = await it.run(attempt())
        assert cleaned.is_set()
        assert (outcome.error, it.dispatcher.late_results) == ("timed out after 0.02 s", 0)


async def test_the_time_out_is_counted_from_the_last_heartbeat() -> None:
    @task(timeout_s=2.0)
    async def on_loop(ctx: AsyncContext) -> None:
        began = monotonic()
        while monotonic() - began < 2.5:
            ctx.heartbeat()
            await asyncio.sleep(0.01)

    @task(timeout_s=2.0)
    def in_thread(ctx: Context) -> None:
        began = monotonic()
        while monotonic() - began < 2.5:
            ctx.heartbeat()
            threading.Event().wait(0.01)

    async with rig(on_loop, in_thread) as it:
        outcomes = await it.run(attempt("on_loop"), attempt("in_thread"))
    assert [(o.kind, o.error) for o in outcomes] == [("done", None)] * 2


async def test_a_kept_context_cannot_extend_a_later_attempt() -> None:
    kept: list[AsyncContext] = []

    @task()
    async def work(ctx: AsyncContext) -> None:
        kept.append(ctx)
        if len(kept) > 1:
            with pytest.raises(AttemptOver):
                kept[0].heartbeat()

    async with rig(work, concurrency=1) as it:
        assert [o.kind for o in await it.run(attempt(), attempt())] == ["done", "done"]


async def test_stop_lets_running_attempts_finish() -> None:
    gate, started = asyncio.Event(), asyncio.Event()

    @task()
    async def work() -> None:
        started.set()
        await gate.wait()

    it = Rig(work, concurrency=1)
    await it.dispatcher.start()
    running, waiting = attempt(), attempt()
    it.dispatcher.submit([running, waiting])
    await started.wait()
    stopping = asyncio.create_task(it.dispatcher.stop(30))
    # What has not started comes back at once; what runs is waited for.
    (first,) = await it.ended(1)
    assert (first.attempt, first.kind, first.begun) == (waiting, "interrupted", False)
    gate.set()
    await stopping
    assert [(o.attempt, o.kind) for o in it.outcomes[1:]] == [(running, "done")]
    assert it.dispatcher.load == 0


async def test_stop_interrupts_what_outlives_the_grace(release: threading.Event) -> None:
    started = asyncio.Semaphore(0)
    loop = asyncio.get_running_loop()

    @task()
    async def polite() -> None:
        started.release()
        await asyncio.Event().wait()

    @task()
    async def wrapping() -> None:
        started.release()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise OSError("connection closed") from None

    @task()
    async def stubborn() -> None:
        started.release()
        while not release.is_set():
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue

    @task()
    def in_thread() -> None:
        loop.call_soon_threadsafe(started.release)
        release.wait(120)

    it = Rig(polite, wrapping, stubborn, in_thread, cancel_grace_s=0.02)
    await it.dispatcher.start()
    names = ["polite", "wrapping", "stubborn", "in_thread"]
    it.dispatcher.submit([attempt(name) for name in names])
    for _ in names:
        await started.acquire()
    await it.dispatcher.stop(0.01)
    assert {o.attempt.record.name: o.kind for o in it.outcomes} == dict.fromkeys(
        names, "interrupted"
    )
    assert all(outcome.begun for outcome in it.outcomes)
    release.set()


async def test_stop_twice_or_before_start_is_legal() -> None:
    @task()
    async def work() -> None:
        pass

    it = Rig(work)
    it.dispatcher.submit([attempt()])
    await it.dispatcher.stop(1)
    await it.dispatcher.stop(1)
    assert it.kinds == ["interrupted"]
    await it.dispatcher.start()  # Nothing starts any more.
    it.dispatcher.submit([attempt()])
    assert it.kinds == ["interrupted", "interrupted"]
    assert not any(outcome.begun for outcome in it.outcomes)
    assert it.dispatcher.load == 0


async def test_a_second_stop_can_only_shorten_the_grace() -> None:
    started = asyncio.Event()

    @task()
    async def work() -> None:
        started.set()
        await asyncio.Event().wait()

    it = Rig(work)
    await it.dispatcher.start()
    it.dispatcher.submit([attempt()])
    await started.wait()
    patient = asyncio.create_task(it.dispatcher.stop(3600))
    await asyncio.sleep(0)
    await asyncio.wait_for(it.dispatcher.stop(0), 120)
    await asyncio.wait_for(patient, 120)
    assert it.kinds == ["interrupted"]


async def test_attempts_submitted_before_start_run_after_it() -> None:
    @task()
    async def work() -> None:
        pass

    it = Rig(work)
    it.dispatcher.submit([attempt(), attempt()])
    await it.dispatcher.start()
    await it.dispatcher.start()
    await it.ended(2)
    await it.dispatcher.stop(1)
    assert it.kinds == ["done", "done"]


def test_an_event_loop_that_ends_without_stop_does_not_hang() -> None:
    started: list[str] = []

    @task()
    async def work() -> None:
        started.append("x")
        await asyncio.Event().wait()

    async def main() -> None:
        it = Rig(work, concurrency=2)
        await it.dispatcher.start()
        it.dispatcher.submit([attempt(), attempt()])
        while len(started) < 2:  # noqa: ASYNC110  two starts in one pass
            await asyncio.sleep(0)

    asyncio.run(main())


async def test_outcomes_are_reported_once_each_under_a_storm() -> None:
    """Every way to end at once: each attempt has exactly one outcome."""

    @task(timeout_s=0.03)
    async def work(how: int) -> None:
        match how % 4:
            case 1:
                raise ValueError
            case 2:
                await asyncio.sleep(0.001 * (how % 7))
            case 3 if how % 5 == 0:
                await asyncio.Event().wait()

    seen: list[Outcome] = []
    it = Rig(work, concurrency=8, on_batch=seen.extend)
    await it.dispatcher.start()
    attempts = [attempt(how=how) for how in range(300)]
    for start in range(0, 300, 25):
        it.dispatcher.submit(attempts[start : start + 25])
        await asyncio.sleep(0)
    await it.ended(200)
    await it.dispatcher.stop(0)
    ids = [outcome.attempt.record.task_id for outcome in seen]
    assert sorted(ids) == sorted(one.record.task_id for one in attempts)


async def test_a_sweep_between_two_attempts_does_not_end_the_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The only slot lets others have their turn: it is free, and an attempt waits for it."""
    monkeypatch.setattr(timeouts, "SWEEP_S", (0.0, 0.0))

    @task(timeout_s=0.05)
    async def work(hangs: bool) -> None:
        if hangs:
            await asyncio.Event().wait()
        end = monotonic() + TURN_S
        while monotonic() < end:
            pass

    async with rig(work, concurrency=1) as it:
        it.dispatcher.submit([attempt(hangs=hangs) for hangs in (False, False, True)])
        await it.until(lambda: len(it.outcomes) == 3)
        assert it.kinds == ["done", "done", "failed"]


async def test_a_heartbeat_does_not_count_for_the_next_attempt() -> None:
    """The thread of the slot goes on just before the heartbeat of a helper thread has the lock."""
    first, second = attempt(), attempt()
    slot: Any = Slot(0)
    slot.bound, slot.attempt = Bound(Task(lambda: None)), first

    class GoesOn:
        def __enter__(self) -> None:
            slot.attempt, slot.deadline = second, 7.0

        def __exit__(self, *_: object) -> None: ...

    slot.lock = GoesOn()
    assert not slot.prolong(first)
    assert slot.deadline == 7.0
    assert slot.prolong(second)
