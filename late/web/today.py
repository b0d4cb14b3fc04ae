"""The sum of the day so far, read on from the journal whenever somebody looks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from late.control import Control
from late.control.today import Counted, Key
from late.threads import in_thread
from late.web.cost import Share, add, day_of


class Today:
    """The sum of the day so far, by the database's clock and in UTC; shared by all requests."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._lock = asyncio.Lock()
        self._read: Mapping[Key, int] = {}
        self.since_us = 0
        self.shares: dict[tuple[str, str], Share] = {}
        self.whole = False
        """All of the day was read."""

    async def look(self) -> None:
        """Read on: one bounded step.

        Raises:
            StoreError: what was read before stays.
        """
        async with self._lock:
            if not self.since_us:
                self.since_us = day_of(await in_thread(self._control.now))
            counted = await in_thread(self._control.usage_since, self.since_us, self._read)
            if day_of(counted.now_us) != self.since_us:
                # Midnight: what was read belongs to yesterday, and the new day begins empty.
                self.since_us, self.shares, self._read = day_of(counted.now_us), {}, {}
                counted = await in_thread(self._control.usage_since, self.since_us, {})
            self.take(counted)

    def take(self, counted: Counted) -> None:
        """Add what was read."""
        add(self.shares, counted.usage)
        self._read, self.whole = counted.read, counted.whole
