"""House-keeping: what one worker of the fleet does for all, from time to time."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from late import events
from late.errors import StoreError
from late.store.base import PruneReport

logger = logging.getLogger("late.house")


class Prunable(Protocol):
    """What house-keeping needs of a `Store`."""

    async def prune(self, *, journal_keep_s: float) -> PruneReport: ...


async def keep_house(
    store: Prunable,
    *,
    mine: Callable[[], bool],
    every_s: float,
    journal_keep_s: float,
    rng: random.Random,
    sweep: Callable[[], Awaitable[object]] | None = None,
    sweep_every_s: float = 600.0,
) -> None:
    """Prune every `every_s` while it is `mine` to do, until cancelled.

    `sweep`, for what is small and not urgent, has its first turn after a tenth of its time.

    Anyone may, one is enough: by convention whoever holds the lowest shard of one of its groups.
    """
    # Soon the first time: on PostgreSQL it lays out the partitions for what is to come.
    pause_s = min(1.0, every_s)
    swept_at = time.monotonic() - sweep_every_s * 0.9
    while True:
        await asyncio.sleep(pause_s * rng.uniform(0.8, 1.2))
        pause_s = every_s
        if not mine():
            continue
        began = time.monotonic()
        try:
            report = await store.prune(journal_keep_s=journal_keep_s)
            if sweep is not None and time.monotonic() - swept_at > sweep_every_s:
                swept_at = time.monotonic()
                await sweep()
        except StoreError as error:
            logger.warning("pruning failed, it is tried again: %s", error)
            continue
        events.default.emit(
            events.PRUNED,
            tasks=report.tasks,
            partitions=report.partitions,
            settlements=report.settlements,
            workers=report.workers,
            duration_s=time.monotonic() - began,
        )
