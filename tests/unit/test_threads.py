"""Blocking calls of coroutines end before what they use is closed."""

from __future__ import annotations

import asyncio
import threading

import pytest

from late.concurrency import in_thread


async def test_a_call_gives_what_it_returns_and_raises() -> None:
    assert await in_thread(int, "12", base=8) == 10
    with pytest.raises(ValueError, match="nine"):
        await in_thread(int, "nine")


@pytest.mark.parametrize("fails", [False, True])
async def test_a_cancellation_waits_for_the_thread(fails: bool) -> None:
    begun, let_go, over = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        let_go.wait(30)
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
