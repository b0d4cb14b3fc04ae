"""Time-outs of all slots, interruption, and handlers that cannot be ended.

One sweep over all slots, a few times per shortest time-out, instead of one timer per attempt: an
attempt that ends in time pays one attribute for its time-out and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from math import inf
from time import monotonic

from late import events
from late.dispatcher.local.slot import Slot, Why
from late.handler.classify import INTERRUPTED, Verdict, timed_out
from late.model.task import Attempt

logger = logging.getLogger("late.dispatcher")

SWEEP_S = (0.01, 0.25)
"""Shortest and longest time between two sweeps. A time-out is late by no more than an eighth."""


class TimeoutWatcher:
    """Ends attempts that may not go on. `settle` gets the outcome of one whose handler runs on."""

    def __init__(
        self,
        slots: Sequence[Slot],
        *,
        cancel_grace_s: float,
        settle: Callable[[Slot, Verdict], None],
    ) -> None:
        self._slots = slots
        self._cancel_grace_s = cancel_grace_s
        self._settle = settle
        self._working = asyncio.Event()

    @property
    def stuck(self) -> list[Attempt]:
        return [slot.attempt for slot in self._slots if slot.settled and slot.attempt is not None]

    @property
    def running(self) -> list[Slot]:
        """Slots with an attempt that has no outcome yet."""
        return [slot for slot in self._slots if slot.attempt is not None and not slot.settled]

    def work(self) -> None:
        """Begin to sweep, as an attempt has come."""
        self._working.set()

    async def run(self) -> None:
        """Sweep for ever, and sleep while nothing runs."""
        while True:
            if not any(slot.attempt is not None for slot in self._slots):
                self._working.clear()
                await self._working.wait()
            await asyncio.sleep(self._pause_s())
            self.sweep(monotonic())

    def sweep(self, now: float) -> None:
        """End the attempts that are overdue at `now` (monotonic)."""
        for slot in self._slots:
            if slot.deadline > now:
                continue
            if slot.attempt is None:  # A heartbeat from a thread crossed the end of its attempt.
                slot.deadline = inf
                continue
            if slot.interruptible and slot.ended_for is None:
                self._interrupt(slot, Why.TIMEOUT)
                slot.deadline = now + self._cancel_grace_s
            else:
                slot.ended_for = slot.ended_for or Why.TIMEOUT
                self._give_up(slot)

    def interrupt_all(self) -> None:
        """Interrupt what runs; threads, which cannot be interrupted, count as stuck from now on."""
        for slot in self.running:
            if not slot.interruptible:
                slot.ended_for = slot.ended_for or Why.STOP
                self._give_up(slot)
            elif slot.ended_for is None:
                self._interrupt(slot, Why.STOP)

    def give_up_all(self) -> None:
        """Settle what still runs."""
        for slot in self.running:
            self._give_up(slot)

    def _pause_s(self) -> float:
        least, most = SWEEP_S
        busy = [slot.bound.timeout_s for slot in self._slots if slot.attempt and slot.bound]
        shortest_s = min([*busy, self._cancel_grace_s])
        return min(max(shortest_s / 8, least), most)

    def _interrupt(self, slot: Slot, why: Why) -> None:
        assert slot.task is not None
        slot.ended_for = why
        slot.task.cancel()

    def _give_up(self, slot: Slot) -> None:
        """End the attempt of a handler that cannot be ended. Otherwise a hanging task would never
        use up its attempts and never become a dead letter. The price is that a repeat may run
        beside it, as after a worker's death. The slot stays taken until the handler ends."""
        attempt, bound = slot.attempt, slot.bound
        assert attempt is not None
        if slot.ended_for is Why.STOP or bound is None:
            verdict = INTERRUPTED
        elif slot.interruptible:
            verdict = timed_out(bound.timeout_s, "cancelled, but it runs on")
        else:
            verdict = timed_out(bound.timeout_s, "its thread runs on")
        self._settle(slot, verdict)
        slot.settled = True
        slot.deadline = inf
        events.default.emit(
            events.STUCK_HANDLER,
            running_s=monotonic() - slot.begun,
            queue=attempt.record.queue,
            name=attempt.record.name,
            task=attempt.record.task_id,
        )
