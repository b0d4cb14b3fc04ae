"""The heartbeat's thread, with a scripted store: trust, errors, hanging calls, good-bye."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from late.clock import DatabaseClock
from late.errors import DatabaseReplaced, SchemaMismatch, StoreRefused, StoreUnavailable
from late.events import Emitter, Event
from late.store.base import Membership, NameEnds, Store, WorkerInfo
from late.tailer.heartbeat import Heartbeat

ME = WorkerInfo("me", "host:1", ("default",), handlers="{}")
TIMEOUT_S = 120


class Pulse:
    """`open`, `heartbeat` and `close` of a store; runs in the heartbeat's thread."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, float]] = []
        self.beats: list[tuple[float, str | None]] = []
        self.threads: set[str] = set()
        self.faults: list[Exception] = []
        self.hang = False
        self.peers: dict[str, int] = {}
        """Worker -> microseconds that its lease has left."""
        self.on_beat: Callable[[], None] = lambda: None
        self.beaten = threading.Semaphore(0)

    async def open(self) -> None:
        if self.calls[-1:] != [("open", 0)]:
            self.calls.append(("open", 0))

    async def heartbeat(self, worker: WorkerInfo, ttl_s: float) -> Membership:
        assert worker.worker_id == ME.worker_id
        self.threads.add(threading.current_thread().name)
        self.calls.append(("heartbeat", ttl_s))
        self.beats.append((ttl_s, worker.handlers))
        self.beaten.release()
        if self.faults:
            raise self.faults.pop(0)
        if self.hang and ttl_s:
            await asyncio.Event().wait()
        self.on_beat()
        now_us = len(self.calls)
        ends = {name: now_us + left_us for name, left_us in self.peers.items()}
        return Membership(now_us, (worker,), (), (), expires_at_us=ends)

    async def close(self) -> None:
        self.calls.append(("close", 0))


class Heart:
    def __init__(self, **options: Any) -> None:
        self.pulse = Pulse()
        self.views: asyncio.Queue[tuple[Membership, float]] = asyncio.Queue()
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.emitter = Emitter()
        self.emitter.subscribe(self.listen)
        self.beat = Heartbeat(
            "nowhere://",
            ME,
            on_membership=lambda view, until, _: self.views.put_nowait((view, until)),
            emitter=self.emitter,
            store_factory=lambda url: cast(Store, self.pulse),
            **options,
        )

    def listen(self, event: Event, values: Mapping[str, Any]) -> None:
        self.heard.append((event.name, dict(values)))

    async def view(self) -> tuple[Membership, float]:
        return await asyncio.wait_for(self.views.get(), TIMEOUT_S)


@asynccontextmanager
async def beating(heart: Heart) -> AsyncIterator[None]:
    heart.beat.start()
    try:
        yield
    finally:
        await asyncio.to_thread(heart.beat.stop)


async def test_it_beats_at_once_from_a_thread_of_its_own() -> None:
    heart = Heart(ttl_s=60)
    assert heart.beat.trusted_until == -math.inf
    began = time.monotonic()
    async with beating(heart):
        view, until = await heart.view()
        assert view.workers == (ME,)
        assert until == heart.beat.trusted_until
        assert began + 54 <= until <= time.monotonic() + 54
        assert heart.beat._thread is not None
        assert heart.beat._thread.daemon, "a connection that hangs keeps no process from its end"
    assert heart.pulse.threads == {"late-heartbeat"}
    assert heart.heard[0][0] == "heartbeat"


async def test_a_leave_is_said_at_once_with_no_capacity() -> None:
    heart = Heart(ttl_s=60)
    async with beating(heart):
        await heart.view()
        heart.beat.leave()
        view, until = await heart.view()
        assert [worker.capacity for worker in view.workers] == [0.0]
        assert until > time.monotonic(), "it works on for now"


async def test_who_has_resigned_sees_the_fleet_and_is_not_trusted() -> None:
    heart = Heart(ttl_s=60)
    heart.beat.resign(True)
    async with beating(heart):
        _, until = await heart.view()
        assert until == heart.beat.trusted_until == -math.inf


async def test_who_resigns_is_not_trusted_from_that_moment_on() -> None:
    heart = Heart(ttl_s=60)
    async with beating(heart):
        await heart.view()
        heart.pulse.hang = True
        assert heart.beat.trusted_until > time.monotonic()
        heart.beat.resign(True)
        assert heart.beat.trusted_until == -math.inf


async def test_the_database_is_reachable_for_a_ttl_after_its_answer() -> None:
    now = [1000.0]
    heart = Heart(ttl_s=60, every_s=50, monotonic=lambda: now[0])
    assert not heart.beat.reachable
    async with beating(heart):
        await heart.view()
        heart.pulse.hang = True
        now[0] += 59
        assert heart.beat.reachable
        now[0] += 1
        assert not heart.beat.reachable


