"""Cursors of the CockroachDB store: arithmetic on the versions of tasks that have been read.

CockroachDB gives every row version the timestamp of its commit, and after a read at T all later
writes to the rows that it read get timestamps above T. So after a read at T over a range of keys
nothing new can appear there up to T. There is no index on that timestamp: to find new rows, a range
of the primary key must be scanned. Hence two kinds of passes over one shard, each up to a fixed T:

- a **sweep** scans all of the shard, every 15 to 30 s. It is the guarantee.
- a **recent** pass scans the tasks whose id was made less than a minute before the last sweep:
  nearly all new tasks are there. It is for latency only, and says nothing beyond its range.

So two numbers, `swept` and `seen` in microseconds, always say all that has been read:

    covered(moment, id) = moment <= swept, or moment <= seen and id >= recent_from(swept)

`recent_from` depends on `swept` alone: the range stays where it is until the next sweep, so that
one recent pass adds to the one before it and the two numbers are enough.

Within a pass the order is that of the ids, the primary key. That also is a record's `position`
(the milliseconds at the front of its id): it survives a rewrite of the row, which its timestamp
does not.

Texts: the empty string; `swept,seen`; and inside a pass `swept,seen>until@position,id` (recent) or
`swept,seen>>until@position,id` (sweep).
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from late.errors import StoreError
from late.model.task import Cursor

LAG_US = 20_000
"""The time from the end of a pass to now: a read of the present would meet every open commit."""
RECENT_US = 60_000_000
"""The recent range begins this long before the last sweep; older ids are found by the next one."""
SWEEP_US = 15_000_000
"""The shortest time between two sweeps of a shard; the longest is nearly twice that, so that the
shards of one worker do not all sweep at the same moment."""
SPREAD = 16

FIRST_ID = "00000000-0000-0000-0000-000000000000"

_TEXT = re.compile(
    r"(\d{1,18}),(\d{1,18})"
    r"(?:(>>?)(\d{1,18})@\d{1,19},([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}))?\Z"
)


class CockroachWindow(msgspec.Struct, frozen=True):
    """A parsed cursor. Moments are microseconds: a version of a row belongs to the first whole
    microsecond that is not before its commit, and every bound is a whole one."""

    swept: int = 0
    """The moment up to which every version is covered."""
    seen: int = 0
    """The moment up to which every version in the recent range is covered; never below `swept`."""
    until: int | None = None
    """The end of the pass that is under way; None between two passes."""
    sweep: bool = False
    """True if that pass scans the whole shard."""
    key: str = FIRST_ID
    """The last id that the pass has dealt with."""

    def __post_init__(self) -> None:
        assert self.swept <= self.seen
        assert self.until is None or self.until > self.seen

    @property
    def recent_from(self) -> str:
        """The first id of the recent range."""
        return first_id(self.swept - RECENT_US)

    def covers(self, moment: int, task_id: str) -> bool:
        """Return True if the holder of this cursor has read the version."""
        recent = task_id >= self.recent_from
        if moment <= self.swept or (recent and moment <= self.seen):
            return True
        if self.until is None or not (self.sweep or recent):
            return False
        return moment <= self.until and task_id <= self.key

    def next(self, shard_id: int, at: int) -> CockroachWindow | None:
        """Return the pass to go on with, or a new one up to `at`.

        None if `at` is not after `seen`: the clock of another gateway was ahead of this one's. Such
        a difference costs time and never a task.
        """
        if self.until is not None:
            return self if at >= self.until else None
        if at <= self.seen:
            return None
        sweep = at - self.swept >= sweep_every_us(shard_id)
        return CockroachWindow(self.swept, self.seen, at, sweep)

    def end(self) -> CockroachWindow:
        """Return the window after the end of the pass."""
        assert self.until is not None
        return CockroachWindow(self.until if self.sweep else self.swept, self.until)

    @property
    def first_key(self) -> str:
        """The id from which the scan goes on (`key` itself is done)."""
        return self.key if self.sweep else max(self.key, self.recent_from)

    @property
    def mark(self) -> str:
        """The name of the pass, for `Page.window`: a cursor inside it is `mark@position,id`."""
        return f"{self.swept},{self.seen}{'>>' if self.sweep else '>'}{self.until}"

    @property
    def text(self) -> Cursor:
        """The cursor of a window between two passes."""
        assert self.until is None
        return Cursor(f"{self.swept},{self.seen}")


def sweep_every_us(shard_id: int) -> int:
    """Return the time between two sweeps of a shard."""
    return SWEEP_US + SWEEP_US * (shard_id % SPREAD) // SPREAD


def first_id(us: int) -> str:
    """Return the lowest id that a producer could make at `us`: ids begin with their time in
    milliseconds."""
    high = f"{max(0, us) // 1_000:012x}"
    return f"{high[:8]}-{high[8:]}{FIRST_ID[13:]}"


def position_of(task_id: str) -> int:
    """Return the position of a task in its shard: (position, id) sorts as the id does."""
    return int(task_id[:8] + task_id[9:13], 16)


@lru_cache(maxsize=4096)
def parse(cursor: Cursor) -> CockroachWindow:
    """Parse a cursor.

    Raises:
        StoreError: not a cursor of this store.
    """
    if not cursor:
        return CockroachWindow()
    match = _TEXT.match(cursor)
    if match is not None:
        swept, seen, kind, until, key = match.groups()
        window = int(swept), int(seen)
        if window[0] <= window[1] and until is None:
            return CockroachWindow(*window)
        if window[0] <= window[1] < int(until or 0):
            return CockroachWindow(*window, int(until), kind == ">>", key)
    raise StoreError(f"not a cursor of the CockroachDB store: {cursor[:200]!r}")
