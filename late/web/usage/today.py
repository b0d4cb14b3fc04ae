"""The sum of the day so far; each visit reads more of the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from late.concurrency import in_thread
from late.control import Control
from late.control.status.usage import ROWS, Key, UsageRead
from late.web.models.cost import Share, add, day_of

GLANCE_S = 0.1
"""Seconds that a page waits for a read; the rest is read in the background."""
STEPS = 10
"""Steps in which one visit's share of the journal is read; pages are served between two of them."""


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
        """The whole day was read."""

    @property
    def reading(self) -> bool:
        """A read is running, and more will be there in a moment."""
        return self._reading is not None and not self._reading.done()

    async def look(self) -> None:
        """Read a bounded share more, and wait for it only for a short time.

        Raises:
            StoreError: the read failed; the values that were read before stay.
        """
        if not self.reading:
            self._reading = asyncio.create_task(self._read_on(), name="late-today")
            # If nobody waits for this read any more, the next visit reads on and shows the error.
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
        """Wait for a running read of the database."""
        self._closing = True
        if self._reading is not None:
            await asyncio.wait({self._reading})

    async def _read_on(self) -> None:
        if not self.since_us:
            self.since_us = day_of(await in_thread(self._control.now))
        for _ in range(STEPS):
            counted = await self._step()
            if day_of(counted.now_us) != self.since_us:
                # It is after midnight: the old sums are yesterday's, and the new day begins empty.
                self.since_us, self.shares, self._read = day_of(counted.now_us), {}, {}
                counted = await self._step()
            self.take(counted)
            if self.whole or self._closing:
                return

    async def _step(self) -> UsageRead:
        usage = self._control.status.usage_since
        return await in_thread(usage, self.since_us, self._read, rows=ROWS // STEPS)

    def take(self, counted: UsageRead) -> None:
        """Add the counts of one read."""
        if counted.anew:
            self.shares = {}
        add(self.shares, counted.usage)
        self._read, self.whole = counted.read, counted.whole