async def test_it_looks_when_the_lease_of_a_peer_ends() -> None:
    heart = Heart(ttl_s=600, every_s=500)
    heart.pulse.peers = {"me": 1, "dead": 300_000, "alive": 600_000_000}
    began = time.monotonic()
    async with beating(heart):
        await heart.view()
        await heart.view()
        assert time.monotonic() - began >= 0.3
        heart.pulse.peers = {"me": 1, "alive": 600_000_000}
        await heart.view()
        assert heart.beat._peer_ends_s() > 500


async def test_a_slow_reply_never_lengthens_the_trust() -> None:
    now = [1000.0]

    def reply_takes_three_seconds() -> None:
        now[0] += 3

    clock = DatabaseClock(lambda: now[0])
    heart = Heart(ttl_s=60, margin_s=7, monotonic=lambda: now[0], clock=clock)
    heart.pulse.on_beat = reply_takes_three_seconds
    async with beating(heart):
        _, until = await heart.view()
        assert until == 1000 + 60 - 7
        assert clock.age_s == 0, "the sample counts from the reply"
        assert clock.now_us() > 0


async def test_errors_are_told_and_tried_again_without_trust() -> None:
    heart = Heart(ttl_s=60, every_s=0.01)
    heart.pulse.faults = [
        StoreUnavailable("no connection"),
        ValueError("a bug"),
    ]
    before: list[float] = []
    heart.pulse.on_beat = lambda: before.append(heart.beat.trusted_until)
    async with beating(heart):
        await heart.view()
    assert before[0] == -math.inf
    told = [values for name, values in heart.heard if name == "store_error"]
    assert [values["transient"] for values in told] == [True, False]
    assert all(0 <= values["retry_in_s"] <= 0.01 for values in told)
    assert {values["component"] for values in told} == {"heartbeat"}


async def test_a_refusal_at_the_start_is_passed_on_and_not_told_again_and_again() -> None:
    heart = Heart(ttl_s=60, every_s=0.01)
    heart.pulse.faults = [StoreUnavailable("no connection"), StoreRefused("no right"), OSError()]
    async with beating(heart), asyncio.timeout(TIMEOUT_S):
        with pytest.raises(StoreRefused, match="no right"):
            await heart.beat.until_refused()
    told = [values for name, values in heart.heard if name == "store_error"]
    assert "no right" not in {str(values["error"]) for values in told}


async def test_a_worker_that_has_worked_tries_again_after_a_refusal() -> None:
    heart = Heart(ttl_s=60, every_s=0.01)
    async with beating(heart), asyncio.timeout(TIMEOUT_S):
        await heart.view()
        heart.pulse.faults = [SchemaMismatch("too old")]
        while not any(name == "store_error" for name, _ in heart.heard):
            await heart.view()
        assert not heart.beat._refused.is_set()


async def test_no_reply_within_the_ttl_is_an_error() -> None:
    heart = Heart(ttl_s=0.05, every_s=0.01)
    heart.pulse.hang = True
    told = asyncio.Event()
    loop = asyncio.get_running_loop()

    def tell(*_: object) -> None:
        loop.call_soon_threadsafe(told.set)

    heart.emitter.subscribe(tell)
    async with beating(heart):
        await asyncio.wait_for(told.wait(), TIMEOUT_S)
        heart.pulse.hang = False
        await heart.view()
    assert heart.heard[0][0] == "store_error"
    assert "no reply" in str(heart.heard[0][1]["error"])


async def test_a_blocked_event_loop_does_not_stop_it() -> None:
    heart = Heart(ttl_s=60, every_s=0.001)
    async with beating(heart):
        for _ in range(5):
            assert heart.pulse.beaten.acquire(timeout=TIMEOUT_S)  # blocks this loop, on purpose
        assert heart.views.empty()
        for _ in range(4):
            await heart.view()


async def test_a_loop_that_was_blocked_is_handed_the_last_view_alone() -> None:
    heart = Heart(ttl_s=60, every_s=0.001)
    go_on = threading.Event()

    def wait_after_five() -> None:
        if len(heart.pulse.beats) == 6:
            go_on.wait(TIMEOUT_S)

    heart.pulse.on_beat = wait_after_five
    async with beating(heart):
        for _ in range(6):
            assert heart.pulse.beaten.acquire(timeout=TIMEOUT_S)  # blocks this loop, on purpose
        view, _ = await heart.view()
        more = heart.views.qsize()
        go_on.set()
    assert more == 0
    assert view.now_us == 10, "an open and a beat, five times: the last view"


async def test_a_hurry_brings_the_next_beat_forward() -> None:
    heart = Heart(ttl_s=3600)
    async with beating(heart):
        await heart.view()
        heart.beat.hurry()
        await heart.view()
        heart.beat.hurry()
        await heart.view()


async def test_what_it_is_told_ends_a_pause_that_is_longer_than_usual() -> None:
    now = [1000.0]
    heart = Heart(ttl_s=3600, every_s=1000, monotonic=lambda: now[0], told=lambda: True)
    async with beating(heart):
        await heart.view()
        now[0] += 990  # calm: the next beat is far, and the usual one is near
        heart.beat.hurry()
        await heart.view()
        now[0] += 1000  # the usual time is over
        heart.beat.stir()
        await heart.view()


