"""The parts of a pulled queue: the leases of its consumers, and the consumers that wait.

Pure but for the futures.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

import msgspec

from late.model.task import PULL_POOL, Attempt


class PullLease(msgspec.Struct):
    """One attempt that a consumer has, until `until`."""

    serial: int
    attempt: Attempt
    consumer: str
    started_us: int
    begun: float
    """Monotonic, like `until`."""
    until: float
    visibility_s: float
    """The length of the time that it was last given."""
    until_us: int
    """The same moment by the database's clock, to show elsewhere. It decides nothing."""


def pool_name(queue: str) -> str:
    """Return the name under which the scheduler knows the pool of a pulled queue."""
    return PULL_POOL + queue


def identity(attempt: Attempt) -> tuple[str, int, int, str, int]:
    """Return (group, shard, epoch, task, number), which a receipt is bound to."""
    record = attempt.record
    return attempt.group, record.shard_id, attempt.epoch, record.task_id, attempt.number


@dataclass(eq=False)
class Waiter:
    """One consumer that asks for up to `limit` attempts of its group, in one queue or several."""

    group: str
    names: frozenset[str] | None
    limit: int
    future: asyncio.Future[None]
    """Done as soon as there is something, or nothing more to wait for."""
    given: list[Attempt] = field(default_factory=list)
    consumer: str | None = None
    """The name that it gave itself."""
    by: object = None
    """The pool of the one queue that `given` comes from."""


class Waiters:
    """The waiters of one queue, the longest waiting first."""

    def __init__(self, queue: object) -> None:
        self._queue = queue
        self._waiters: list[Waiter] = []
        self._of: Counter[str] = Counter()
        self.total = 0
        """The number of attempts that all of them ask for."""

    def add(self, waiter: Waiter) -> None:
        self.total += waiter.limit
        self._of[waiter.group] += 1
        self._waiters.append(waiter)

    def remove(self, waiter: Waiter) -> None:
        """Remove `waiter`, which waits no longer. Twice is fine."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)
            self.total -= waiter.limit
            self._of[waiter.group] -= 1

    def of(self, group: str) -> bool:
        """Tell whether anybody waits in this group."""
        return self._of[group] > 0

    def offer(self, attempt: Attempt, refused: Collection[str] = ()) -> bool:
        """Give `attempt` to the first waiter that may have it, has room, and is none of those that
        `refused` it; False without one."""
        for waiter in self._waiters:
            if (
                len(waiter.given) < waiter.limit
                and not waiter.future.done()  # served by another queue in the same pass
                and waiter.group == attempt.group
                and waiter.consumer not in refused
                and (waiter.names is None or attempt.record.name in waiter.names)
            ):
                waiter.given.append(attempt)
                return True
        return False

    def hand_over(self) -> None:
        """Wake the waiters that were given something; they wait no longer."""
        for waiter in [w for w in self._waiters if w.given and not w.future.done()]:
            self.remove(waiter)
            waiter.by = self._queue
            waiter.future.set_result(None)

    def release(self) -> None:
        """Wake all waiters with nothing."""
        for waiter in list(self._waiters):
            self.remove(waiter)
            if not waiter.future.done():
                waiter.future.set_result(None)
