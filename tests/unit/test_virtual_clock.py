"""The virtual clock: real order and distances, no waiting."""

from __future__ import annotations

import asyncio
import time

import pytest

from late.testing.clock import VirtualClock


async def test_sleeping_takes_no_time_and_moves_the_clock() -> None:
    began = time.monotonic()
    with VirtualClock(start_us=5) as clock:
        await asyncio.sleep(86_400)
        assert clock.monotonic() == pytest.approx(86_400)
        assert clock.now_us() == pytest.approx(86_400_000_005, abs=1)
    assert time.monotonic() - began < 60


async def test_tasks_wake_in_the_order_of_their_timers() -> None:
    seen: list[tuple[str, float]] = []

    async def sleeper(name: str, *naps: float) -> None:
        for nap in naps:
            await asyncio.sleep(nap)
            seen.append((name, round(clock.monotonic(), 6)))

    with VirtualClock() as clock:
        await asyncio.gather(sleeper("a", 3, 3), sleeper("b", 1, 4), sleeper("c", 2))
    assert seen == [("b", 1), ("c", 2), ("a", 3), ("b", 5), ("a", 6)]


async def test_it_does_not_jump_while_a_task_can_run() -> None:
    with VirtualClock() as clock:
        timer = asyncio.create_task(asyncio.sleep(10))
        for _ in range(100):
            await asyncio.sleep(0)
        assert clock.monotonic() == 0
        await timer
        assert clock.monotonic() == pytest.approx(10)


async def test_timeouts_follow_it() -> None:
    with VirtualClock() as clock:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.Event().wait()
        assert clock.monotonic() == pytest.approx(30)


async def test_it_waits_for_a_thread_before_it_jumps() -> None:
    with VirtualClock(io_wait_s=5) as clock:
        timer = asyncio.create_task(asyncio.sleep(10))
        await asyncio.to_thread(time.sleep, 0.05)
        assert clock.monotonic() == 0
        timer.cancel()


async def test_without_a_timer_it_waits_for_threads_for_ever() -> None:
    with VirtualClock() as clock:
        await asyncio.to_thread(time.sleep, 0.02)
        assert clock.monotonic() == 0


async def test_the_loop_gets_its_own_time_back() -> None:
    loop = asyncio.get_running_loop()
    with VirtualClock():
        await asyncio.sleep(1_000_000)
    assert abs(loop.time() - time.monotonic()) < 60
    assert "time" not in vars(loop)
    assert "select" not in vars(loop._selector)  # type: ignore[attr-defined]


async def test_timers_from_before_keep_their_distance() -> None:
    timer = asyncio.create_task(asyncio.sleep(100))
    await asyncio.sleep(0)
    with VirtualClock() as clock:
        await timer
        assert clock.monotonic() == pytest.approx(100, abs=1)


def test_outside_a_loop_only_advance_moves_it() -> None:
    clock = VirtualClock(start_us=0)
    clock.advance(1.5)
    assert clock.now_us() == 1_500_000
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance(-1)


async def test_advancing_brings_timers_forward() -> None:
    with VirtualClock() as clock:
        timer = asyncio.create_task(asyncio.sleep(5))
        await asyncio.sleep(0)
        clock.advance(60)
        await timer
        assert clock.monotonic() == 60


async def test_one_clock_at_a_time() -> None:
    with VirtualClock(), pytest.raises(RuntimeError, match="in use"):
        VirtualClock().__enter__()


async def test_other_loops_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    selector = loop._selector  # type: ignore[attr-defined]
    monkeypatch.setattr(loop, "_selector", object())
    with pytest.raises(RuntimeError, match="selector event loop"):
        VirtualClock().__enter__()
    monkeypatch.setattr(loop, "_selector", selector)