async def test_a_flood_of_notices_brings_no_beat_before_its_usual_time() -> None:
    heart = Heart(ttl_s=3600, every_s=1000, told=lambda: True)
    async with beating(heart):
        await heart.view()
        for _ in range(1_000):
            heart.beat.stir()
        await asyncio.sleep(0.3)
        assert heart.beat._stirred is not None
        assert heart.views.empty()


@pytest.mark.parametrize("hang", [False, True])
async def test_the_last_beat_says_good_bye_and_the_store_is_closed(hang: bool) -> None:
    heart = Heart(ttl_s=60)
    heart.pulse.hang = hang
    async with beating(heart):
        assert await asyncio.to_thread(heart.pulse.beaten.acquire, timeout=TIMEOUT_S)
    assert heart.pulse.calls == [("open", 0), ("heartbeat", 60), ("heartbeat", 0), ("close", 0)]
    assert heart.beat.trusted_until == -math.inf
    heart.beat.stop()
    heart.beat.hurry()
    assert not heart.beat._thread.is_alive()  # type: ignore[union-attr]


async def test_a_good_bye_that_fails_does_not_matter() -> None:
    heart = Heart(ttl_s=60)
    async with beating(heart):
        await heart.view()
        heart.pulse.faults = [StoreUnavailable("x")]
    assert heart.pulse.calls[-1] == ("close", 0)


def test_three_beats_fit_into_the_time_to_live() -> None:
    assert Heart(ttl_s=60).beat._pace.every_s == 20
    assert Heart(ttl_s=60, every_s=7).beat._pace.every_s == 7


def test_stopping_what_never_started_is_fine() -> None:
    heart = Heart()
    heart.beat.hurry()
    heart.beat.stop()
    heart.beat.stop()


async def test_a_beat_says_what_the_view_before_it_was_answered_with() -> None:
    said = (NameEnds("g", "q", "job", 2, 0, 0, (1, 2)),)
    answers = iter([said, ()])
    heart = Heart(ttl_s=60, exchange=lambda _: next(answers, ()))
    async with beating(heart):
        ends = []
        for _ in range(3):
            view, _ = await heart.view()
            ends += [worker.ends for worker in view.workers]
            await asyncio.sleep(0)  # the answer is given after the view
            heart.beat.hurry()
    assert ends == [(), said, ()]


async def beaten(heart: Heart, last: tuple[float, str | None]) -> None:
    """Beat until the last beat had this time to live and these handlers."""
    while heart.pulse.beats[-1] != last:
        heart.beat.hurry()
        await heart.view()


async def test_the_handlers_go_with_the_first_beat_and_with_none_after_it() -> None:
    heart = Heart(ttl_s=60)
    heart.pulse.faults = [StoreUnavailable("x")]
    async with beating(heart):
        await heart.view()
        assert heart.pulse.beats[:2] == [(60, "{}")] * 2, "again, as the first one failed"
        await beaten(heart, (60, None))
        for _ in range(2):
            heart.beat.hurry()
            await heart.view()
        assert set(heart.pulse.beats[2:]) == {(60, None)}


async def test_the_handlers_go_again_when_the_row_may_be_gone() -> None:
    now = [1_000.0]
    heart = Heart(ttl_s=60, monotonic=lambda: now[0])
    async with beating(heart):
        await heart.view()
        await beaten(heart, (60, None))
        now[0] += 61
        await beaten(heart, (60, "{}"))
        await beaten(heart, (60, None))
        heart.beat.resign(True)
        await beaten(heart, (0, "{}"))
        heart.beat.resign(False)
        await beaten(heart, (60, "{}"))
        await beaten(heart, (60, None))


async def test_each_answer_is_a_beat_for_what_runs_beside_it() -> None:
    over = threading.Event()

    async def beside() -> None:
        await heart.beat.beats.near(60)
        over.set()

    heart = Heart(ttl_s=60, beside=[beside])

    def soon() -> None:  # as if the wait was nearly over
        heart.beat.beats._waits = dict.fromkeys(heart.beat.beats._waits, 0.0)

    heart.pulse.on_beat = soon
    async with beating(heart):
        await heart.view()
        heart.beat.hurry()
        assert await asyncio.to_thread(over.wait, TIMEOUT_S)


async def test_a_file_that_was_replaced_ends_the_beats_and_the_trust() -> None:
    heart = Heart(ttl_s=60)
    async with beating(heart):
        await heart.view()
        heart.pulse.faults.append(DatabaseReplaced("the file was replaced"))
        heart.beat.hurry()
        with pytest.raises(DatabaseReplaced):
            await asyncio.wait_for(heart.beat.until_refused(), TIMEOUT_S)
        assert heart.beat.trusted_until == -math.inf
        heart.beat.resign(False)
        assert heart.beat.resigned, "nothing brings it back"
        beats = len(heart.pulse.beats)
        heart.beat.hurry()
        await asyncio.sleep(0.3)
        assert len(heart.pulse.beats) == beats
