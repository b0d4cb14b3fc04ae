"""Blocking calls of coroutines, and coroutines that end with another."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


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
