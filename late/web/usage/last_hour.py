"""The last hour by minutes, from the journal: nobody needs to have watched."""

from __future__ import annotations

from collections.abc import Mapping

from late.concurrency import in_thread
from late.control import Control
from late.control.status.changes import Change
from late.control.status.usage import ROWS, Key, UsageRead
from late.web.models.history import HOUR_US, MINUTE_US, Slots, merge, slots_of
from late.web.usage.shared_read import STEPS, PacedRead

COUNTS_MAX = 200_000
"""Rows of usage that are read until the hour is whole. Where the journal has more, reading goes on
some minutes ago. The time that is left out is a gap, and what was known before it stays."""
NAMES_MAX = 5_000
"""The most names of tasks that are kept for the search box."""
SHORT_US = 5 * MINUTE_US


class LastHour(PacedRead):
    """Counts of each minute and key, and what has changed; shared by all requests."""

    def __init__(self, control: Control) -> None:
        super().__init__(control)
        self._read: Mapping[Key, int] = {}
        self._counts = self._now_us = self._from_us = 0
        self.until_us = 0
        """The time up to which all was read; 0 until that is known."""
        self.gaps: tuple[tuple[int, int], ...] = ()
        """The times between `since_us` and `until_us` that were left out."""
        self.minutes: Slots = {}
        self.changes: tuple[Change, ...] = ()
        self.names: dict[str, str] = {}
        """The names of tasks that were counted, each with its queue."""

    async def _read_share(self) -> None:
        if not self.since_us:
            self._now_us = await in_thread(self._control.now)
            self.since_us = self._from_us = _hour_before(self._now_us)
        status = self._control.status
        self.changes = await in_thread(status.changes_since, _hour_before(self._now_us))
        for _ in range(STEPS):
            read = (max(self.since_us, self._from_us), self._read)
            self.take(*await in_thread(self._step, *read))
            if self.whole or self._closing:
                break

    def _step(self, since_us: int, read: Mapping[Key, int]) -> tuple[UsageRead, Slots]:
        """Read and add up in a thread, so that pages are served meanwhile."""
        counted = self._control.status.usage_since(since_us, read, rows=ROWS // STEPS)
        return counted, slots_of(counted, MINUTE_US)

    def take(self, counted: UsageRead, minutes: Slots) -> None:
        """Add the counts of one read, and forget what is older than an hour.

        Args:
            minutes: the sums of `counted`.
        """
        self._now_us, begins_us = counted.now_us, _hour_before(counted.now_us)
        if counted.anew:
            self.minutes, self.gaps, self.until_us = {}, (), 0
            self.since_us = self._from_us = begins_us
        merge(self.minutes, minutes)
        for _, usage in counted.usage:
            if usage.name in self.names or len(self.names) < NAMES_MAX:
                self.names[usage.name] = usage.queue
        self._read, self.whole = counted.read, counted.whole
        if self.whole:
            self.until_us = counted.now_us
        self._counts = 0 if self.whole else self._counts + len(counted.usage)
        if self._counts > COUNTS_MAX:
            self._leave_out(counted.now_us // MINUTE_US * MINUTE_US - SHORT_US)
        self.since_us = max(self.since_us, begins_us)
        self.gaps = tuple(each for each in self.gaps if each[1] > begins_us)
        self.minutes = {at: each for at, each in self.minutes.items() if at >= begins_us}

    def _leave_out(self, from_us: int) -> None:
        """Go on at a later time; keep the minutes that were whole before."""
        self._counts, self._read, self._from_us = 0, {}, from_us
        whole_us = min(self.until_us // MINUTE_US * MINUTE_US, from_us)
        if whole_us <= self.since_us:
            self.minutes, self.since_us, self.until_us = {}, from_us, 0
            return
        self.minutes = {at: each for at, each in self.minutes.items() if at < whole_us}
        self.until_us = whole_us
        self.gaps = (*self.gaps, (whole_us, from_us))


def _hour_before(us: int) -> int:
    return us // MINUTE_US * MINUTE_US - HOUR_US
