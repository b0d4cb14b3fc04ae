"""The stall monitor: a loop in the heartbeat's thread that notices a worker without progress.

The worker's own loop cannot report that it is blocked: after one `time.sleep` in an `async def`
nothing runs on it. So a thread asks it, every three seconds, what it owes and what it has done
(`progress.py`). If the loop does not answer, that counts as no progress.

A worker that stalls gives up its shards in the one way that needs nothing from its loop: its
heartbeat says that it has gone. Peers take its shards over, and the fence refuses whatever it may
still write.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from late import events
from late.clock import Monotonic
from late.events import Emitter
from late.worker.watch.progress import Duty, Watchdog

LOOK_EVERY_S = 3.0


class StallMonitor:
    """Looks from `run` on; `stalled` may be read from any thread.

    Args:
        stall_s: for how long a duty may be left undone.
        duties: what the worker owes and has done; called in its loop.
        reachable: whether the database answers, and takes what is to be recorded; called in the
            monitor's thread.
        on_change: told which duties are left undone, whenever that changes; in the same thread.
        wait: waits for so many seconds or less, in the monitor's loop.
    """

    def __init__(
        self,
        stall_s: float,
        duties: Callable[[], Sequence[Duty]],
        *,
        reachable: Callable[[], bool],
        on_change: Callable[[frozenset[str]], None],
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
        monotonic: Monotonic = time.monotonic,
        emitter: Emitter = events.default,
    ) -> None:
        self._wait = wait
        self._watchdog = Watchdog(stall_s)
        self._every_s = min(LOOK_EVERY_S, stall_s / 4)
        self._duties = duties
        self._reachable = reachable
        self._on_change = on_change
        self._monotonic = monotonic
        self._emitter = emitter
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked = self._answered = 0
        self._report: Sequence[Duty] = ()

    @property
    def stalled(self) -> frozenset[str]:
        """The duties without progress."""
        return self._watchdog.stalled

    @property
    def current_task(self) -> asyncio.Task[Any] | None:
        """The task that the loop runs at this moment. From any thread."""
        return None if self._loop is None else asyncio.current_task(self._loop)

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the loop to ask. Call it before `run`."""
        self._loop = loop

    def call(self, what: Callable[[], object]) -> None:
        """Call `what` in the worker's loop, soon. From any thread."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed: the worker is going away
            self._loop.call_soon_threadsafe(what)

    async def run(self) -> None:
        """Look until cancelled."""
        before_s = self._monotonic()
        while True:
            self._ask()
            await self._wait(self._every_s)
            now_s = self._monotonic()
            # Two paces at most: when the whole process is stopped and goes on, the time between
            # counts for nobody.
            elapsed_s, before_s = min(now_s - before_s, 2 * self._every_s), now_s
            self._look(elapsed_s)

    def _ask(self) -> None:
        if self._asked > self._answered:
            return  # one question at a time: a loop that is blocked for days must not collect them
        self._asked += 1
        self.call(self._answer)

    def _answer(self) -> None:
        """Report the duties; runs in the worker's loop."""
        self._report = self._duties()
        self._answered += 1

    def _look(self, elapsed_s: float) -> None:
        answered = self._answered >= self._asked
        duties = [Duty("answer", True, self._answered), *(self._report if answered else ())]
        if not self._watchdog.look(elapsed_s, duties, paused=not self._reachable()):
            return
        undone = self._watchdog.stalled
        if undone:
            self._emitter.emit(events.STALLED, duties=" ".join(sorted(undone)))
        else:
            self._emitter.emit(events.STALL_OVER)
        self._on_change(undone)
