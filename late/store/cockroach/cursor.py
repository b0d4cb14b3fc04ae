"""Cursors of the CockroachDB store: which versions of which tasks have been read, as arithmetic.

CockroachDB gives every row version the timestamp of its commit, and a read at T keeps later
writes to what it read above T. So a read at T over a range of keys settles that range up to T for
good. What it does not give is an index on that timestamp: to find what is new, a range of the
primary key must be scanned. Hence two kinds of passes over one shard, each at a fixed end T:

- a **sweep** scans all of the shard, every 15 to 30 s. It is the guarantee.
- a **recent** pass scans the tasks whose id was made less than a minute before the last sweep:
  where nearly all new ones are. It is for latency only, and claims nothing beyond its range.

So what has been read is always two numbers, `swept` and `seen`, in microseconds:

    covered(moment, id) = moment <= swept, or moment <= seen and id >= recent_from(swept)

`recent_from` depends on `swept` alone: the range stays where it is until the next sweep, so that
one recent pass adds to the one before it and the two numbers say all.

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
"""A pass ends this long before now: reading the very present would meet every commit under way."""
RECENT_US = 60_000_000
"""How much older than the last sweep an id may be to be found at once, and not by the next one."""
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
    """A cursor taken apart. Moments are microseconds: a version of a row belongs to the first
    whole microsecond that is not before its commit, and every bound is a whole one."""

    swept: int = 0
    """Every version up to here is covered."""
    seen: int = 0
    """Up to here, every version of a task in the recent range is; never below `swept`."""
    until: int | None = None
    """The end of the pass that is under way; None between two passes."""
    sweep: bool = False
    """Whether that pass scans the whole shard."""
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
        """Whether a version has been read by whoever holds this cursor."""
        recent = task_id >= self.recent_from
        if moment <= self.swept or (recent and moment <= self.seen):
            return True
        if self.until is None or not (self.sweep or recent):
            return False
        return moment <= self.until and task_id <= self.key

    def next(self, shard_id: int, at: int) -> CockroachWindow | None:
        """The pass to go on with, or a new one up to `at`.

        None where `at` is not beyond what is known: another gateway's clock was ahead of this
        one's. Skew costs time and never a task.
        """
        if self.until is not None:
            return self if at >= self.until else None
        if at <= self.seen:
            return None
        sweep = at - self.swept >= sweep_every_us(shard_id)
        return CockroachWindow(self.swept, self.seen, at, sweep)

    def end(self) -> CockroachWindow:
        """What is covered once the pass has come to its end."""
        assert self.until is not None
        return CockroachWindow(self.until if self.sweep else self.swept, self.until)

    @property
    def first_key(self) -> str:
        """The ids that are still to be scanned are from here on (`key` itself is done)."""
        return self.key if self.sweep else max(self.key, self.recent_from)

    @property
    def mark(self) -> str:
        """Of the pass, as `Page.window`: a cursor inside it is `mark@position,id`."""
        return f"{self.swept},{self.seen}{'>>' if self.sweep else '>'}{self.until}"

    @property
    def text(self) -> Cursor:
        """Of a window between two passes."""
        assert self.until is None
        return Cursor(f"{self.swept},{self.seen}")


def sweep_every_us(shard_id: int) -> int:
    """How long after its last sweep a shard is swept again."""
    return SWEEP_US + SWEEP_US * (shard_id % SPREAD) // SPREAD


def first_id(us: int) -> str:
    """The lowest id that a producer could make at `us`: ids begin with their milliseconds."""
    high = f"{max(0, us) // 1_000:012x}"
    return f"{high[:8]}-{high[8:]}{FIRST_ID[13:]}"


def position_of(task_id: str) -> int:
    """The place of a task within its shard, up to ties: (position, id) sorts as the id does."""
    return int(task_id[:8] + task_id[9:13], 16)


@lru_cache(maxsize=4096)
def parse(cursor: Cursor) -> CockroachWindow:
    """Take a cursor apart.

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
