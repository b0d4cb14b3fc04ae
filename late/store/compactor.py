"""Compaction of the journals of a store, batch by batch: `common/compaction.py` has the rules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import msgspec

from late.errors import TransactionAborted
from late.store.common import compaction
from late.store.common.compaction import Compacted, Stretch

Step = Callable[[Stretch, int], Awaitable[Compacted]]
"""Reads the first rows of a stretch, up to a number of them, and carries out the plan for them."""


class Compactor:
    """Compacts journals, batch by batch, and remembers how far it has come.

    Any number of them may work on one journal at once. What they remember only saves reads.
    """

    def __init__(self) -> None:
        self._reached: dict[tuple[str, int, int], int] = {}
        self._done: dict[tuple[str, int, int], tuple[int, int]] = {}
        """The time and the last row up to which there is nothing more to do: of an idle journal a
        look once in a width is enough."""

    async def run(
        self,
        journals: Iterable[tuple[str, int, int]],
        step: Step,
        *,
        now_us: int,
        detail_s: float,
        minute_s: float,
    ) -> int:
        """Compact whatever is old enough; return the number of rows that went.

        Args:
            journals: group, shard and last `seq` of each.
            detail_s: the age from which a minute is one row.
            minute_s: the age from which an hour is.
        """
        removed = 0
        for group, shard_id, last in journals:
            reached = 0
            for width_us, age_s in (
                (compaction.HOUR_US, minute_s),
                (compaction.MINUTE_US, detail_s),
            ):
                before_us = (now_us - round(age_s * 1_000_000)) // width_us * width_us
                key = (group, shard_id, width_us)
                # A journal that was begun anew is shorter than what is remembered of it.
                start = max(reached, min(self._reached.get(key, 0), last))
                if self._done.get(key) == (before_us, last):
                    reached = start
                    continue
                stretch = Stretch(group, shard_id, start, last, width_us, before_us)
                gone, reached, whole = await _compact(stretch, step)
                self._reached[key] = reached
                if whole:
                    self._done[key] = (before_us, last)
                removed += gone
        return removed


async def _compact(stretch: Stretch, step: Step) -> tuple[int, int, bool]:
    """Compact one journal with one width: (rows that went, where the next round begins, whether all
    was done)."""
    removed, limit = 0, compaction.PROBE
    while True:
        try:
            done = await step(stretch, limit)
        except TransactionAborted:
            return removed, stretch.start, False  # another process does it at this moment
        removed += done.removed
        stretch = msgspec.structs.replace(stretch, start=done.resume)
        if not done.more:
            return removed, stretch.start, True
        limit = compaction.BATCH
