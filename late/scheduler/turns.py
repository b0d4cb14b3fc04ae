"""Share the room of a pass among many shards, one after the other. Pure.

With a share for each, a worker of 64 shards would give each of them a start or two in every pass.
A step of a core costs as much as five tasks, and a row of the journal as much as ten. So a shard
gets `GRAIN` starts at least where there is room for that, and those that go without are first in
the next pass, which comes at once where tasks are short, and within `NEXT_US` in any case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from late.model.task import TRANSACTION_POOL

GRAIN = 32
NEXT_US = 10_000

T = TypeVar("T")


class Turns:
    """Says which shards have a turn, and how large it is."""

    def __init__(self) -> None:
        self._first = 0
        self.grain = 0
        """The least that a shard gets in this pass, where there is room for that; 0: the room is
        small, and shared by all."""
        self._skipped = False

    def order(self, shards: Iterable[T]) -> list[T]:
        """Return all shards, each time with another one first."""
        found = list(shards)
        self._first += 1
        first = self._first % len(found) if found else 0
        return found[first:] + found[:first]

    def begin(self, room: int, ahead: int) -> None:
        """Begin a pass with so much room. A small one is shared by all, but for the part of it that
        is beyond the slots, which only quick tasks have."""
        self.grain = min(GRAIN, max(room // 4, min(room, ahead)))
        self._skipped = False

    def share(self, room: int, left: int) -> int:
        """Return what the next one of `left` shards gets of the room that is left."""
        return max(-(-room // left), min(self.grain, room))

    def rooms(self, free: Mapping[str, int], left: int) -> dict[str, int]:
        """Return what the next one of `left` shards gets of each other pool.

        Each shared transaction has a row of the journal for every shard of its tasks, so there one
        shard after the other has its turn.
        """
        found = {name: -(-count // left) for name, count in free.items()}
        if TRANSACTION_POOL in found:
            most = free[TRANSACTION_POOL]
            found[TRANSACTION_POOL] = max(found[TRANSACTION_POOL], min(GRAIN, most))
        return found

    def skip(self, served: int) -> None:
        """Let the next shard go without; the first one that does is first in the next pass.

        Args:
            served: those that came before it in this pass.
        """
        if not self._skipped:
            self._skipped = True
            self._first += served - 1
