"""Refuse tasks by the rows of `late_full`: read them, and make their errors. Pure.

A row is of a queue, or of one limit key of a queue. It counts until its `until_us`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from late.errors import QueueFull

VALID_US = 10_000_000
"""The time for which a published row counts."""
RENEW_US = 6_000_000
"""A row that counts for less than this is written again."""
CLOSED_US = 1 << 62
"""The `until_us` of a queue that an operator has closed: it counts until it is opened."""


class Full(NamedTuple):
    """A queue, or a limit key of a queue, that takes no new tasks."""

    name: str
    """See `name_of`."""
    held: int
    """The tasks that it held when they were counted."""
    bound: int
    """0 if an operator has closed the queue."""

    @property
    def text(self) -> str:
        """Return why it takes no tasks."""
        queue, _, key = self.name.partition(" ")
        what = f"limit key {key!r} of queue {queue!r}" if key else f"queue {queue!r}"
        if self.bound == 0:
            return f"{what} is closed: it takes no new tasks"
        return f"{what} holds {self.held} tasks, its bound is {self.bound}"


def name_of(queue: str, limit_key: str) -> str:
    """Return the name of a limit key of a queue. No name of either has a space."""
    return f"{queue} {limit_key}"


def refusal(full: Iterable[Full]) -> QueueFull:
    """Return the error for the first of `full` by name."""
    first = min(full)
    queue, _, key = first.name.partition(" ")
    return QueueFull(
        first.text, queue=queue, limit_key=key or None, held=first.held, bound=first.bound
    )


def over(held: Mapping[str, int], bounds: Mapping[str, int]) -> dict[str, Full]:
    """Return what has reached its bound, by name."""
    return {
        name: Full(name, held[name], bound)
        for name, bound in bounds.items()
        if held.get(name, 0) >= bound
    }
