"""How often a worker looks at lanes that were resized, by whether somebody waits for them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from late.errors import StoreUnavailable
from late.model.lanes import Extent, Gate, Lane, Layout
from late.testing.clock import VirtualClock
from late.worker import settings_sync
from late.worker.settings_sync import DRAINING_S, EVERY_S, SettingsSync
from tests.unit.core_world import SECOND, World

QUIET = Layout((Lane(),))
CLOSED = Layout((Lane(shards=4, version=1),), (Extent(0, 0, 8),))


class Watched:
    """One worker's settings over a control plane that notes when it is asked."""

    def __init__(self, now: Layout = CLOSED, *, keeps: bool = False, waits: bool = False) -> None:
        self.now, self.keeps, self.waits, self.down = now, keeps, waits, False
        self.looks: list[float] = []
        self.kept: list[float] = []
        self.began = 0.0
        self.settings_sync = SettingsSync(
            lambda: None,  # type: ignore[arg-type,return-value]
            on_settings=lambda _: None,
            on_lanes=lambda _: None,
            on_schedules=None,
            is_maintainer=lambda: self.keeps,
            waits=lambda: self.waits,
            rng=random.Random(1),
        )
        self.lanes = self
        self.queues = SimpleNamespace(live=lambda: None)
        self.settings_sync._control = self  # type: ignore[assignment]
        self.settings_sync._lanes(now)

    def layout(self) -> Layout:
        self.looks.append(asyncio.get_running_loop().time() - self.began)
        if self.down:
            raise StoreUnavailable("gone")
        return self.now

    def advance(self) -> None:
        self.kept.append(asyncio.get_running_loop().time() - self.began)

    def close(self) -> None: ...

    def key_waits(self) -> None:
        self.settings_sync.hurry()
        self.waits = True

    async def live(self, for_s: float, *events: tuple[float, Callable[[], None]]) -> None:
        loop = asyncio.get_running_loop()
        self.began = loop.time()
        for at, event in events:
            loop.call_later(at, event)
        running = asyncio.create_task(self.settings_sync.run())
        await asyncio.sleep(for_s)
        running.cancel()
        await asyncio.wait([running])


