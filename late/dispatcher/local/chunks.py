"""Chunks: several attempts of `def` handlers for one hand-over to a thread.

To give a thread one call and to hear of its end takes three times what a short task does, and the
interpreter's lock changes hands twice. So a thread gets as many short attempts as should take
`CHUNK_S`, runs one after the other in the slot that it works for, and wakes the loop once.

An attempt of a chunk that has not started is as free as one that waits for a slot: it is among the
waiting ones, has no time-out yet, and goes back to where it came from when the thread stays with
another attempt for too long, when the chunk's time is over, at a stop, and after the loss of a
shard.

The lock of the slot decides what an attempt is. The thread ends one and begins the next under it;
the loop looks at it, tells it to end, or takes the slot away under it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextvars import copy_context
from functools import partial
from math import inf
from time import monotonic
from typing import Any

from late.dispatcher.handler import Bound, Handler
from late.dispatcher.local.slot import Slot
from late.handler.classify import Verdict
from late.model.task import Attempt

CHUNK_S = 0.002
"""The time that a thread works before it reports, and the longest that one attempt of a chunk may
take before the others leave it."""
SHORT_S = 0.0002
"""A handler that takes longer on average gets a thread for each attempt, as one that waits for I/O
should: then the hand-over is a small part of it."""
CHUNK_MAX = 128

Ended = tuple[Attempt, Verdict, int, float, float]
"""An attempt, its verdict, its start (µs, database), its start and its end (monotonic)."""


class Chunk:
    """Attempts that one thread runs in the place of one slot."""

    __slots__ = ("ended", "slot", "verdict", "waiting")

    def __init__(self, slot: Slot, first: Attempt) -> None:
        self.slot = slot
        self.waiting = deque([first])
        """Not started yet."""
        self.ended: list[Ended] = []
        """Not yet taken by the loop."""
        self.verdict: Verdict | None = None
        """Set where an attempt has returned that had been told to end: the loop reports it."""

    def work(self, run: Callable[[Slot, Attempt], Verdict]) -> None:
        """Run the attempts, each in a context of its own. Called in the thread."""
        slot, waiting, ended, lock = self.slot, self.waiting, self.ended, self.slot.lock
        now = monotonic()
        until = now + CHUNK_S
        with lock:
            if slot.chunk is not self or not waiting:
                return
            slot.begun = now
            slot.attempt = attempt = waiting.popleft()
        while True:
            verdict = copy_context().run(run, slot, attempt)
            now = monotonic()
            with lock:
                if slot.chunk is not self:  # The slot was taken away: nobody hears of this one.
                    return
                if slot.ended_for is not None:
                    self.verdict = verdict
                    return
                ended.append((attempt, verdict, slot.started_us, slot.begun, now))
                slot.deadline = inf
                slot.soft_due = False
                slot.soft_call = None
                if not waiting or now >= until:
                    slot.attempt = None
                    return
                slot.begun = now
                slot.attempt = attempt = waiting.popleft()


class Chunks:
    """The chunks that threads have now. Its methods are called on the loop."""

    def __init__(
        self,
        waiting: deque[Attempt],
        bound: dict[str, Bound],
        *,
        in_thread: Callable[[Callable[[], None]], Awaitable[Any]],
        run: Callable[[Slot, Attempt], Verdict],
        on_ended: Callable[[list[Ended]], None],
        on_recalled: Callable[[], None],
    ) -> None:
        """
        Args:
            waiting: the attempts that wait for a slot; the next one is the first.
            bound: gets the handlers that run in threads, by task name.
            in_thread: calls a function in a thread, and returns when it does.
            run: runs an attempt in the thread, within the slot.
            on_ended: gets each attempt that has ended, once; but not one that was told to end.
            on_recalled: called when attempts that had left `waiting` are there again.
        """
        self._waiting = waiting
        self._bound = bound
        self._in_thread = in_thread
        self._run = run
        self._on_ended = on_ended
        self._on_recalled = on_recalled
        self._open: list[Chunk] = []
        self.handlers: dict[str, Bound] = {}
        """Those that run in threads, by task name."""
        self._known = 0
        self._looks = False
        """A look at the open chunks is due."""

    @property
    def unstarted(self) -> list[Attempt]:
        """The attempts that were given to threads and have not started."""
        found: list[Attempt] = []
        for chunk in self._open:
            with chunk.slot.lock:
                found.extend(chunk.waiting)
        return found

    def find_handlers(self, handlers: Mapping[str, Handler]) -> None:
        """Find those of `handlers` that run in threads, if others have come."""
        if len(handlers) == self._known:
            return
        self._known = len(handlers)
        for name, handler in handlers.items():
            if name not in self.handlers and not (handler.is_async or handler.process):
                self.handlers[name] = self._bound[name] = Bound(handler)

    async def run(self, slot: Slot, first: Attempt, bound: Bound) -> Verdict | None:
        """Run `first` in a thread, and with it those that wait behind it, if they are short.

        Returns:
            How an attempt has returned that had been told to end. It is still in the slot, as is
            one that runs when this is cancelled.
        """
        chunk = slot.chunk = Chunk(slot, first)
        slot.interruptible = False
        if bound.mean_s <= SHORT_S and self._waiting:
            self._fill(chunk.waiting, bound)
        self._open.append(chunk)
        try:
            await self._in_thread(partial(chunk.work, self._run))
        finally:
            self._close(chunk)
        return chunk.verdict

    def recall(self) -> None:
        """Put what has not started back to where it came from."""
        for chunk in reversed(self._open):
            with chunk.slot.lock:
                self._put_back(chunk)

    def collect(self) -> None:
        """Report what has ended so far."""
        for chunk in self._open:
            with chunk.slot.lock:
                ended = chunk.ended.copy()
                chunk.ended.clear()
            self._report(ended)

    def _fill(self, chunk: deque[Attempt], bound: Bound) -> None:
        waiting, known = self._waiting, self.handlers
        left_s = CHUNK_S - bound.mean_s
        for _ in range(min(len(waiting), CHUNK_MAX - 1)):
            found = known.get(waiting[0].record.name)
            if found is None or found.mean_s > SHORT_S:
                break
            left_s -= found.mean_s
            if left_s < 0:
                break
            chunk.append(waiting.popleft())
        if len(chunk) > 1 and not self._looks:
            self._looks = True
            asyncio.get_running_loop().call_later(CHUNK_S, self._look)

    def _close(self, chunk: Chunk) -> None:
        slot = chunk.slot
        with slot.lock:
            slot.chunk = None
        self._open.remove(chunk)
        if slot.attempt is None:
            slot.clear()
        recalled = self._put_back(chunk)
        self._report(chunk.ended)
        if recalled:
            self._on_recalled()

    def _put_back(self, chunk: Chunk) -> bool:
        if not chunk.waiting:
            return False
        self._waiting.extendleft(reversed(chunk.waiting))
        chunk.waiting.clear()
        return True

    def _report(self, ended: list[Ended]) -> None:
        known = self.handlers
        for attempt, _, _, begun, now in ended:
            bound = known.get(attempt.record.name)
            if bound is not None:
                bound.mean_s += (min(now - begun, CHUNK_S) - bound.mean_s) / 8
        self._on_ended(ended)

    def _look(self) -> None:
        """Report what has ended, and take the rest from threads that are held up."""
        self._looks = recalled = False
        self.collect()
        now = monotonic()
        for chunk in reversed(self._open):
            slot = chunk.slot
            with slot.lock:
                if slot.attempt is not None and now - slot.begun > CHUNK_S and chunk.waiting:
                    recalled = self._put_back(chunk)
                    bound = self.handlers.get(slot.attempt.record.name)
                    if bound is not None:
                        bound.mean_s = CHUNK_S
        if recalled:
            self._on_recalled()
        if not self._looks and any(chunk.waiting for chunk in self._open):
            self._looks = True
            asyncio.get_running_loop().call_later(CHUNK_S, self._look)
