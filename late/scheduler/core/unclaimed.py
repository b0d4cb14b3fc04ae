"""Tasks that were put off because no consumer asked for them.

A pulled queue that nobody fetches from jams, and a jam leaves memory for the timer table
(`ReadyQueues.surplus`), each task with a due time within the next minute. When a consumer asks, it
must not wait for that: first comes what is in memory (`Timers.take_unclaimed`), then what is in
the table only, which is read once, by due time, past whatever else is due in that minute.

Every grant asks anew whether a pool has room, so a consumer that asked while the core did something
else is never missed. Reads are saved by the opposite knowledge: the pools of which the table has
nothing that is not in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from late.scheduler.core.timers import LOAD_MAX, Timers
from late.scheduler.events_effects import Load
from late.scheduler.limits.limiter import LOOK_MAX_US

_Key = tuple[int, str]
FAR_US = LOOK_MAX_US + 5_000_000
"""Tasks that are put off for want of a consumer are due before; a margin is for the clocks."""


class UnclaimedTasks:
    """The unclaimed tasks of one shard. A *pool* is one of a pulled queue here, by its name."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._clear: set[str] = set()
        """Pools of which all that is put off is in memory; none at the start, for nobody knows what
        the former owner has parked."""
        self._after: dict[str, _Key] = {}
        """The key up to which the table was read for a pool, if not to its end."""
        self._again: set[str] = set()
        """Pools of `_after` of which more went into the table since, perhaps before that key."""
        self._out: Load | None = None
        self._pool = ""
        """The pool that `_out` is for."""
        self._turn = 0

    def may_have(self, pools: Iterable[str]) -> bool:
        """Return whether tasks of these pools may be put off."""
        return any(p not in self._clear or self._timers.has_unfetched(p) for p in pools)

    def went(self, pool: str) -> None:
        """Note that a task that nobody fetched has left memory for the table."""
        self._clear.discard(pool)
        if pool in self._after:
            self._again.add(pool)

    def load(self, wants: Mapping[str, int], now_us: int) -> Load | None:
        """Return the next load, or None: one pool after the other, one load at a time.

        Args:
            wants: how many tasks of each pool are asked for.
        """
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
        """Return whether `load` asked for it."""
        return request is self._out

    def answered(self, last: _Key | None) -> str:
        """Take in the load: `last` is the key of its last row, None when these were all. Returns
        the pool whose tasks were asked for."""
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
        """Note that the load did not reach the table: the next one begins at the same key."""
        self._out = None
