"""Attempts of `def` handlers that share a hand-over to a thread: each keeps its own rules."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Iterator
from time import monotonic, sleep
from typing import Any

import pytest

from late.dispatcher import dispatcher, handler
from late.dispatcher.dispatcher import LOOK_S
from late.dispatcher.local import chunks
from late.handler.context import AttemptOver, Context
from late.observability import traces
from tests.unit.dispatcher_kit import NOW_US, Rig, Task, attempt, by_id, rig, task

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="clean")


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Lets blocked threads go at the end of the test, also when it fails."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every handler counts as short, however busy the machine is."""
    monkeypatch.setattr(chunks, "SHORT_S", 60.0)
    monkeypatch.setattr(handler, "UNKNOWN_S", 0.0)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is taken from a thread that is held up."""
    monkeypatch.setattr(chunks, "CHUNK_S", 3_600.0)


class Gate:
    """A handler `work(trip)` whose first attempt waits for `release`."""

    def __init__(self, release: threading.Event, **options: Any) -> None:
        self.order: list[int] = []
        self.entered = threading.Event()

        def work(trip: int) -> None:
            self.order.append(trip)
            if trip == 0:
                self.entered.set()
                release.wait(120)

        self.task = Task(work, **options)

    async def inside(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, 30)


@pytest.mark.usefixtures("patient")
async def test_short_attempts_run_in_one_thread_in_their_order() -> None:
    order: list[int] = []
    threads: set[int] = set()

    @task()
    def work(trip: int) -> None:
        order.append(trip)
        threads.add(threading.get_ident())

    async with rig(work, concurrency=8) as it:
        outcomes = await it.run(*(attempt(trip=trip) for trip in range(100)))
        assert (it.dispatcher.load, it.dispatcher.running, it.dispatcher.ended) == (0, 0, 100)
    assert {outcome.kind for outcome in outcomes} == {"done"}
    assert order == list(range(100))
    assert len(threads) == 1
    assert len(it.batches) <= 2


async def test_long_attempts_get_a_thread_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "SHORT_S", -1.0)
    monkeypatch.setattr(chunks, "CHUNK_S", 3_600.0)
    barrier = threading.Barrier(6, timeout=120)
    work = Task(lambda: barrier.wait() and None)
    work.fn.__name__ = "work"
    async with rig(work, concurrency=6) as it:
        assert {o.kind for o in await it.run(*(attempt() for _ in range(6)))} == {"done"}


async def test_attempts_that_block_leave_their_chunk_to_other_threads() -> None:
    """Also where all of them were given to one thread, they are inside at the same time."""
    barrier = threading.Barrier(16, timeout=120)

    @task()
    def work() -> None:
        barrier.wait()

    async with rig(work, concurrency=16) as it:
        assert {o.kind for o in await it.run(*(attempt() for _ in range(16)))} == {"done"}


async def test_what_has_ended_is_reported_while_another_one_of_its_chunk_blocks(
    release: threading.Event,
) -> None:
    gate = Gate(release)
    async with rig(gate.task, concurrency=1) as it:
        it.dispatcher.submit([attempt(trip=trip) for trip in (1, 2, 0, 3)])
        await it.ended(2)
        await gate.inside()
        assert (it.kinds, it.dispatcher.running, it.dispatcher.waiting) == (["done"] * 2, 1, 1)
        release.set()
        assert [o.kind for o in await it.ended(4)] == ["done"] * 4
    assert gate.order == [1, 2, 0, 3]


async def test_a_handler_that_is_registered_after_its_attempt_came_runs_in_a_thread() -> None:
    threads: set[int] = set()

    @task()
    def work() -> None:
        threads.add(threading.get_ident())

    it = Rig()
    it.dispatcher.submit([attempt()])
    handlers: Any = it.dispatcher._handlers
    handlers["work"] = work
    await it.dispatcher.start()
    await it.ended(1)
    await it.run(*(attempt() for _ in range(3)))
    await it.dispatcher.stop(0)
    assert it.kinds == ["done"] * 4
    assert threading.get_ident() not in threads


@pytest.mark.usefixtures("patient")
async def test_what_has_not_started_waits_and_takes_no_slot(release: threading.Event) -> None:
    gate = Gate(release)
    attempts = [attempt(trip=trip) for trip in range(5)]
    async with rig(gate.task, concurrency=8) as it:
        it.dispatcher.submit(attempts)
        await gate.inside()
        dispatcher = it.dispatcher
        assert (dispatcher.running, dispatcher.waiting, dispatcher.load) == (1, 4, 5)
        assert list(dispatcher.queued) == attempts[1:]
        release.set()
        await it.ended(5)
        assert (dispatcher.running, dispatcher.waiting, list(dispatcher.queued)) == (0, 0, [])


@pytest.mark.usefixtures("patient")
async def test_a_stop_gives_back_what_has_not_started(release: threading.Event) -> None:
    gate = Gate(release)
    attempts = [attempt(trip=trip) for trip in range(5)]
    async with rig(gate.task, concurrency=2) as it:
        it.dispatcher.submit(attempts)
        await gate.inside()
        stop = asyncio.create_task(it.dispatcher.stop(30))
        while not it.outcomes:
            assert list(it.dispatcher.queued) == attempts[1:], "it is not said that they began"
            await asyncio.sleep(0)
        assert it.kinds == ["interrupted"] * 4
        assert list(it.dispatcher.queued) == []
        release.set()
        await stop
    outcomes = by_id(it.outcomes)
    assert [outcomes[each.record.task_id].kind for each in attempts] == [
        "done",
        *["interrupted"] * 4,
    ]
    assert gate.order == [0]


@pytest.mark.usefixtures("patient")
async def test_a_stop_reports_what_has_ended_and_what_is_given_up(
    release: threading.Event,
) -> None:
    gate = Gate(release)
    async with rig(gate.task, concurrency=2) as it:
        it.dispatcher.submit([attempt(trip=trip) for trip in (1, 2, 0, 3)])
        await gate.inside()
        await it.dispatcher.stop(0)
        assert sorted(it.kinds) == ["done", "done", "interrupted", "interrupted"]
    assert gate.order == [1, 2, 0]


@pytest.mark.usefixtures("patient")
async def test_what_a_lost_shard_had_in_a_chunk_is_not_started(release: threading.Event) -> None:
    gate = Gate(release)
    async with rig(gate.task, concurrency=1) as it:
        it.dispatcher.submit([attempt(trip=trip, shard_id=trip % 2, epoch=4) for trip in range(6)])
        await gate.inside()
        it.dispatcher.abandon("default", 1, 4)
        assert (it.dispatcher.dropped, it.dispatcher.load) == (3, 3)
        release.set()
        await it.ended(3)
    assert gate.order == [0, 2, 4]
    assert it.kinds == ["done"] * 3


@pytest.mark.usefixtures("patient")
async def test_the_time_out_counts_from_the_start(release: threading.Event) -> None:
    """The second attempt waits behind the first for longer than it may take."""
    gate = Gate(release, timeout_s=1_000.0)

    @task(timeout_s=30.0)
    def other() -> None: ...

    async with rig(gate.task, other, concurrency=2) as it:
        it.dispatcher.submit([attempt(trip=0), attempt("other")])
        await gate.inside()
        it.dispatcher._watch.sweep(monotonic() + 500)
        release.set()
        assert [o.kind for o in await it.ended(2)] == ["done", "done"]
        assert it.dispatcher.stuck.over == 0


@pytest.mark.usefixtures("patient")
async def test_a_time_out_ends_with_its_attempt(release: threading.Event) -> None:
    """The thread is on its way from the first attempt to the second."""
    asked = threading.Event()
    ran: list[int] = []

    @task(timeout_s=1.0)
    def work(trip: int) -> None:
        ran.append(trip)
        end = monotonic() + LOOK_S
        while monotonic() < end:
            pass

    def trusted() -> bool:
        if ran and threading.current_thread() is not threading.main_thread():
            asked.set()
            release.wait(120)
        return True

    async with rig(work, concurrency=1, trusted=trusted) as it:
        it.dispatcher.submit([attempt(trip=0), attempt(trip=1)])
        assert await asyncio.to_thread(asked.wait, 120)
        it.dispatcher._watch.sweep(monotonic() + 500)
        assert it.dispatcher.stuck.count == 0
        release.set()
        assert [o.kind for o in await it.ended(2)] == ["done", "done"]


async def test_each_attempt_of_a_chunk_has_a_time_out(release: threading.Event) -> None:
    gate = Gate(release, timeout_s=0.05)
    async with rig(gate.task, concurrency=2) as it:
        it.dispatcher.submit([attempt(trip=trip) for trip in (1, 0, 2, 3)])
        await it.ended(3)
        async with asyncio.timeout(120):
            while not it.dispatcher.stuck.count:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert [json_of(each) for each in it.dispatcher.stuck.attempts] == [b'{"trip": 0}']
        assert it.kinds == ["done"] * 3
        release.set()
        await it.ended(4)
        assert it.dispatcher.stuck.count == 0
        assert it.kinds == ["done"] * 4


def json_of(one: Any) -> bytes:
    found: bytes = one.record.payload
    return found


@pytest.mark.usefixtures("patient")
async def test_the_soft_limit_is_of_one_attempt() -> None:
    seen: list[str] = []

    @task(soft_timeout_s=1.0, timeout_s=60.0)
    def work(ends: bool) -> None:
        while not ends:
            sleep(0.001)
        seen.append("ended")

    async with rig(work, concurrency=1) as it:
        outcomes = await it.run(attempt(ends=True), attempt(ends=False), attempt(ends=True))
    assert [o.kind for o in outcomes] == ["done", "failed", "done"]
    assert seen == ["ended"] * 2


@pytest.mark.usefixtures("patient")
async def test_each_attempt_of_a_chunk_starts_from_a_clean_context() -> None:
    seen: list[tuple[str, str | None]] = []

    @task()
    def work(who: str) -> None:
        current = traces.current.get()
        seen.append((VARIABLE.get(), current and current.record.task_id))
        VARIABLE.set(who)

    attempts = [attempt(who=who) for who in "abc"]
    async with rig(work, concurrency=1) as it:
        await it.run(*attempts)
    assert seen == [("clean", each.record.task_id) for each in attempts]


@pytest.mark.usefixtures("patient")
async def test_a_context_ends_with_its_attempt() -> None:
    kept: list[Context] = []
    refused: list[bool] = []

    @task()
    def work(ctx: Context) -> None:
        ctx.heartbeat()
        for other in kept:
            with pytest.raises(AttemptOver):
                other.heartbeat()
            refused.append(True)
        kept.append(ctx)

    async with rig(work, concurrency=1) as it:
        assert {o.kind for o in await it.run(*(attempt() for _ in range(3)))} == {"done"}
    assert len(refused) == 3


@pytest.mark.usefixtures("patient")
async def test_each_attempt_of_a_chunk_has_its_own_outcome() -> None:
    @task()
    def work(how: str) -> None:
        if how == "fail":
            raise ValueError("no")
        if how == "exit":
            raise SystemExit(3)

    async with rig(work, concurrency=1) as it:
        expired = attempt(how="", deadline_us=NOW_US)
        attempts = [attempt(how=""), attempt(how="fail"), attempt(how="exit"), expired]
        broken = attempt(payload=b"{")
        outcomes = by_id(await it.run(*attempts, broken, attempt(how="")))
    kinds = [outcomes[each.record.task_id].kind for each in [*attempts, broken]]
    assert kinds == ["done", "failed", "failed", "expired", "dead"]


@pytest.mark.usefixtures("patient")
async def test_a_chunk_does_not_go_on_once_trust_has_run_out() -> None:
    started: list[int] = []
    trusted = True

    @task()
    def work(trip: int) -> None:
        nonlocal trusted
        started.append(trip)
        trusted = False
        end = monotonic() + LOOK_S
        while monotonic() < end:
            pass

    async with rig(work, concurrency=1, trusted=lambda: trusted) as it:
        outcomes = await it.run(*(attempt(trip=trip) for trip in range(3)))
    assert started == [0]
    assert [outcome.kind for outcome in outcomes] == ["done", "interrupted", "interrupted"]


async def test_the_rest_of_a_chunk_whose_time_is_over_is_shared(
    monkeypatch: pytest.MonkeyPatch, release: threading.Event
) -> None:
    """What a thread did not come to in time is there for the idle slots, too."""
    looks: list[object] = []
    monkeypatch.setattr(chunks.Chunks, "_look", lambda self: looks.append(self))
    together = threading.Barrier(3, timeout=120)

    @task()
    def work(trip: int) -> None:
        if trip == 0:
            end = monotonic() + chunks.CHUNK_S
            while monotonic() < end:
                pass
            monkeypatch.setattr(chunks, "SHORT_S", 0.0)
        else:
            together.wait()

    async with rig(work, concurrency=3) as it:
        outcomes = await it.run(*(attempt(trip=trip) for trip in range(4)))
    assert {outcome.kind for outcome in outcomes} == {"done"}


async def test_the_loop_lives_while_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start, refused = threading.Thread.start, 0

    def refuse(thread: threading.Thread) -> None:
        nonlocal refused
        if refused == 100 or not thread.name.startswith("late-handler"):
            return start(thread)
        refused += 1
        raise RuntimeError("can't start new thread")

    @task()
    def work() -> None: ...

    monkeypatch.setattr(dispatcher, "NO_THREAD_S", 0.001)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    async with rig(work, concurrency=2) as it:
        it.dispatcher.submit([attempt() for _ in range(3)])
        async with asyncio.timeout(120):
            while refused < 6:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert (it.dispatcher.running, it.dispatcher.waiting, it.dispatcher.load) == (0, 3, 3)
        assert [record.message.partition(" (")[0] for record in caplog.records] == [
            "no thread for a `def` handler can be started"
        ]
        monkeypatch.setattr(threading.Thread, "start", start)
        assert [outcome.kind for outcome in await it.ended(3)] == ["done"] * 3


async def test_a_thread_that_read_the_clock_before_trust_ended_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It read the clock, then another thread asked, and then it compares."""
    ran: list[str] = []

    @task()
    def work(who: str) -> None:
        ran.append(who)

    it = Rig(work, concurrency=2, trusted=lambda: False)
    it.dispatcher._look_at = -1.0
    first, second = it.dispatcher._slots
    ends: list[str] = []

    def read() -> float:
        now = monotonic()
        monkeypatch.setattr(dispatcher, "monotonic", monotonic)
        ends.append(it.dispatcher._run_here(first, attempt(who="first")).kind)
        return now

    monkeypatch.setattr(dispatcher, "monotonic", read)
    ends.append(it.dispatcher._run_here(second, attempt(who="second")).kind)
    assert (ends, ran) == (["interrupted"] * 2, [])


