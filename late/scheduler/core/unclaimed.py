"""Calling back what was put off because no consumer asked for it.

A pulled queue that nobody fetches from jams, and a jam leaves memory for the timer table
(`ReadyQueues.surplus`), each task with a due time within the next minute. When somebody asks, it
is not to wait for that: first comes what is in memory (`Timers.take_unclaimed`), then what is in
the table only, which is read once, by due time, past whatever else is due in that minute.

Level, not edge: at every grant it is asked anew whether a pool has room, so no want can be missed
that was expressed while the core looked elsewhere. What is known, and saves the reads, is the
opposite: of which pools the table has nothing that is not in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from late.scheduler.core.timers import LOAD_MAX, Timers
from late.scheduler.events_effects import Load
from late.scheduler.limits.limiter import LOOK_MAX_US

_Key = tuple[int, str]
FAR_US = LOOK_MAX_US + 5_000_000
"""What is put off for want of a consumer is due before; with a margin for clocks that differ."""


class UnclaimedTasks:
    """Of one shard. A *pool* is here one of a pulled queue, by its name."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._clear: set[str] = set()
        """Pools of which all that is put off is in memory. At the start none: the former owner has
        parked what it will."""
        self._after: dict[str, _Key] = {}
        """How far the table was read for a pool, where that is not at its end."""
        self._again: set[str] = set()
        """Of those, where more went into the table meanwhile, perhaps behind that place."""
        self._out: Load | None = None
        self._pool = ""
        """For which `_out` is."""
        self._turn = 0

    def may_have(self, pools: Iterable[str]) -> bool:
        """Whether anything of these pools may be put off."""
        return any(p not in self._clear or self._timers.has_unfetched(p) for p in pools)

    def went(self, pool: str) -> None:
        """A task that nobody fetched has left memory for the table."""
        self._clear.discard(pool)
        if pool in self._after:
            self._again.add(pool)

    def load(self, wants: Mapping[str, int], now_us: int) -> Load | None:
        """What to read from the table now, one pool after the other, one load at a time. `wants`:
        how many tasks of each."""
        pools = [pool for pool, few in wants.items() if few > 0 and pool not in self._clear]
        if self._out is not None or not pools:
            return None
        self._turn += 1
        self._pool = pools[self._turn % len(pools)]
        after = self._after.setdefault(self._pool, (0, ""))
        self._out = Load(
            until_us=now_us + FAR_US,
            limit=min(LOAD_MAX, wants[self._pool]),
            after=max(after, self._timers.loaded),
        )
        return self._out

    def is_mine(self, request: Load) -> bool:
        """Whether `load` asked for it."""
        return request is self._out

    def answered(self, last: _Key | None) -> str:
        """The load is back: `last` is the key of its last row, None when these were all. Returns
        the pool whose tasks are wanted of it."""
        pool, self._out = self._pool, None
        if last is not None:
            self._after[pool] = last
            return pool
        del self._after[pool]
        if pool not in self._again:
            self._clear.add(pool)
        self._again.discard(pool)
        return pool

    def failed(self) -> None:
        """The load did not reach the table: it is read on from where it was."""
        self._out = None
