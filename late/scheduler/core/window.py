"""The in-flight window of the log: what was read and is not settled, and the checkpoint over it.

    checkpoint = (cursor, open):  every task that `cursor` covers is settled, except `open`

`cursor` stands at the last *started* record, not at the last read one: so `open` is about as long
as the concurrency, however long a slow task runs and however far ahead the tail has read.
Invariant: an entry with `index <= covered` is in `open` until it is settled; one with a higher
index is not covered by the cursor, so a successor reads it again from the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from itertools import filterfalse

from late.model.task import Cursor, OpenTask, TaskId
from late.scheduler.task_state import Entry
from late.store.base import Page, cursor_within

NONE: frozenset[str] = frozenset()


class Window:
    """Unsettled log records of one shard, in the order in which they were read."""

    def __init__(self, cursor: Cursor) -> None:
        self.entries: dict[str, Entry] = {}  # task id -> entry; insertion order = read order
        self.read_cursor: Cursor = cursor
        """The cursor from which the tail reads on: it covers everything that was read."""
        self.bytes = 0
        """Bytes of the entries' payloads."""
        self._covered = 0
        self._read = 0
        self._uncounted: list[Entry] = []  # those that `arrived` has not told, by index
        self._base = cursor  # the checkpoint's cursor when nothing of the present pages is covered
        self._edge: Entry | None = None  # the last covered entry after `_base`

    def __len__(self) -> int:
        return len(self.entries)

    def reopen(self, entry: Entry) -> None:
        """Take in a record of the checkpoint's `open`: covered from the start."""
        entry.index = 0
        self.entries[entry.record.task_id] = entry
        self.bytes += len(entry.record.payload)

    def append(self, entries: Sequence[Entry], page: Page) -> None:
        """Take in all of a page before any of it is covered: `cursor` may be the page's own only
        when nothing of the page is left behind it."""
        self._base, self._edge = self.cursor, None
        known, window, size = self.entries, page.window, 0
        for index, entry in enumerate(entries, self._read + 1):
            record = entry.record
            entry.index = index
            entry.window = window
            known[record.task_id] = entry
            size += len(record.payload)
        self.bytes += size
        self._read += len(entries)
        self._uncounted += entries
        self.read_cursor = page.cursor

    def drop(self, entry: Entry) -> None:
        """Take an entry out again that `append` took in: there is nothing to do for it."""
        self.bytes -= len(entry.record.payload)
        self.cover(entry)  # and all before it: a successor must not find it behind the cursor

    def cover(self, entry: Entry) -> None:
        """Move the checkpoint's cursor to `entry` at least: it was started, parked or ended."""
        if entry.index is not None and entry.index > self._covered:
            self._covered = entry.index
            self._edge = entry

    def cover_all(self, entries: Iterable[Entry]) -> None:
        """Do as `cover` for each."""
        for entry in entries:
            index = entry.index
            if index is not None and index > self._covered:
                self._covered, self._edge = index, entry

    def forget_all(self, task_ids: Iterable[TaskId]) -> list[TaskId]:
        """Forget tasks that are settled or in the timer table; return those that were not here."""
        absent, size, entries = [], 0, self.entries
        for task_id in task_ids:
            entry = entries.pop(task_id, None)
            if entry is None:
                absent.append(task_id)
            else:
                size += len(entry.record.payload)
        self.bytes -= size
        return absent

    @property
    def cursor(self) -> Cursor:
        """The checkpoint's cursor: it covers every entry with `index <= covered`, and no other."""
        if self._covered == self._read:
            # Nothing read is left uncovered: the page's own cursor covers at least as much, and
            # it moves on where no record does (an idle shard must not hold back the pruning).
            return self.read_cursor
        return (
            self._base
            if self._edge is None
            else cursor_within(self._edge.window, self._edge.record)
        )

    def unwritten_starts(self) -> set[TaskId]:
        """Return the tasks that run, and the journal does not have it."""
        found = set()
        for entry in self.entries.values():
            if entry.index is not None and entry.index > self._covered:
                break
            if entry.state == "running" and not entry.start_written:
                found.add(entry.record.task_id)
        return found

    def arrived(self) -> list[Entry]:
        """Return the entries that the cursor has come to cover since the last call.

        All owners of the shard together return each record once, if what they make of it is
        settled with the cursor.
        """
        found = self.uncounted()
        self._uncounted = self._uncounted[len(found) :]
        return found

    def uncounted(self) -> list[Entry]:
        """Return what `arrived` would, and leave it there: see `counted`."""
        return self._uncounted[: len(self._uncounted) - (self._read - self._covered)]

    def counted(self, count: int) -> None:
        """Forget so many of the first that `uncounted` has returned: the journal has them."""
        self._uncounted = self._uncounted[count:]

    def open(
        self, *, without: AbstractSet[str], waiting: AbstractSet[str] = NONE
    ) -> tuple[OpenTask, ...]:
        """Return the tasks that the cursor covers and the present settlement does not settle.

        Args:
            without: the tasks that it settles.
            waiting: tasks whose attempt is handed over and has not begun.
        """
        found, covered = [], self._covered
        for task_id in filterfalse(without.__contains__, self.entries):
            entry = self.entries[task_id]
            index = entry.index
            if index is not None and index > covered:
                break
            started = entry.start_written = entry.state == "running" and task_id not in waiting
            record = entry.record
            found.append(OpenTask(record.position, record.task_id, started))
        return tuple(found)
