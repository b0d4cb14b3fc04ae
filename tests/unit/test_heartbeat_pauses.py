"""When a heartbeat beats, to the microsecond: on a virtual clock, as a task and not in a thread."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from late.errors import StoreUnavailable
from late.events import Emitter
from late.store.base import Membership, Store, WorkerInfo
from late.tailer.heartbeat import FAREWELL_S, HURRY_S, Heartbeat
from late.testing.clock import VirtualClock

ME = WorkerInfo("me", "host:1", ("default",))


class Longest(random.Random):
    """Draws the longest pause."""

    def uniform(self, a: float, b: float) -> float:
        return b


class Pulse:
    """A store whose beats take no time."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.at_s: list[float] = []
        self.faults: list[Exception] = []
        self.farewell_hangs = False
        self.peer_ends_s: float | None = None

    async def open(self) -> None:
        pass

    async def heartbeat(self, worker: WorkerInfo, ttl_s: float) -> Membership:
        if not ttl_s and self.farewell_hangs:
            await asyncio.Event().wait()
        self.at_s.append(round(self.clock.monotonic(), 6))
        if self.faults:
            raise self.faults.pop(0)
        now_us = self.clock.now_us()
        left_s, self.peer_ends_s = self.peer_ends_s, None
        ends = {} if left_s is None else {"peer": now_us + round(left_s * 1e6)}
        return Membership(now_us, (worker,), (), (), expires_at_us=ends)

    async def close(self) -> None:
        self.at_s.append(-1)


class Heart(Heartbeat):
    living: asyncio.Task[None]

    def start(self) -> None:
        self._callers_loop = self._loop = asyncio.get_running_loop()
        self.living = self._loop.create_task(self._live())

    async def end(self) -> None:
        self._stopping.set()
        await self.living


@asynccontextmanager
async def beating(**given: Any) -> AsyncIterator[tuple[Heart, Pulse]]:
    with VirtualClock() as clock:
        pulse = Pulse(clock)
        heart = Heart(
            "nowhere://", ME, ttl_s=30, on_membership=lambda *_: None, rng=Longest(),
            monotonic=clock.monotonic, emitter=Emitter(),
            store_factory=lambda _: cast(Store, pulse), **given,
        )  # fmt: skip
        heart.start()
        yield heart, pulse
        await heart.end()


async def test_it_beats_three_times_within_its_time_to_live() -> None:
    async with beating() as (_, pulse):
        await asyncio.sleep(35)
        assert pulse.at_s == [0, 10, 20, 30]


async def test_a_hurry_is_answered_after_the_shortest_pause_and_later_at_once() -> None:
    async with beating() as (heart, pulse):
        await asyncio.sleep(0.01)
        heart.hurry()
        await asyncio.sleep(3)
        assert pulse.at_s == [0, HURRY_S]
        heart.hurry()
        await asyncio.sleep(0.001)
        assert pulse.at_s == [0, HURRY_S, 3.01]
        await asyncio.sleep(10)
        assert pulse.at_s[3:] == [13.01], "and then it goes on as before"


async def test_a_peer_is_looked_at_soon_after_its_end() -> None:
    async with beating() as (_, pulse):
        pulse.peer_ends_s = 4
        await asyncio.sleep(9)
        assert pulse.at_s == [0, 4.1]


async def test_a_peer_that_has_ended_is_not_looked_at_again_and_again() -> None:
    async with beating() as (_, pulse):
        pulse.peer_ends_s = -5
        await asyncio.sleep(9)
        assert pulse.at_s == [0, HURRY_S + 0.1]


async def test_a_farewell_that_hangs_is_given_up() -> None:
    async with beating() as (heart, pulse):
        await asyncio.sleep(1)
        pulse.farewell_hangs = True
        await heart.end()
        assert pulse.clock.monotonic() == pytest.approx(1 + FAREWELL_S)
        assert pulse.at_s == [0, -1], "the store is closed"


async def test_our_own_mistakes_are_logged_and_the_stores_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    mistake = ValueError("a bug")
    with caplog.at_level(logging.ERROR, "late.heartbeat"):
        async with beating() as (_, pulse):
            pulse.faults = [StoreUnavailable("no connection"), mistake]
            await asyncio.sleep(60)
            assert len(pulse.at_s) > 3
    [said] = [each for each in caplog.records if each.name == "late.heartbeat"]
    assert said.exc_info is not None
    assert said.exc_info[1] is mistake
