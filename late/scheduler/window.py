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

from late.scheduler.entry import Entry
from late.store.base import Page, cursor_within
from late.task import Cursor, OpenTask, TaskId


class Window:
    """Unsettled log records of one shard, in the order in which they were read."""

    def __init__(self, cursor: Cursor) -> None:
        self.entries: dict[str, Entry] = {}  # task id -> entry; insertion order = read order
        self.read_cursor: Cursor = cursor
        """Where the tail goes on: covers everything read."""
        self.bytes = 0
        """Payload of the entries."""
        self._covered = 0
        self._read = 0
        self._counted = 0  # index up to which `arrived` has been told
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
        known, window = self.entries, page.window
        for index, entry in enumerate(entries, self._read + 1):
            record = entry.record
            entry.index = index
            entry.window = window
            known[record.task_id] = entry
            self.bytes += len(record.payload)
        self._read += len(entries)
        self.read_cursor = page.cursor

    def cover(self, entry: Entry) -> None:
        """`entry` was started, parked or ended: the checkpoint's cursor reaches at least to it."""
        if entry.index is not None and entry.index > self._covered:
            self._covered = entry.index
            self._edge = entry

    def cover_all(self, entries: Iterable[Entry]) -> None:
        """`cover` of each."""
        for entry in entries:
            if entry.index is not None and entry.index > self._covered:
                self._covered = entry.index
                self._edge = entry

    def forget_all(self, task_ids: Iterable[TaskId]) -> list[TaskId]:
        """The tasks are settled, or durable in the timer table; those that were not here."""
        absent = []
        for task_id in task_ids:
            entry = self.entries.pop(task_id, None)
            if entry is None:
                absent.append(task_id)
            else:
                self.bytes -= len(entry.record.payload)
        return absent

    @property
    def cursor(self) -> Cursor:
        """Of the checkpoint: covers every entry with `index <= covered`, and no other."""
        if self._covered == self._read:
            # Nothing read is left uncovered: the page's own cursor covers at least as much, and
            # it moves on where no record does (an idle shard must not hold back the pruning).
            return self.read_cursor
        return (
            self._base
            if self._edge is None
            else cursor_within(self._edge.window, self._edge.record)
        )

    def arrived(self) -> list[Entry]:
        """Entries that the cursor has come to cover since the last call. Each record is told once
        by all owners of the shard together, if what is made of it is settled with the cursor."""
        if self._counted == self._covered:
            return []
        counted, self._counted = self._counted, self._covered
        # None of them can have been forgotten: for that its end would have been settled, and it
        # was covered when that settlement was built.
        found = []
        for entry in self.entries.values():
            if entry.index is not None and entry.index > counted:
                if entry.index > self._covered:
                    break
                found.append(entry)
        return found

    def open(self, *, without: AbstractSet[str]) -> tuple[OpenTask, ...]:
        """What the cursor covers and the settlement in hand (`without`) does not settle."""
        found = []
        covered = self._covered
        for task_id, entry in self.entries.items():
            if entry.index is not None and entry.index > covered:
                break
            if task_id not in without:
                found.append(OpenTask(entry.record.position, entry.record.task_id))
        return tuple(found)