@pytest.fixture(autouse=True)
async def virtual(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    async def at_once(call: Callable[..., Any]) -> Any:
        return call()

    monkeypatch.setattr(settings_sync, "in_thread", at_once)
    with VirtualClock():
        yield


async def test_a_fleet_that_waits_for_nothing_looks_as_ever() -> None:
    idle, beside = Watched(QUIET), Watched(CLOSED)
    await idle.live(600)
    await beside.live(600)
    assert len(beside.looks) <= len(idle.looks) + 2
    assert len(beside.looks) <= 600 / EVERY_S * 1.25
    assert beside.kept == [], "one keeps for all"


async def test_a_timer_that_fires_a_moment_early_brings_no_second_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A loop runs a timer up to its clock's resolution early, which depends on rounding."""
    loop: Any = asyncio.get_running_loop()
    timer = type(loop).call_at

    def early(when: float, *args: Any, **more: Any) -> Any:
        return timer(loop, when - 1e-8, *args, **more)

    monkeypatch.setattr(loop, "call_at", early)
    idle = Watched(QUIET)
    await idle.live(600)
    assert len(idle.looks) <= 600 / EVERY_S * 1.25


async def test_who_keeps_begins_at_once_and_backs_off_while_nothing_changes() -> None:
    keeper = Watched(keeps=True)
    await keeper.live(3600)
    assert keeper.looks[0] == pytest.approx(DRAINING_S)
    assert keeper.kept == keeper.looks
    assert len(keeper.looks) <= 3600 / EVERY_S * 1.25 + 4, "a transaction may be open for an hour"
    gaps = [b - a for a, b in pairwise(keeper.looks)]
    assert max(gaps) <= EVERY_S * 1.2 + 0.01, "and yet its end is seen within seconds"


async def test_a_change_brings_the_pace_back() -> None:
    keeper = Watched(keeps=True)

    def change() -> None:
        keeper.now = Layout(keeper.now.lanes, (Extent(0, 0, 8, ("m",) * 8),))  # type: ignore[arg-type]

    await keeper.live(110, (100.0, change))
    seen = next(at for at in keeper.looks if at >= 100)
    after = [at for at in keeper.looks if at > seen]
    assert after[0] - seen <= 2 * DRAINING_S


async def test_where_keys_wait_it_looks_soon_and_not_at_full_rate_for_ever() -> None:
    worker = Watched()
    await worker.live(300, (100.3, worker.key_waits))
    early = [at for at in worker.looks if 100.3 <= at < 102.3]
    assert early[0] - 100.3 <= DRAINING_S
    assert len(early) >= 3
    assert len([at for at in worker.looks if at > 110]) <= 190 / EVERY_S * 1.25


async def test_keys_that_come_and_go_do_not_make_it_more() -> None:
    worker = Watched()

    async def flap() -> None:
        while True:
            await asyncio.sleep(0.001)
            worker.settings_sync.hurry()

    flapping = asyncio.create_task(flap())
    await worker.live(100)
    flapping.cancel()
    assert min(b - a for a, b in pairwise(worker.looks)) >= DRAINING_S * 0.8 - 0.001
    assert len(worker.looks) <= 100 / DRAINING_S + 10


async def test_a_task_of_a_width_that_is_not_known_yet_is_news() -> None:
    worker = Watched(QUIET)
    await worker.live(3.0, (0.4, worker.key_waits))
    assert worker.looks[0] <= 0.4 + DRAINING_S


@pytest.mark.parametrize("now", [QUIET, CLOSED])
async def test_a_key_that_begins_to_wait_during_a_look_is_not_forgotten(now: Layout) -> None:
    worker = Watched(now)
    read = worker.layout

    def layout() -> Layout:
        found = read()
        if len(worker.looks) == 5:
            worker.key_waits()
        return found

    worker.layout = layout  # type: ignore[method-assign]
    await worker.live(30)
    assert worker.looks[5] - worker.looks[4] == pytest.approx(DRAINING_S)
    assert len(worker.looks) <= 30 / EVERY_S * 1.25 + 4, "once, and not for ever"


async def test_a_database_that_is_gone_is_not_asked_more_often() -> None:
    worker = Watched(keeps=True, waits=True)
    worker.down = True
    await worker.live(600)
    assert len(worker.looks) <= 600 / EVERY_S * 1.25 + 4


async def told_on(worker: Watched, versions: Callable[[float], str | None], for_s: float) -> None:
    """Live beside a heartbeat that tells `versions` of the time."""

    async def beat() -> None:
        while True:
            worker.settings_sync.told(versions(asyncio.get_running_loop().time() - worker.began))
            await asyncio.sleep(0.7)

    beating = asyncio.create_task(beat())
    await worker.live(for_s)
    beating.cancel()


async def test_while_heartbeats_tell_of_no_change_nothing_is_read() -> None:
    worker = Watched(QUIET)
    await told_on(worker, lambda now_s: "a" if now_s < 100 else "b", 600)
    assert [at for at in worker.looks if 5 < at < 99 or at > 105] == []
    assert [at for at in worker.looks if 100 <= at < 101], "and a change is read with its heartbeat"


async def test_while_heartbeats_tell_of_no_change_no_timer_wakes_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    woken: list[float] = []
    told_s = SettingsSync._told_s

    def noted(sync: SettingsSync) -> float:
        woken.append(asyncio.get_running_loop().time() - worker.began)
        return told_s(sync)

    monkeypatch.setattr(SettingsSync, "_told_s", noted)
    worker = Watched(QUIET)
    await told_on(worker, lambda _: "a", 100)
    assert [at for at in woken if at > 5] == []


async def test_it_looks_as_ever_while_no_heartbeat_tells_anything() -> None:
    gone, mute = Watched(QUIET), Watched(QUIET)
    await told_on(mute, lambda _: None, 100)
    gone.settings_sync.told("a")
    await gone.live(100)
    for worker in (gone, mute):
        assert max(b - a for a, b in pairwise(worker.looks)) <= 2 * EVERY_S * 1.2
        assert len(worker.looks) >= 100 / EVERY_S * 0.8


async def test_a_change_that_could_not_be_read_is_read_later() -> None:
    worker = Watched(QUIET)
    worker.down = True
    reading = asyncio.create_task(told_on(worker, lambda _: "a", 30))
    await asyncio.sleep(10)
    tried, worker.down = len(worker.looks), False
    assert 3 <= tried <= 10 / EVERY_S * 1.25 + 2
    await reading
    assert len(worker.looks) == tried + 1


async def test_who_acquires_a_shard_reads_again_although_nothing_has_changed() -> None:
    """Its new core has no schedules yet."""
    worker = Watched(QUIET)
    asyncio.get_running_loop().call_later(20, worker.settings_sync.read_again)
    await told_on(worker, lambda _: "a", 60)
    assert [at for at in worker.looks if 20 <= at <= 20 + DRAINING_S]
    assert [at for at in worker.looks if 5 < at < 20 or at > 21] == []


async def test_a_change_during_the_read_is_read_again() -> None:
    worker = Watched(QUIET)
    read = worker.layout

    def layout() -> Layout:
        if len(worker.looks) == 0:
            worker.settings_sync.told("b")
        return read()

    worker.layout = layout  # type: ignore[method-assign]
    worker.settings_sync.told("a")
    await told_on(worker, lambda _: "b", 5)
    assert len(worker.looks) >= 2


def test_the_gate_tells_when_it_holds_a_key_back() -> None:
    told: list[bool] = []
    gate = Gate(lambda: told.append(True))
    gate.set(CLOSED)
    assert gate.opens("g", 1, "k", 0)
    assert not told
    assert not gate.opens("g", 1, "k", 1)
    assert told == [True]


def test_a_core_says_whether_keys_wait() -> None:
    world = World(1)
    world.gate.set(CLOSED)
    world.enqueue(ordering_key="k", layout=1)
    world.read_page()
    world.grant(4)
    assert world.core.state.keys.gated
    world.gate.set(Layout(CLOSED.lanes))
    world.now_us += SECOND
    world.grant(4)
    assert not world.core.state.keys.gated
    assert world.running
