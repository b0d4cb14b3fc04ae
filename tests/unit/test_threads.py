"""Blocking calls of coroutines end before what they use is closed; and waits share a wake-up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from late.concurrency import SLACK_S, Beats, in_thread
from late.testing.clock import VirtualClock


async def test_a_call_gives_what_it_returns_and_raises() -> None:
    assert await in_thread(int, "12", base=8) == 10
    with pytest.raises(ValueError, match="nine"):
        await in_thread(int, "nine")


@pytest.mark.parametrize("fails", [False, True])
async def test_a_cancellation_waits_for_the_thread(fails: bool) -> None:
    begun, let_go, over = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        let_go.wait(120)
        over.set()
        if fails:
            raise RuntimeError("nobody hears of it")

    caller = asyncio.create_task(in_thread(call))
    await asyncio.to_thread(begun.wait, 30)
    caller.cancel()
    asyncio.get_running_loop().call_later(0.05, let_go.set)
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert over.is_set()


async def waited_s(
    beats: Beats, wait_s: float, wait: Callable[[Beats, float], Awaitable[None]] = Beats.near
) -> float:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await wait(beats, wait_s)
    return loop.time() - began_s


@pytest.mark.parametrize(
    ("wait_s", "beats_s", "expected_s"),
    [
        (2.0, (0.7, 1.4, 1.6, 2.3), 1.6),  # the first one that is near
        (2.0, (0.7, 2.4), 2.4),
        (2.0, (0.7, 1.4), 2.0 + SLACK_S),  # none comes
        (0.2, (0.05, 0.15), 0.15),  # a short wait has less slack
        (0.2, (), 0.3),
    ],
)
async def test_a_wait_ends_with_the_beat_that_is_near(
    wait_s: float, beats_s: tuple[float, ...], expected_s: float
) -> None:
    with VirtualClock():
        beats, loop = Beats(), asyncio.get_running_loop()
        for at_s in beats_s:
            loop.call_later(at_s, beats.beat)
        assert await waited_s(beats, wait_s) == pytest.approx(expected_s)
        assert not beats._waits


@pytest.mark.parametrize(
    ("most_s", "beats_s", "expected_s"),
    [
        (3.0, (1.0, 1.9, 2.1, 2.9), 2.1),  # the first one in its last second
        (3.0, (1.0, 1.9, 3.1), 3.0),  # never later
        (0.2, (0.05, 0.15), 0.15),
        (0.2, (), 0.2),
    ],
)
async def test_a_wait_that_must_not_be_late_ends_with_an_early_beat_alone(
    most_s: float, beats_s: tuple[float, ...], expected_s: float
) -> None:
    with VirtualClock():
        beats, loop = Beats(), asyncio.get_running_loop()
        for at_s in beats_s:
            loop.call_later(at_s, beats.beat)
        assert await waited_s(beats, most_s, Beats.within) == pytest.approx(expected_s)


async def test_a_beat_ends_all_waits_that_are_near_at_once() -> None:
    with VirtualClock():
        beats, loop = Beats(), asyncio.get_running_loop()
        loop.call_later(2.2, beats.beat)
        assert (
            await asyncio.gather(*[waited_s(beats, s) for s in (1.8, 2.0, 2.4)])
            == [pytest.approx(2.2)] * 3
        )


async def test_a_wait_that_is_cancelled_leaves_nothing_behind() -> None:
    beats = Beats()
    waiting = asyncio.create_task(beats.near(60))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert not beats._waits
    beats.beat()
