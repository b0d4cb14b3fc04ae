"""Share the room of a pass among many shards, one after the other. Pure.

With a share for each, a worker of 64 shards would give each of them a start or two in every pass.
A step of a core costs as much as five tasks, and a row of the journal as much as ten. So a shard
gets `GRAIN` starts at least where there is room for that, and those that go without are first in
the next pass, which comes at once where tasks are short, and within `NEXT_US` in any case.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

GRAIN = 32
NEXT_US = 10_000

T = TypeVar("T")


class Turns:
    """Says which shards have a turn, and how large it is."""

    def __init__(self) -> None:
        self._first = 0
        self._grain = 0
        self._passed_over = False

    def order(self, shards: Iterable[T]) -> list[T]:
        """Return all shards, each time with another one first."""
        found = list(shards)
        self._first += 1
        first = self._first % len(found) if found else 0
        return found[first:] + found[:first]

    def begin(self, room: int) -> None:
        """Begin a pass with so much room. A small one is shared by all."""
        self._grain = min(GRAIN, room // 4)
        self._passed_over = False

    def share(self, room: int, left: int) -> int:
        """Return what the next one of `left` shards gets of the room that is left."""
        return max(-(-room // left), min(self._grain, room))

    def passes_over(self, room: int, served: int) -> bool:
        """Return whether the next shard goes without; the first one that does is first in the next
        pass. `served`: those that came before it in this pass."""
        if not self._grain or room > 0:
            return False
        if not self._passed_over:
            self._passed_over = True
            self._first += served - 1
        return True
