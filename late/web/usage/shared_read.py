"""A read of the journal that all visitors share, and that goes on in the background."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod

from late.control import Control

GLANCE_S = 0.1
"""Seconds that a page waits for a read; the rest is read in the background."""
LATER_S = 0.3
"""Seconds that a slow read lets pass first, so that the page is sent and drawn before it."""
OLD_S = 60.0
"""Seconds after which a page waits a moment for newer values than those it has."""
EVERY_S = 2.0
SHARE = 0.1
"""The part of all time that a paced read may take."""
STEPS = 10
"""Steps in which one visit's share of the journal is read; pages are served between two of them."""


class SharedRead(ABC):
    """Reads a bounded share more of the journal at each visit, one read at a time."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._reading: asyncio.Task[None] | None = None
        self._closing = False
        self.since_us = 0
        """The time from which on the journal is read; 0 until it is known."""
        self.whole = False
        """True if nothing since then is left to read."""

    @property
    def reading(self) -> bool:
        """A read is running, and more will be there in a moment."""
        return self._reading is not None and not self._reading.done()

    async def look(self) -> None:
        """Read a bounded share more, and wait for it only for a short time, or not at all if what
        is known will do.

        Raises:
            StoreError: the read failed; the values that were read before stay.
        """
        if not self.reading:
            self._reading = asyncio.create_task(self._read_later(), name="late-usage")
            # If nobody waits for this read any more, the next visit reads on and shows the error.
            self._reading.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        reading = self._reading
        assert reading is not None
        while not (reading.done() or self._will_do):
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

    async def _read_later(self) -> None:
        if self._will_do:
            await asyncio.sleep(LATER_S)
        await self._read_on()

    @property
    @abstractmethod
    def _will_do(self) -> bool:
        """A page shows what is known, since more would take too long."""

    @abstractmethod
    async def _read_on(self) -> None:
        """Read the share of one visit."""


class PacedRead(SharedRead):
    """Reads no more often than reading may take its share of the time."""

    _due_at = _ended = _took_s = 0.0

    async def look(self) -> None:
        if self.reading or time.monotonic() >= self._due_at:
            await super().look()

    @property
    def _will_do(self) -> bool:
        return self._took_s > GLANCE_S and time.monotonic() - self._ended < OLD_S

    async def _read_on(self) -> None:
        began = time.monotonic()
        try:
            await self._read_share()
            # A read that fails makes nothing newer: after a minute of these a page says it.
            self._ended, self._took_s = time.monotonic(), time.monotonic() - began
        finally:
            ended = time.monotonic()
            self._due_at = ended + max(EVERY_S, (ended - began) / SHARE)

    @abstractmethod
    async def _read_share(self) -> None:
        """Read the share of one visit."""
