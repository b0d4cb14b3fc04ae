"""Time-outs of all slots, interruption, and handlers that cannot be ended.

One sweep over all slots, a few times per shortest time-out, instead of one timer per attempt: an
attempt that ends in time pays one attribute for its time-out and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from math import inf
from time import monotonic

from late import events
from late.dispatcher.handler import Bound
from late.dispatcher.local.slot import Slot, Why
from late.handler.classify import INTERRUPTED, Verdict, timed_out
from late.model.task import Attempt

logger = logging.getLogger("late.dispatcher")

SWEEP_S = (0.01, 0.25)
"""Shortest and longest time between two sweeps. A time-out is late by no more than an eighth."""


class TimeoutWatcher:
    """Ends attempts that may not go on."""

    def __init__(
        self,
        slots: Sequence[Slot],
        waiting: Collection[Attempt],
        cancel_grace_s: float,
        settle: Callable[[Slot, Verdict], None],
        on_stuck: Callable[[], None],
    ) -> None:
        """
        Args:
            slots: of the dispatcher, which may add and remove some.
            waiting: the attempts that wait for one of them.
            settle: gets the outcome of an attempt whose handler runs on.
            on_stuck: called when a slot got stuck.
        """
        self._slots = slots
        self._waiting = waiting
        self.cancel_grace_s = cancel_grace_s
        self._settle = settle
        self._on_stuck = on_stuck
        self._working = asyncio.Event()

    @property
    def stuck(self) -> list[Slot]:
        """Slots whose handler runs on after its time-out."""
        return [slot for slot in self._slots if slot.stuck]

    @property
    def running(self) -> list[Slot]:
        """Slots with an attempt that is within its time-out."""
        return [slot for slot in self._slots if slot.taken and not slot.stuck]

    def work(self) -> None:
        """Begin to sweep, as an attempt has come."""
        self._working.set()

    async def run(self) -> None:
        """Sweep for ever, and sleep while nothing runs or waits: a slot that lets others have their
        turn between two attempts is free for that time."""
        while True:
            if not (self._waiting or any(slot.taken for slot in self._slots)):
                self._working.clear()
                await self._working.wait()
            await asyncio.sleep(self._pause_s())
            self.sweep(monotonic())

    def sweep(self, now: float) -> None:
        """End the attempts that are overdue at `now` (monotonic)."""
        for slot in self._slots:
            if slot.deadline <= now:
                with slot.lock:
                    stuck = self._end(slot, now)
                if stuck:
                    _tell(slot)

    def interrupt_all(self) -> None:
        """Interrupt what runs; threads, which cannot be interrupted, count as stuck from now on."""
        for slot in self.running:
            stuck = False
            with slot.lock:
                if slot.attempt is None:  # The last one of a chunk has ended: it is on its way.
                    continue
                if not slot.interruptible:
                    slot.ended_for = slot.ended_for or Why.STOP
                    stuck = self._give_up(slot)
                elif slot.ended_for is None:
                    self._interrupt(slot, Why.STOP)
            if stuck:
                _tell(slot)

    def give_up_all(self) -> None:
        """Settle what still runs: the worker ends, and so do its threads."""
        for slot in [*self.running, *self.stuck]:
            with slot.lock:
                stuck = slot.attempt is not None and self._give_up(slot, settles=True)
            if stuck:
                _tell(slot)

    def _pause_s(self) -> float:
        least, most = SWEEP_S
        busy = [slot.bound.patience_s for slot in self._slots if slot.attempt and slot.bound]
        shortest_s = min([*busy, self.cancel_grace_s])
        return min(max(shortest_s / 8, least), most)

    def _end(self, slot: Slot, now: float) -> bool:
        """End what is overdue; True if it got stuck by that."""
        if slot.deadline > now:  # The slot's thread went on to the next attempt.
            return False
        if slot.attempt is None:  # A heartbeat from a thread crossed the end of its attempt.
            slot.deadline = inf
        elif slot.soft_due:
            slot.raise_soft_limit()
        elif slot.interruptible and slot.ended_for is None:
            self._interrupt(slot, Why.TIMEOUT)
            slot.deadline = now + self.cancel_grace_s
        else:
            slot.ended_for = slot.ended_for or Why.TIMEOUT
            return self._give_up(slot)
        return False

    def _interrupt(self, slot: Slot, why: Why) -> None:
        assert slot.task is not None
        slot.ended_for = why
        slot.task.cancel()

    def _give_up(self, slot: Slot, *, settles: bool = False) -> bool:
        """Note that a handler cannot be ended: its slot stays taken until it ends by itself.

        So does its attempt, since a repeat beside it would do its work twice at the same time.
        The price: while the worker lives, a task that hangs for ever uses up no attempts. It is
        settled all the same where the task says so (`overlap_on_timeout`), and where the worker
        ends.

        Returns:
            True if it got stuck now: `_tell` of it, without the lock.
        """
        if slot.settled:
            return False
        bound = slot.bound
        stops = slot.ended_for is not Why.TIMEOUT
        if settles or bound is None or stops or bound.overlaps:
            self._settle(slot, INTERRUPTED if stops or bound is None else _overdue(slot, bound))
            slot.settled = True
        if slot.stuck:
            return False
        slot.stuck = True
        slot.deadline = inf
        self._on_stuck()
        return True


def _tell(slot: Slot) -> None:
    """Report a run that cannot be ended: after its time-out, or at a stop, which waits no longer.

    A subscriber may ask the dispatcher, which takes the slot's lock.
    """
    assert slot.attempt is not None
    record = slot.attempt.record
    events.default.emit(
        events.STUCK_HANDLER if slot.ended_for is Why.TIMEOUT else events.HANDLER_LEFT,
        running_s=monotonic() - slot.begun,
        queue=record.queue,
        name=record.name,
        task=record.task_id,
    )


def _overdue(slot: Slot, bound: Bound) -> Verdict:
    what = "cancelled, but it runs on" if slot.interruptible else "its thread runs on"
    return timed_out(bound.timeout_s, what)
