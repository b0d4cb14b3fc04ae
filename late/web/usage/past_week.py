"""The last seven days by hours, from the journal: nobody needs to have watched."""

from __future__ import annotations

from collections.abc import Mapping

from late.concurrency import in_thread
from late.control import Control
from late.control.status.usage import Key, UsageRead
from late.web.models.history import HOUR_US, Slots, merge, slots_of
from late.web.usage.shared_read import STEPS, PacedRead

WEEK_US = 168 * HOUR_US
ROWS = 2_000
"""Settlements of one shard that one visit reads."""
KEYS_MAX = 300
"""Keys of one hour that are kept, so that the week has a bound in memory. An hour with so many is a
gap for a key that it has not."""


class PastWeek(PacedRead):
    """Counts of each hour, group, queue and target; shared by all requests."""

    def __init__(self, control: Control) -> None:
        super().__init__(control)
        self._read: Mapping[Key, int] = {}
        self.first_us = 0
        """The time of the first count that was found; 0 without any."""
        self.until_us = 0
        """The time up to which all was read; 0 until that is known."""
        self.hours: Slots = {}

    async def _read_share(self) -> None:
        if not self.since_us:
            self.since_us = _week_before(await in_thread(self._control.now))
        for _ in range(STEPS):
            self.take(*await in_thread(self._step, self.since_us, self._read))
            if self.whole or self._closing:
                break

    def _step(self, since_us: int, read: Mapping[Key, int]) -> tuple[UsageRead, Slots]:
        """Read and add up in a thread, so that pages are served meanwhile."""
        counted = self._control.status.usage_since(since_us, read, rows=ROWS // STEPS)
        return counted, slots_of(counted, HOUR_US)

    def take(self, counted: UsageRead, hours: Slots) -> None:
        """Add the counts of one read, and forget what is older than the week.

        Args:
            hours: the sums of `counted`.
        """
        if counted.anew:
            self.hours, self.first_us, self.until_us = {}, 0, 0
        merge(self.hours, hours, KEYS_MAX)
        if counted.times:
            first = min(counted.times)
            self.first_us = min(self.first_us or first, first)
        self._read, self.whole = counted.read, counted.whole
        self.until_us = counted.now_us if self.whole else self.until_us
        self.since_us = max(self.since_us, _week_before(counted.now_us))
        self.hours = {at: each for at, each in self.hours.items() if at >= self.since_us}


def _week_before(us: int) -> int:
    """Return the beginning of the hour 167 hours before the present one."""
    return us // HOUR_US * HOUR_US + HOUR_US - WEEK_US
