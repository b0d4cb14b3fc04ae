"""The report of writes that the fence refused, for operators.

A fenced settlement and a late result leave no trace in the journal: that is what the fence is for.
They are counted where they happen, and added up in the database every two seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from late.concurrency import in_thread
from late.errors import StoreError
from late.model.task import ShardId
from late.worker.background import BackgroundJob

logger = logging.getLogger("late.worker")

EVERY_S = 2.0

Counts = Mapping[tuple[str, ShardId], tuple[int, int]]
"""(group, shard) -> settlements that were fenced, results that were late; since the start."""


class FenceReport:
    """Adds up what is new in `counts`, by `add`, which blocks and runs in a thread."""

    def __init__(
        self,
        counts: Callable[[], Counts],
        add: Callable[[Counts], None],
    ) -> None:
        self._counts = counts
        self._add = add
        self._told: Counts = {}

    @property
    def job(self) -> BackgroundJob:
        """The job that sends the report."""
        return BackgroundJob(name="fence report", run=self.tell, period_s=EVERY_S)

    async def tell(self) -> None:
        """Add up what is new. Counts that cannot be written now are part of the next report."""
        now = dict(self._counts())
        more = {}
        for shard, (fenced, late) in now.items():
            before = self._told.get(shard, (0, 0))
            if before != (fenced, late):
                more[shard] = (fenced - before[0], late - before[1])
        if not more:
            return  # nearly always: it takes a pause or a cut network
        try:
            await in_thread(self._add, more)
        except StoreError as error:
            logger.warning("the fence report could not be written, it is tried again: %s", error)
        else:
            self._told = now
