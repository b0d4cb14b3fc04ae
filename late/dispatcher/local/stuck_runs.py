"""Runs that go on after their time-out and cannot be ended, and the slots that they hold.

The runs of one task may hold `SHARE` of a dispatcher's slots. Beyond that each gets the others a
slot in its place, and no further attempt of this task starts here: so one task that hangs does not
stop the others, and there are never more than twice the slots. Only several tasks that hang can
hold all of them.
"""

from __future__ import annotations

import random
from collections import Counter

from late.dispatcher.local.slot import Slot
from late.handler.classify import Verdict
from late.model.task import Attempt, ShardId

SHARE = 0.5
REFUSED_S = 30.0
"""The shortest wait of a task that may not start here; up to twice that."""


class StuckRuns:
    """The stuck runs in the `slots` of a dispatcher, which adds slots as this says."""

    def __init__(self, slots: list[Slot]) -> None:
        self._slots = slots
        self._concurrency = len(slots)
        self._share = max(1, int(len(slots) * SHARE))
        self.count = 0
        """The number that is stuck now."""
        self.over = 0
        """The number that has ended after all."""

    @property
    def runs(self) -> list[tuple[Attempt, int]]:
        """The attempts that are stuck, and when each began, in microseconds."""
        # A thread may ask (`holds_its_share`), while the loop clears a slot.
        found = [(slot.attempt, slot.started_us) for slot in self._slots if slot.stuck]
        return [(attempt, at_us) for attempt, at_us in found if attempt is not None]

    @property
    def attempts(self) -> list[Attempt]:
        return [attempt for attempt, _ in self.runs]

    @property
    def everywhere(self) -> bool:
        """True if no slot is left: nothing can start here."""
        return 0 < self.count == len(self._slots)

    @property
    def tasks(self) -> list[str]:
        """The tasks that hold their share: no more of them starts here."""
        return [name for name, held in self._held().items() if held >= self._share]

    @property
    def unsettled(self) -> set[tuple[str, ShardId]]:
        """(group, shard) of the attempts that have no outcome before their run ends."""
        return {
            (slot.attempt.group, ShardId(slot.attempt.record.shard_id))
            for slot in self._slots
            if slot.stuck and not slot.settled and slot.attempt is not None
        }

    def holds_its_share(self, name: str) -> bool:
        return self._held()[name] >= self._share

    @property
    def slots_added(self) -> int:
        """Slots that were opened in place of stuck ones."""
        return len(self._slots) - self._concurrency

    @property
    def slots_wanted(self) -> int:
        beyond = sum(max(0, held - self._share) for held in self._held().values())
        return self._concurrency + beyond

    def ended(self, slot: Slot) -> bool:
        """Count out the run of `slot`; True if the slot is gone, as there are enough without it."""
        slot.stuck = False
        self.count -= 1
        self.over += 1
        if len(self._slots) <= self.slots_wanted:
            return False
        self._slots.remove(slot)
        return True

    def _held(self) -> Counter[str]:
        return Counter(attempt.record.name for attempt in self.attempts)


def refusal() -> Verdict:
    """Return the outcome of an attempt that may not start here. It costs no attempt."""
    wait_s = random.uniform(REFUSED_S, 2 * REFUSED_S)
    return Verdict("snooze", after_us=round(wait_s * 1_000_000))