@pytest.mark.usefixtures("patient")
async def test_what_a_stop_has_reported_does_not_start_after_it(release: threading.Event) -> None:
    """The thread has begun the second attempt and has not come to its handler."""
    asked = threading.Event()
    threads: list[threading.Thread] = []
    ran: list[int] = []

    @task()
    def work(trip: int) -> None:
        ran.append(trip)
        end = monotonic() + LOOK_S
        while monotonic() < end:
            pass

    def trusted() -> bool:
        if ran and not asked.is_set():
            threads.append(threading.current_thread())
            asked.set()
            release.wait(120)
        return True

    it = Rig(work, concurrency=1, trusted=trusted, cancel_grace_s=0.0)
    it.dispatcher._now_us = lambda: NOW_US + int(monotonic() * 1_000_000)
    await it.dispatcher.start()
    it.dispatcher.submit([attempt(trip=0), attempt(trip=1)])
    assert await asyncio.to_thread(asked.wait, 120)
    await it.dispatcher.stop(0)
    assert sorted(it.kinds) == ["done", "interrupted"]
    started = {outcome.kind: outcome.started_at_us for outcome in it.outcomes}
    assert started["interrupted"] - started["done"] >= LOOK_S * 1_000_000 - 100
    (slot,) = it.dispatcher._slots
    async with asyncio.timeout(120):
        while slot.taken:  # noqa: ASYNC110
            await asyncio.sleep(0)
    release.set()
    await asyncio.to_thread(threads[0].join, 120)
    assert (ran, slot.attempt) == ([0], None)


async def test_a_thread_whose_slot_was_taken_away_does_not_bring_its_attempt_back() -> None:
    ran: list[int] = []

    @task()
    def work() -> None:
        ran.append(1)

    it, one = Rig(work, concurrency=1), attempt()
    (slot,) = it.dispatcher._slots
    it.dispatcher._run_here(slot, one)
    assert (ran, slot.attempt, slot.is_over(one)) == ([], None, True)
