"""The sum of the day so far, read on from the journal whenever somebody looks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from late.concurrency import in_thread
from late.control import Control
from late.control.status.usage import ROWS, Key, UsageRead
from late.web.models.cost import Share, add, day_of

GLANCE_S = 0.1
"""How long a page waits for what is being read; the rest is read behind it."""
STEPS = 10
"""In which one visit's share of the journal is read: between two of them pages are served."""


class Today:
    """The sum of the day so far, by the database's clock and in UTC; shared by all requests."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._reading: asyncio.Task[None] | None = None
        self._closing = False
        self._read: Mapping[Key, int] = {}
        self.since_us = 0
        self.shares: dict[tuple[str, str], Share] = {}
        self.whole = False
        """All of the day was read."""

    @property
    def reading(self) -> bool:
        """More of it will be there in a moment."""
        return self._reading is not None and not self._reading.done()

    async def look(self) -> None:
        """Read on: a bounded share, of which only what is quick is waited for.

        Raises:
            StoreError: what was read before stays.
        """
        if not self.reading:
            self._reading = asyncio.create_task(self._read_on(), name="late-today")
            # Where nobody waits for it any more, the next visit reads on and says what is wrong.
            self._reading.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        reading = self._reading
        assert reading is not None
        while not reading.done():
            await asyncio.wait({reading}, timeout=GLANCE_S)
            if self.since_us:
                break
        if reading.done():
            reading.result()

    async def close(self) -> None:
        """Wait for what is under way in the database."""
        self._closing = True
        if self._reading is not None:
            await asyncio.wait({self._reading})

    async def _read_on(self) -> None:
        if not self.since_us:
            self.since_us = day_of(await in_thread(self._control.now))
        for _ in range(STEPS):
            counted = await self._step()
            if day_of(counted.now_us) != self.since_us:
                # Midnight: what was read belongs to yesterday, and the new day begins empty.
                self.since_us, self.shares, self._read = day_of(counted.now_us), {}, {}
                counted = await self._step()
            self.take(counted)
            if self.whole or self._closing:
                return

    async def _step(self) -> UsageRead:
        usage = self._control.status.usage_since
        return await in_thread(usage, self.since_us, self._read, rows=ROWS // STEPS)

    def take(self, counted: UsageRead) -> None:
        """Add what was read."""
        add(self.shares, counted.usage)
        self._read, self.whole = counted.read, counted.whole
