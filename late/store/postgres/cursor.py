"""Cursors of the PostgreSQL store: text, parsed once, and plain arithmetic on their coverage.

A position is the `xid8` of the top-level transaction that inserted the row, and a lower one may
commit later: a number cannot be a cursor. A **snapshot** can, `xmin:xmax:xip,...` as
`pg_current_snapshot()` prints it. It sees the transaction x exactly if `x < xmax` and x is not in
`xip`, the transactions that were running.

Texts:

- the empty string: nothing is covered;
- `snapshot`: every row whose xid the snapshot sees;
- `prev|cur@xid,task_id`: inside the window from `prev` to `cur`: every row that `prev` sees, and
  of those that `cur` sees the rows up to and including the page key (xid, task_id).

Source: PgQ (Skype) tails by the difference of two snapshots; SpiceDB's Watch does the same.
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from late.errors import StoreError
from late.model.task import Cursor

XID_MAX = 2**64 - 1
FIRST_ID = "00000000-0000-0000-0000-000000000000"
LAST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"

_SNAPSHOT = re.compile(r"(\d{1,20}):(\d{1,20}):((?:\d{1,20}(?:,\d{1,20})*)?)\Z")
_TASK_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")


class Snapshot(msgspec.Struct, frozen=True):
    """The transactions that were finished at one moment: those it `sees`."""

    xmin: int
    """The lowest transaction that was running: all below it were finished."""
    xmax: int
    """The lowest transaction that had not started."""
    xip: frozenset[int]
    """The transactions below `xmax` that were running."""

    def sees(self, xid: int) -> bool:
        return xid < self.xmax and xid not in self.xip

    def sees_all(self, low: int, high: int) -> bool:
        """Return True if it sees every transaction in [low, high)."""
        return high <= self.xmax and not any(low <= xid < high for xid in self.xip)

    @property
    def floor(self) -> int:
        """The number below which it sees every transaction."""
        return min(self.xip, default=self.xmax)


NOTHING = Snapshot(0, 0, frozenset())


@lru_cache(maxsize=256)
def parse_snapshot(text: str) -> Snapshot:
    """Read the text of a `pg_snapshot`; the empty string is the one that sees nothing.

    Raises:
        StoreError: not a snapshot.
    """
    if text == "":
        return NOTHING
    match = _SNAPSHOT.match(text)
    if match is None:
        raise StoreError(f"not a snapshot of PostgreSQL: {text[:80]!r}")
    xmin, xmax, xip = match.groups()
    running = frozenset(int(xid) for xid in xip.split(",")) if xip else frozenset()
    return Snapshot(int(xmin), int(xmax), running)


class PostgresWindow(msgspec.Struct, frozen=True):
    """A parsed cursor: the place of a reader between two snapshots.

    `cur` is None between windows: the next read takes a new snapshot.
    """

    prev: str
    cur: str | None
    key: tuple[int, str]

    def covers(self, xid: int, task_id: str) -> bool:
        """Return True if the holder of this cursor has read the row."""
        if parse_snapshot(self.prev).sees(xid):
            return True
        if self.cur is None:
            return False
        return parse_snapshot(self.cur).sees(xid) and (xid, task_id) <= self.key

    def covers_all(self, low: int, high: int) -> bool:
        """Return True if every row with a xid in [low, high), present or future, is covered."""
        if parse_snapshot(self.prev).sees_all(low, high):
            return True
        if self.cur is None:
            return False
        return high <= self.key[0] and parse_snapshot(self.cur).sees_all(low, high)

    @property
    def floor(self) -> int:
        """The xid below which every row, present or future, is covered."""
        floor = parse_snapshot(self.prev).floor
        if self.cur is not None:
            # Below the page key the window is read, except for rows that its snapshot did not see.
            floor = max(floor, min(self.key[0], parse_snapshot(self.cur).floor))
        return floor

    @property
    def xmax(self) -> int:
        """The transaction that the database had reached when the cursor was made."""
        newest = parse_snapshot(self.prev if self.cur is None else self.cur)
        return newest.xmax


@lru_cache(maxsize=4096)
def parse(cursor: Cursor) -> PostgresWindow:
    """Parse a cursor.

    Raises:
        StoreError: not a cursor of this store.
    """
    prev, mark, rest = cursor.partition("|")
    parse_snapshot(prev)
    if not mark:
        return PostgresWindow(prev, None, (0, FIRST_ID))
    cur, at, key = rest.partition("@")
    xid, comma, task_id = key.partition(",")
    if not (cur and at and comma and xid.isdigit() and _TASK_ID.match(task_id)):
        raise StoreError(f"not a cursor of the PostgreSQL store: {cursor[:200]!r}")
    parse_snapshot(cur)
    return PostgresWindow(prev, cur, (int(xid), task_id))
