"""The sum of the day so far; each visit reads more of the journal."""

from __future__ import annotations

from collections.abc import Mapping

from late.concurrency import in_thread
from late.control import Control
from late.control.status.usage import ROWS, Key, UsageRead
from late.web.models.cost import Share, add, day_of
from late.web.usage.shared_read import STEPS, SharedRead


class Today(SharedRead):
    """The sum of the day so far, by the database's clock and in UTC; shared by all requests."""

    def __init__(self, control: Control) -> None:
        super().__init__(control)
        self._read: Mapping[Key, int] = {}
        self._failed = False
        """The last read has failed: the next visit waits, so that the page says why."""
        self.shares: dict[tuple[str, str], Share] = {}

    @property
    def _will_do(self) -> bool:
        return bool(self._read) and not (self.whole or self._failed)

    async def _read_on(self) -> None:
        try:
            await self._read_share()
        except BaseException:
            self._failed = True
            raise
        self._failed = False

    async def _read_share(self) -> None:
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
