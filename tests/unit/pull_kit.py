"""A pulled queue whose attempts are fed by hand and whose outcomes can be awaited."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from late.dispatcher.pull.pool import PullPool
from late.dispatcher.pull.pools import receive
from late.dispatcher.pull.queue import PullLease
from late.model.task import Kind, Outcome
from tests.unit.dispatcher_kit import NOW_US


class Pulled:
    """A pool, the time that it goes by, and what it reported."""

    def __init__(self, queue: str = "payments") -> None:
        self.outcomes: list[Outcome] = []
        self.now = 1_000.0
        self.wakes = 0
        self.trusted = True
        self._news = asyncio.Event()
        self._asked = asyncio.Event()
        self.pool = PullPool(
            queue,
            now_us=lambda: NOW_US + round((self.now - 1_000.0) * 1_000_000),
            on_finished=self._finished,
            wake=self._woken,
            trusted=lambda: self.trusted,
            rng=random.Random(1),
            clock=lambda: self.now,
        )

    def _woken(self) -> None:
        self.wakes += 1
        self._asked.set()

    def _finished(self, batch: list[Outcome]) -> None:
        self.outcomes += batch
        self._news.set()

    @property
    def kinds(self) -> list[Kind]:
        return [outcome.kind for outcome in self.outcomes]

    async def ended(self, count: int) -> list[Outcome]:
        async with asyncio.timeout(120):
            while len(self.outcomes) < count:
                self._news.clear()
                await self._news.wait()
        return self.outcomes

    async def take(self, limit: int = 1, **options: Any) -> list[PullLease]:
        asked = {"wait_s": 5.0, "visibility_s": 30.0, "consumer": "c1"} | options
        found = await receive([self.pool], asked.pop("group", "default"), limit=limit, **asked)
        return [hold for _, hold in found]

    async def taking(self, limit: int = 1, **options: Any) -> asyncio.Task[list[PullLease]]:
        """Start `take`, up to where it waits."""
        task = asyncio.create_task(self.take(limit, **options))
        await self.room(limit)
        return task

    async def room(self, least: int = 1) -> None:
        """Until consumers wait for so many."""
        async with asyncio.timeout(120):
            while self.pool.room < least:
                self._asked.clear()
                await self._asked.wait()


@asynccontextmanager
async def pulled(queue: str = "payments") -> AsyncIterator[Pulled]:
    rig = Pulled(queue)
    await rig.pool.start()
    try:
        yield rig
    finally:
        await rig.pool.stop(0)
