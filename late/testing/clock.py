"""A clock for tests that jumps when every task waits.

    async def test_it_gives_up_after_an_hour() -> None:
        with VirtualClock() as clock:
            await give_up_after_an_hour(monotonic=clock.monotonic)   # takes milliseconds
            assert clock.monotonic() == 3600

It takes over the time of the running event loop, so that `asyncio.sleep`, `asyncio.timeout` and
`call_later` follow it without knowing. When no task can run and no I/O is there, time jumps to
the next timer: order and distances are those of real time, the waiting is gone.

Source: the autojump clock of trio (`MockClock`).
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class VirtualClock:
    """Seconds that pass only when everything waits, or when `advance` says so.

    As a context manager, inside a coroutine, it drives the running loop; outside of one it is a
    plain source of time that only `advance` moves. Works with asyncio's selector loops and not
    with uvloop. Timers still pending when the context ends are not brought forward.

    Args:
        start_us: what `now_us` shows at the beginning.
        io_wait_s: real seconds to wait for threads and sockets before time jumps. 0 is right
            where there are none; otherwise an answer that takes longer than this comes after
            the next timer.
    """

    def __init__(self, *, start_us: int = 1_800_000_000_000_000, io_wait_s: float = 0.0) -> None:
        self._start_us = start_us
        self._io_wait_s = io_wait_s
        self._elapsed_s = 0.0
        self._loop: Any = None
        """The loop it drives now; `Any`, because its selector is not public."""

    def monotonic(self) -> float:
        """Virtual seconds since this clock was made: a stand-in for `time.monotonic`."""
        return self._elapsed_s

    def now_us(self) -> int:
        """Virtual microseconds since the Unix epoch: a stand-in for a database's clock."""
        return self._start_us + round(self._elapsed_s * 1_000_000)

    def advance(self, seconds: float) -> None:
        """Move on by `seconds` at once. Timers that are due by then run, in order, when the loop
        turns; `now` is the end of the step for all of them."""
        if seconds < 0:
            raise ValueError(f"a monotonic clock cannot go back: {seconds}")
        self._elapsed_s += seconds

    def __enter__(self) -> VirtualClock:
        loop: Any = asyncio.get_running_loop()
        selector = getattr(loop, "_selector", None)
        if self._loop is not None or "time" in vars(loop):
            raise RuntimeError("this clock or this event loop is in use by a virtual clock already")
        if not isinstance(selector, selectors.BaseSelector):
            raise RuntimeError("a virtual clock needs asyncio's own selector event loop")
        # Timers that exist already keep their distance: the loop's time goes on from where it is.
        offset_s = loop.time() - self._elapsed_s
        wait: Any = selector.select

        def select(timeout: float | None = None) -> Any:
            if timeout is None or timeout <= 0:  # nothing to jump to, or nothing to wait for
                return wait(timeout)
            ready = wait(min(self._io_wait_s, timeout))
            if not ready:
                self._elapsed_s += timeout
            return ready

        self._loop = loop
        loop.time = lambda: offset_s + self._elapsed_s
        selector.select = select  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        # Instance attributes hide the methods of the class: removing them restores those.
        del self._loop.time
        del self._loop._selector.select
        self._loop = None
