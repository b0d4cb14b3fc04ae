"""Who waits for attempts of a pulled queue, and who gets which. Pure but for the futures."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from late.model.task import Attempt


@dataclass(eq=False)
class Waiter:
    """One consumer that asks for up to `limit` attempts of its group, in one queue or several."""

    group: str
    names: frozenset[str] | None
    limit: int
    future: asyncio.Future[None]
    """Done as soon as there is something, or nothing more to wait for."""
    given: list[Attempt] = field(default_factory=list)
    by: object = None
    """The one queue that `given` is of."""


class Wanted:
    """The waiters of one queue, the longest waiting first."""

    def __init__(self, queue: object) -> None:
        self._queue = queue
        self._waiters: list[Waiter] = []
        self._of: Counter[str] = Counter()
        self.total = 0
        """How many attempts all of them ask for."""

    def add(self, waiter: Waiter) -> None:
        self.total += waiter.limit
        self._of[waiter.group] += 1
        self._waiters.append(waiter)

    def remove(self, waiter: Waiter) -> None:
        """It waits no longer. Twice is fine."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)
            self.total -= waiter.limit
            self._of[waiter.group] -= 1

    def of(self, group: str) -> bool:
        """Whether anybody waits in this group."""
        return self._of[group] > 0

    def offer(self, attempt: Attempt) -> bool:
        """Give `attempt` to the first who may have it and has room; False if nobody is."""
        for waiter in self._waiters:
            if (
                len(waiter.given) < waiter.limit
                and not waiter.future.done()  # served by another queue in the same pass
                and waiter.group == attempt.group
                and (waiter.names is None or attempt.record.name in waiter.names)
            ):
                waiter.given.append(attempt)
                return True
        return False

    def hand_over(self) -> None:
        """Wake those who were given something; they wait no longer."""
        for waiter in [w for w in self._waiters if w.given and not w.future.done()]:
            self.remove(waiter)
            waiter.by = self._queue
            waiter.future.set_result(None)

    def release(self) -> None:
        """Send everybody away with nothing."""
        for waiter in list(self._waiters):
            self.remove(waiter)
            if not waiter.future.done():
                waiter.future.set_result(None)
