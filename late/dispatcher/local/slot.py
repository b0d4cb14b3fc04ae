"""The state of one slot: a plain record that the dispatcher writes."""

from __future__ import annotations

import asyncio
import time
from enum import Enum
from math import inf

from late.dispatcher.handler import Bound
from late.handler.context import AttemptOver
from late.model.task import Attempt


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
        "deadline",
        "ended_for",
        "interruptible",
        "number",
        "settled",
        "started_us",
        "task",
        "wake",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.task: asyncio.Task[None] | None = None
        self.wake: asyncio.Future[None] | None = None
        """Set while the slot waits for an attempt."""
        self.attempt: Attempt | None = None
        self.bound: Bound | None = None
        self.started_us = 0
        self.begun = 0.0
        self.deadline = inf
        """Monotonic. Invariant: infinite while no handler is running."""
        self.interruptible = True
        """True if cancelling the slot's task ends the attempt; False for a thread."""
        self.ended_for: Why | None = None
        self.settled = False
        """Stuck: the outcome was handed over while the handler still runs. Invariant: `settled`
        implies `attempt is not None`, so that the slot counts as taken."""

    def clear(self) -> None:
        """Free the slot, after the handler has returned."""
        self.attempt = None
        self.deadline = inf
        self.interruptible = True
        self.ended_for = None
        self.settled = False

    def beat(self, attempt: Attempt) -> None:
        """Count the time-out of `attempt`, which is alive, from now. Any thread may call it.

        Raises:
            AttemptOver: it was ended (time-out, stop); its result will not count.
        """
        if not self.prolong(attempt):
            raise AttemptOver(f"attempt {attempt.number} of {attempt.record.task_id} was ended")

    def prolong(self, attempt: Attempt) -> bool:
        """Do the same as `beat` without raising: False if the attempt was ended."""
        if self.attempt is not attempt or self.ended_for is not None or self.bound is None:
            return False
        self.deadline = time.monotonic() + self.bound.timeout_s
        return True
