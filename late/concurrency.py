"""Blocking calls of coroutines, coroutines that end with another, waits that share a wake-up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

drained: ContextVar[bool] = ContextVar("late_drained", default=False)
"""True in the handlers that `late.testing.drain` runs: nothing that they open may outlive it."""


async def in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`asyncio.to_thread`, but a cancellation waits for the thread, and is raised then.

    A call that outlives its caller works on with what the caller closes behind itself: its
    connection would go back to a pool that is gone, and stay open. `call` must have a time limit
    of its own, as every call of the control plane has.
    """
    running: Awaitable[T] = asyncio.ensure_future(asyncio.to_thread(call, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        with suppress(Exception):
            await running
        raise


async def run_until(end: Coroutine[Any, Any, object], work: Coroutine[Any, Any, T]) -> T | None:
    """Run `work`, cancel it when `end` is over, and return its result or else None."""
    working, ending = asyncio.ensure_future(work), asyncio.ensure_future(end)
    try:
        await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for each in (working, ending):
            each.cancel()
        await asyncio.wait({working, ending})


SLACK_S = 0.5
"""The time by which a wait near a beat may be shorter or longer than asked for."""


class Beats:
    """The beats of a process, such as its heartbeats, and waits that end with one of them.

    A process that sleeps is woken for each timer, and runs with cold caches then: ten timers cost
    ten times what one costs. Loops that need no exact time wait for a beat, and run together.
    All methods belong to one event loop.
    """

    def __init__(self) -> None:
        self._waits: dict[asyncio.Future[None], float] = {}

    def beat(self) -> None:
        """End the waits that are nearly over."""
        now_s = asyncio.get_running_loop().time()
        for wait, least_s in list(self._waits.items()):
            if now_s >= least_s:
                _end(wait)

    async def near(self, wait_s: float) -> None:
        """Wait for `wait_s`: up to `SLACK_S` less or more where a beat comes, and no less than half
        of it. Without beats it is `SLACK_S` more."""
        slack_s = min(SLACK_S, wait_s / 2)
        await self._between(wait_s - slack_s, wait_s + slack_s)

    async def within(self, most_s: float) -> None:
        """Wait for `most_s`, or up to two `SLACK_S` less where a beat comes, and no less than half
        of it: for what must not be late."""
        await self._between(max(most_s / 2, most_s - 2 * SLACK_S), most_s)

    async def _between(self, least_s: float, most_s: float) -> None:
        loop = asyncio.get_running_loop()
        wait: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(most_s, _end, wait)
        self._waits[wait] = loop.time() + least_s
        try:
            await wait
        finally:
            timer.cancel()
            del self._waits[wait]


def _end(wait: asyncio.Future[None]) -> None:
    if not wait.done():
        wait.set_result(None)
