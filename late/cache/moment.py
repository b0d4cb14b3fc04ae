"""Moments of the log: what a read of the database had seen, in one form for every store. Pure.

A moment sees a position if the transaction of that position was over when it was taken. On SQLite
and Spanner that is a bound: the last rowid, the timestamp of the read. On PostgreSQL it is a
snapshot, because a transaction with a lower id may commit later. The moments of one primary server
are a chain: of two, one sees all that the other sees.
"""

from __future__ import annotations

import msgspec


class Moment(msgspec.Struct, frozen=True):
    """The transactions that one read of the database saw: those below `high` that did not run."""

    high: int
    """The lowest position that had not begun."""
    running: frozenset[int] = frozenset()
    """The positions below `high` whose transactions were not over."""

    def sees(self, position: int) -> bool:
        """Return True if a read at this moment sees what was committed with `position`."""
        return position < self.high and position not in self.running

    @property
    def order(self) -> tuple[int, int]:
        """The place in the chain: a moment that sees more has a higher one."""
        return self.high, -len(self.running)

    @property
    def bytes(self) -> int:
        """About the memory that it takes."""
        return 200 + 100 * len(self.running)


def later(one: Moment, other: Moment | None) -> Moment:
    """Return the later of two moments; None stands for no moment."""
    return one if other is None or other.order <= one.order else other
