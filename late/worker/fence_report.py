"""What former owners did in vain, on its way to where operators see it.

A fenced settlement and a late result leave no trace in the journal: that is what the fence is for.
They are counted where they happen, and added up in the database from time to time.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping

from late.errors import StoreError
from late.model.task import ShardId

logger = logging.getLogger("late.refusals")

EVERY_S = 2.0

Counts = Mapping[tuple[str, ShardId], tuple[int, int]]
"""(group, shard) -> settlements that were fenced, results that were late; since the start."""


class FenceReport:
    """Adds up what is new in `counts`, by `add`, which blocks and runs in a thread."""

    def __init__(
        self,
        counts: Callable[[], Counts],
        add: Callable[[Counts], None],
        rng: random.Random | None = None,
    ) -> None:
        self._counts = counts
        self._add = add
        self._rng = rng or random.Random()
        self._told: Counts = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S * self._rng.uniform(0.8, 1.2))
            await self.tell()

    async def tell(self) -> None:
        """Add up what is new. What cannot be written now is part of the next time."""
        now = dict(self._counts())
        more = {}
        for shard, (fenced, late) in now.items():
            before = self._told.get(shard, (0, 0))
            if before != (fenced, late):
                more[shard] = (fenced - before[0], late - before[1])
        if not more:
            return  # nearly always: it takes a pause or a cut network
        try:
            await asyncio.to_thread(self._add, more)
        except StoreError as error:
            logger.warning("refusals could not be added up, tried again: %s", error)
        else:
            self._told = now
