"""Due times of one shard: a heap of what is near, and how much of the timer table is in memory.

The timer table may hold ten million tasks due tomorrow; memory holds what is due within the
horizon, at most `timers_max`. `loaded` is the key range (due_at_us, task_id) of the table that is
in memory completely: every parked task with a key at or below it is here. Rows that others insert
below it (a redrive) are found by a scan of what is overdue every `RESCAN_US`, a page at a time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from late.clock import was_set_back
from late.model.task import Parked
from late.scheduler.events_effects import Load
from late.scheduler.settings import NEVER_US
from late.scheduler.task_state import Entry

RESCAN_US = 5_000_000
"""From the last page of a scan to the first of the next."""
SCAN_ON_US = 2_000_000
"""From one page of a scan to the next: a crowd that waits for its settings is long, and known."""
LOAD_MAX = 250
"""Rows of a load. They are taken in one step of the worker's loop: a thousand held everything else
up by 10 ms, page after page."""
DUE_MAX = 500
_FIRST = (0, "")
_LAST = "ffffffff-ffff-ffff-ffff-ffffffffffff"  # at or above every task id


class Timers:
    """Waiting entries by due time. Deletion is lazy: an entry whose state has moved is skipped."""

    def __init__(self, *, horizon_us: int, timers_max: int) -> None:
        self._heap: list[tuple[int, str, int, Entry]] = []
        self._pushed = 0
        self._horizon_us = horizon_us
        self._timers_max = timers_max
        self._loaded: tuple[int, str] = _FIRST
        self._scanned_at_us: int | None = None
        self._pause_us = RESCAN_US
        """From the last page of the scan to the next."""
        self._scan_after: tuple[int, str] = _FIRST
        """The key after which the scan goes on; `_FIRST`: none is under way."""
        self._scans = False  # the load that is out is a page of the scan
        self._load_out: Load | None = None
        self._asked = 0
        self._out: dict[int, int] = {}
        """Loads that are out, those of ordering keys included: their numbers, by identity."""
        self._gone: dict[tuple[int, str], int] = {}
        """Rows that were deleted while loads were out: the number of the last load that may still
        show them. What a later one shows was put there again, under the same key."""
        self._unfetched: dict[str, list[tuple[int, str, int, Entry]]] = {}
        """By pool, a second heap of those among them that `take_unclaimed` may give out."""
        self.parked: dict[str, Entry] = {}
        """Entries that are durable in the timer table and in memory, by task id."""

    def wait(self, entry: Entry) -> None:
        """Put `entry` (state `waiting`) on the heap."""
        self._pushed += 1
        entry.place = self._pushed  # it may stand here already, for the same time even
        item = (entry.due_at_us, entry.record.task_id, self._pushed, entry)
        heapq.heappush(self._heap, item)
        if entry.unfetched:
            heapq.heappush(self._unfetched.setdefault(entry.policy.target, []), item)

    def pop_due(self, now_us: int) -> list[Entry]:
        """Take out entries due at or before `now_us` that still wait, ascending by due time.

        At most `DUE_MAX`: ten thousand that are due in the same second would stop the worker's
        loop.
        """
        due: list[Entry] = []
        heap = self._heap
        while heap and heap[0][0] <= now_us and len(due) < DUE_MAX:
            _, _, place, entry = heapq.heappop(heap)
            if entry.state == "waiting" and entry.place == place:
                due.append(entry)
        for target in list(self._unfetched):
            self._forget(target, due, now_us)
        return due

    def _forget(self, target: str, due: Sequence[Entry], now_us: int) -> None:
        """Drop from the heap of a pool the entries that are due or wait no more."""
        heap, gone = self._unfetched[target], {id(entry) for entry in due}
        while heap and heap[0][0] <= now_us and (id(heap[0][3]) in gone or _is_stale(heap[0])):
            heapq.heappop(heap)
        if not heap:
            del self._unfetched[target]

    def has_unfetched(self, target: str) -> bool:
        """Return whether `take_unclaimed` may find any of this pool."""
        return target in self._unfetched

    def take_unclaimed(self, target: str, most: int) -> list[Entry]:
        """Take out up to `most` entries of this pool that only wait to be fetched, first due first.

        A delay or a backoff of their own is long over.
        """
        heap = self._unfetched.get(target, [])
        found: list[Entry] = []
        while heap and len(found) < most:
            item = heapq.heappop(heap)
            if not _is_stale(item):
                found.append(item[3])
        if not heap:
            self._unfetched.pop(target, None)
        return found

    @property
    def loaded(self) -> tuple[int, str]:
        """Every parked task with a key at or below this is in memory."""
        return self._loaded

    def next_due_us(self) -> int | None:
        """Return when the next waiting entry is due, or an earlier time; None: there is none."""
        return self._heap[0][0] if self._heap else None

    def in_memory(self, key: tuple[int, str]) -> bool:
        """Return whether a row that was just parked under `key` is to be kept in memory.

        A load that is out may have read the table before the row was there: what lies in its
        range is kept too, or it would be missed until the next scan.
        """
        out = self._load_out
        return key <= self._loaded or (out is not None and key[0] <= out.until_us)

    def follow_clock(self, now_us: int) -> None:
        """Count the pause between two scans from the present, if the clock was set back."""
        if self._scanned_at_us is not None and was_set_back(now_us, self._scanned_at_us):
            self._scanned_at_us = now_us

    def load(self, now_us: int) -> Load | None:
        """Return the load to ask for now, or None; at most one load by time is out."""
        if self._load_out is not None:
            return None
        room = self._timers_max - len(self.parked)
        self._scans = self._scanned_at_us is None or now_us >= self._scanned_at_us + self._pause_us
        if self._scans:
            # The next page of what is overdue: finds what others have put there. Where nothing is
            # parked it takes the horizon along, or an idle shard would ask twice.
            self._scanned_at_us = now_us
            idle = not self.parked and self._loaded != _FIRST
            until_us = now_us + (self._horizon_us if idle else 0)
            request = Load(until_us=until_us, limit=LOAD_MAX, after=self._scan_after)
        elif room > self._timers_max // 2 and now_us >= self._loaded[0] - self._horizon_us // 2:
            # A page that its limit has cut is not followed by the next until that is near: all of
            # the horizon at once, in every shard at the same moment, held everything else up.
            request = Load(
                until_us=now_us + self._horizon_us, limit=min(LOAD_MAX, room), after=self._loaded
            )
        else:
            return None
        self._load_out = request
        return self.asked(request)

    def load_at_us(self) -> int:
        """Return when `load` asks for something by time alone."""
        if self._load_out is not None:
            return NEVER_US
        if self._scanned_at_us is None:
            return 0
        at_us = self._scanned_at_us + self._pause_us
        if self._timers_max - len(self.parked) > self._timers_max // 2:
            at_us = min(at_us, self._loaded[0] - self._horizon_us // 2)
        return at_us

    def asked(self, request: Load) -> Load:
        """Note that `request` is out; returns it."""
        self._asked += 1
        self._out[id(request)] = self._asked
        return request

    def rows_changed(self, keys: Iterable[tuple[int, str]], *, new: bool) -> None:
        """Note that these rows are deleted: a load that read the table before must not bring them
        back. `new`: there are others that are due now and not in memory."""
        if new:
            self._scanned_at_us = None
        if self._out:
            self._gone |= dict.fromkeys(keys, self._asked)

    def answer(self, request: Load, rows: Sequence[Parked]) -> list[Parked]:
        """Return the rows of an answer that are new: neither in memory nor deleted meanwhile."""
        number = self._out[id(request)]
        keys = [(row.due_at_us, row.record.task_id) for row in rows]
        fresh = [
            row
            for key, row in zip(keys, rows, strict=True)
            if self._gone.get(key, 0) < number and row.record.task_id not in self.parked
        ]
        if request is self._load_out:
            full = len(keys) >= request.limit
            reached = keys[-1] if full else (request.until_us, _LAST)
            # A scan from the beginning says nothing of a range that begins above what is loaded.
            if request.after <= self._loaded <= reached:
                self._loaded = reached
            if self._scans:  # what is above `loaded` will be read for its time
                goes_on = full and reached < self._loaded
                self._scan_after = reached if goes_on else _FIRST
                self._pause_us = SCAN_ON_US if goes_on else RESCAN_US
        self._ended(request)
        return fresh

    def failed(self, request: Load) -> None:
        """Note that `request` did not reach the table; the next `load` asks again."""
        if request is self._load_out and self._scans:
            self._scanned_at_us = None
        self._ended(request)

    def _ended(self, request: Load) -> None:
        if request is self._load_out:
            self._load_out = None
        del self._out[id(request)]
        if not self._out:
            self._gone.clear()

    def shrink(self) -> list[Entry]:
        """Forget the later half of what only waits, if there is too much in memory; return it.

        They stay in the table; `loaded` moves back, so that they are loaded again in time.
        """
        if len(self.parked) <= self._timers_max:
            return []
        waiting = sorted(
            e.timer_key for e in self.parked.values() if e.state == "waiting" and e.timer_key
        )
        if not waiting:
            return []
        cut = waiting[min(self._timers_max // 2, len(waiting) - 1)]
        self._loaded = min(self._loaded, cut)
        out = [
            e
            for e in self.parked.values()
            if e.state == "waiting" and e.timer_key and e.timer_key > cut
        ]
        for entry in out:
            del self.parked[entry.record.task_id]
        gone = {id(e) for e in out}
        self._heap = [item for item in self._heap if id(item[3]) not in gone]
        heapq.heapify(self._heap)
        for target, items in list(self._unfetched.items()):
            kept = [item for item in items if id(item[3]) not in gone]
            heapq.heapify(kept)
            self._unfetched[target] = kept
            if not kept:
                del self._unfetched[target]
        return out


def _is_stale(item: tuple[int, str, int, Entry]) -> bool:
    """Return whether the entry waits no more, or waits in another place."""
    return item[3].state != "waiting" or item[3].place != item[2]
