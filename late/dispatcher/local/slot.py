"""The state of one slot: a plain record that the dispatcher writes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING

from late.dispatcher.handler import Bound
from late.dispatcher.local.soft_limit import SoftLimitedCall
from late.errors import SoftTimeLimit
from late.handler.context import AttemptOver
from late.model.task import Attempt

if TYPE_CHECKING:
    from late.dispatcher.local.chunks import Chunk


_is_background = attrgetter("is_background")


def line_up(waiting: deque[Attempt], attempts: Sequence[Attempt]) -> None:
    """Let attempts wait for a slot behind the others, foreground before background that is last.

    Background cannot wait here for ever: no more is handed over than fits, so once it has all the
    room there is, the next slot is its own.
    """
    waiting.extend(attempts)
    if len(waiting) > len(attempts) and waiting[-len(attempts) - 1].is_background:
        both = sorted(waiting, key=_is_background)
        waiting.clear()
        waiting.extend(both)


class Why(Enum):
    """The reason for which a running attempt was told to end."""

    TIMEOUT = "timeout"
    STOP = "stop"


class Slot:
    """Room for one attempt at a time."""

    __slots__ = (
        "attempt",
        "begun",
        "bound",
        "cancel_asked",
        "chunk",
        "deadline",
        "ended_for",
        "interruptible",
        "lock",
        "number",
        "retired",
        "settled",
        "share",
        "soft_call",
        "soft_due",
        "soft_raised",
        "started_us",
        "stuck",
        "task",
        "wake",
    )

    def __init__(
        self, number: int, cancel_asked: Callable[[Attempt], bool] = lambda attempt: False
    ) -> None:
        self.number = number
        self.cancel_asked = cancel_asked
        """Tells whether a cancel of an attempt's task was read. Any thread may ask."""
        self.task: asyncio.Task[None] | None = None
        self.wake: asyncio.Future[None] | None = None
        """Set while the slot waits for an attempt."""
        self.lock = threading.Lock()
        """Held by a heartbeat, and by whoever changes what `attempt` is while there is a chunk."""
        self.chunk: Chunk | None = None
        """The work of the slot's thread, which replaces `attempt` with the next of it."""
        self.attempt: Attempt | None = None
        self.bound: Bound | None = None
        self.started_us = 0
        self.share = 1
        """The attempts that run in one call together, and divide its time among them."""
        self.begun = 0.0
        self.deadline = inf
        """Monotonic. Invariant: infinite while no handler is running."""
        self.retired = False
        """It takes no further attempt: there are enough slots without it."""
        self.interruptible = True
        """True if cancelling the slot's task ends the attempt; False for a thread."""
        self.ended_for: Why | None = None
        self.soft_due = False
        """True until the soft time limit of the attempt has been raised; `deadline` is that time
        then."""
        self.soft_raised = False
        """The next cancellation of the slot's task is the soft time limit of a coroutine."""
        self.soft_call: SoftLimitedCall | None = None
        """The call in a thread that the soft time limit is raised in."""
        self.stuck = False
        """The handler runs on after its time-out and cannot be ended. Invariant: `stuck` implies
        `attempt is not None`, so that the slot counts as taken."""
        self.settled = False
        """The outcome was handed over while the handler still runs. It implies `stuck`."""

    @property
    def taken(self) -> bool:
        return self.attempt is not None or self.chunk is not None

    def clear(self) -> None:
        """Free the slot, after the handler has returned."""
        self.attempt = None
        self.deadline = inf
        self.share = 1
        self.soft_due = False
        self.soft_raised = False
        self.soft_call = None
        self.stuck = False
        self.interruptible = True
        self.ended_for = None
        self.settled = False

    def run(self, bound: Bound) -> None:
        """Count the time-out of the handler that starts now."""
        self.soft_due = bound.soft_timeout_s is not None
        self.deadline = self.begun + bound.patience_s

    def raise_soft_limit(self) -> None:
        """Raise `SoftTimeLimit` in the handler, which has until its time-out from now on."""
        assert self.bound is not None
        self.soft_due = False
        self.deadline += self.bound.timeout_s - self.bound.patience_s
        if self.soft_call is not None:
            self.soft_call.interrupt()
        elif self.task is not None:
            self.soft_raised = True
            self.task.cancel()

    def thrown(self, error: BaseException) -> BaseException:
        """Return what a coroutine gets in place of the `error` that its task was to raise."""
        if not self.soft_raised:
            return error
        self.soft_raised = False
        assert self.task is not None
        if self.ended_for is not None or not isinstance(error, asyncio.CancelledError):
            return error
        self.task.uncancel()
        return SoftTimeLimit()

    def beat(self, attempt: Attempt) -> None:
        """Count the time-out of `attempt`, which is alive, from now. Any thread may call it.

        Raises:
            AttemptOver: it was ended (time-out, stop); its result will not count.
        """
        if not self.prolong(attempt):
            raise AttemptOver(f"attempt {attempt.number} of {attempt.record.task_id} was ended")

    def is_over(self, attempt: Attempt) -> bool:
        """Tell whether `attempt` was ended (time-out, stop). Any thread may call it."""
        return self.attempt is not attempt or self.ended_for is not None

    def prolong(self, attempt: Attempt) -> bool:
        """Do the same as `beat` without raising: False if the attempt was ended."""
        with self.lock:  # The slot's thread must not begin the next attempt in between.
            bound = self.bound
            if self.is_over(attempt) or bound is None:
                return False
            silence_s = bound.patience_s if self.soft_due else bound.timeout_s
            self.deadline = time.monotonic() + silence_s
        return True
