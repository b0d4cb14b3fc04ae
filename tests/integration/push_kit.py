"""A target's pool whose outcomes can be awaited, and services to push to."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from late.dispatcher.remote import RemotePool
from late.dispatcher.targets import Target
from late.task import Attempt, Outcome
from tests.unit.dispatcher_kit import NOW_US


class Pool:
    """A pool, and what it reported."""

    def __init__(self, target: Target, tasks: Mapping[str, Any]) -> None:
        self.outcomes: list[Outcome] = []
        self._news = asyncio.Event()
        self.pool = RemotePool(
            target,
            tasks,
            worker_id="w1",
            now_us=lambda: NOW_US,
            on_finished=self._finished,
            url="sqlite:///nowhere.db",
            rng=random.Random(1),
        )

    def _finished(self, batch: list[Outcome]) -> None:
        self.outcomes += batch
        self._news.set()

    async def run(self, *attempts: Attempt) -> list[Outcome]:
        """Submit, and wait for all of them."""
        before = len(self.outcomes)
        self.pool.submit(attempts)
        await self.ended(before + len(attempts))
        return self.outcomes[before:]

    async def one(self, attempt: Attempt) -> Outcome:
        [outcome] = await self.run(attempt)
        return outcome

    async def ended(self, count: int, limit_s: float = 30) -> None:
        async with asyncio.timeout(limit_s):
            while len(self.outcomes) < count:
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def pool_of(target: Target, tasks: Mapping[str, Any] | None = None) -> AsyncIterator[Pool]:
    """A started pool of `target`, stopped at the end."""
    made = Pool(target, tasks or {})
    await made.pool.start()
    try:
        yield made
    finally:
        await made.pool.stop(0)
