"""A clock for tests that jumps forward when every task waits.

    async def test_it_gives_up_after_an_hour() -> None:
        with VirtualClock() as clock:
            await give_up_after_an_hour(monotonic=clock.monotonic)   # takes milliseconds
            assert clock.monotonic() == 3600

It replaces the time of the running event loop, so that `asyncio.sleep`, `asyncio.timeout` and
`call_later` use it unchanged. When no task can run and there is no I/O, time jumps to the next
timer. The order of timers and the times between them are the real ones, without the waiting.

Source: the autojump clock of trio (`MockClock`).
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class VirtualClock:
    """A time that passes only when every task waits, or when `advance` is called.

    As a context manager, inside a coroutine, it sets the time of the running loop. Otherwise it is
    a plain source of time that only `advance` moves. It works with asyncio's selector loops and not
    with uvloop. Timers that are pending at the end of the context are not moved forward.

    Args:
        start_us: the value of `now_us` at the beginning.
        io_wait_s: real seconds to wait for threads and sockets before time jumps. Use 0 if there
            are none. An answer that takes longer than this comes after the next timer.
    """

    def __init__(self, *, start_us: int = 1_800_000_000_000_000, io_wait_s: float = 0.0) -> None:
        self._start_us = start_us
        self._io_wait_s = io_wait_s
        self._elapsed_s = 0.0
        self._loop: Any = None
        """The loop whose time it sets now; `Any`, because the loop's selector is not public."""

    def monotonic(self) -> float:
        """Return the virtual seconds since this clock was made, in place of `time.monotonic`."""
        return self._elapsed_s

    def now_us(self) -> int:
        """Return virtual microseconds since the Unix epoch, in place of a database's clock."""
        return self._start_us + round(self._elapsed_s * 1_000_000)

    def advance(self, seconds: float) -> None:
        """Move time forward by `seconds` at once.

        Timers that are due by then run in order in the next round of the loop. All of them see the
        time at the end of this step.
        """
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
        # Timers that exist already stay valid, because the loop's time continues from its value.
        offset_s = loop.time() - self._elapsed_s
        wait: Any = selector.select

        def select(timeout: float | None = None) -> Any:
            if timeout is None or timeout <= 0:  # There is no timer to jump to, or no wait.
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
        # The instance attributes hid the methods of the class. Without them these apply again.
        del self._loop.time
        del self._loop._selector.select
        self._loop = None
