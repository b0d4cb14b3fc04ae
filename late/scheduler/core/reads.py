"""What a core reads: pages of the log, the records of its checkpoint, parked tasks. Half of
`core.ShardCore`; what becomes of a task that was read is in the other half."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from late.model.task import HELD_US, Parked, Record
from late.scheduler import events_effects as m
from late.scheduler.core.commands import Commands
from late.scheduler.core.state import CoreState
from late.scheduler.task_state import Entry, first_due_us, from_parked, from_record


class CoreReads(CoreState, ABC):
    """See the module. The first are of the other half."""

    _commands: Commands

    @abstractmethod
    def _judge_new(self, entry: Entry) -> None:
        """See `ShardCore`."""

    @abstractmethod
    def _due(self, entry: Entry) -> None:
        """See `ShardCore`."""

    @abstractmethod
    def _start_head(self, entry: Entry | None) -> None:
        """See `ShardCore`."""

    def _ask(self, effects: list[m.Effect]) -> None:
        if self._stopped:
            return
        if not self._recovered and not self._asked_open:
            self._asked_open = True
            effects.append(m.Fetch(self.lease.open))
        if not self._recovered:
            return  # the checkpoint's open tasks come first in their ordering keys
        if not self._reading and not self._full:
            self._reading = True
            effects.append(m.Read(self._window.read_cursor))
        if self._now_us:
            effects.extend(self._timers.asked(load) for load in self._keys.loads())
            due = self._timers.load(self._now_us)
            if due is not None:
                effects.append(due)
            if self._commands and (look := self._commands.load()) is not None:
                effects.append(self._timers.asked(look))

    def _page_read(self, event: m.PageRead) -> None:
        self._reading = False
        page = event.page
        self._now_us = max(self._now_us, page.now_us)
        known = self._window.entries
        parked = self._timers.parked
        # A store may show a record again (`store/base.py`): what is here already is passed over.
        entries = [
            from_record(record, self._policies)
            for record in page.records
            if record.task_id not in known and record.task_id not in parked
        ]
        self._window.append(entries, page)
        for entry in entries:
            self._judge_new(entry)
        self._commands.page_read(more=page.more)

    def _open_fetched(self, records: Sequence[Record]) -> None:
        # In order of (sequence, id), so that the first of each ordering key holds it. A key that
        # is missing was pruned by hand: there is nothing left to run.
        self._recovered = True
        for record in sorted(records, key=lambda r: (r.sequence, r.task_id)):
            entry = from_record(record, self._policies)
            self._window.reopen(entry)
            self._judge_new(entry)

    def _parked_loaded(self, request: m.Load, parked: Sequence[Parked]) -> None:
        rows = self._timers.answer(request, parked)
        if self._calling.is_mine(request):
            self._called(request, parked, rows)
            return
        entries = [
            self._take_parked(row)
            for row in rows
            # In the window still: it is being parked right now, the journal's answer is to come.
            if row.record.task_id not in self._window.entries
        ]
        if request.held_key is None:
            for entry in entries:
                entry.move("waiting")
                self._timers.wait(entry)
            if request.task_ids:
                # A row that changed while this was on its way is there, and not as it was read.
                taken = {row.record.task_id for row in rows}
                changed = {r.record.task_id for r in parked if r.record.task_id not in taken}
                self._commands.looked(request, changed=changed)
            else:
                self._shrink()
            return
        for entry in entries:
            entry.move("held")
            entry.due_at_us = first_due_us(entry.record, entry.options)
            if entry.due_at_us > self._now_us:  # was rescheduled to an earlier time, unknown here
                entry.due_at_us = entry.record.created_at_us
            entry.held_since_us = self._now_us
        full = len(parked) >= request.limit
        self._start_head(self._keys.loaded(request.held_key, entries, full=full))

    def _call_back(self, effects: list[m.Effect]) -> None:
        """Consumers ask: what was put off because nobody did becomes ready, so that some of it is
        at hand at the next grant too."""
        asked = self._ready.asked()
        # Shared, as `flows` shares what it keeps: what is beyond that is put off again.
        most = max(1, self._settings.limited_max // 2 // max(1, len(asked)))
        wants: dict[str, int] = {}
        for pool in asked:
            few = most - self._ready.ready_for(pool)
            if few < (most + 1) // 2 or not self._calling.may_have((pool,)):
                continue
            called = self._timers.call_back(pool, few)
            for entry in called:
                self._unpostpone(entry)
            wants[pool] = few - len(called)
        if wants and (load := self._calling.load(wants, self._now_us)) is not None:
            effects.append(self._timers.asked(load))

    def _called(self, request: m.Load, parked: Sequence[Parked], rows: Sequence[Parked]) -> None:
        full = len(parked) >= request.limit
        last = (parked[-1].due_at_us, parked[-1].record.task_id) if full else None
        pool = self._calling.answered(last)
        for row in rows:
            # In the window still: it is being parked right now, and is heard of then.
            if row.reason == "unfetched" and row.record.task_id not in self._window.entries:
                target = from_record(row.record, self._policies).policy.target
                if target == pool:
                    self._unpostpone(self._take_parked(row))

    def _unpostpone(self, entry: Entry) -> None:
        entry.due_at_us = self._now_us  # that of its row was only the next look
        self._due(entry)

    def _shrink(self) -> None:
        for entry in self._timers.shrink():
            if entry.unfetched:
                self._calling.went(entry.policy.target)

    def _take_parked(self, row: Parked) -> Entry:
        record = row.record
        entry = from_parked(row, self._policies)
        self._timers.parked[record.task_id] = entry
        self.caution.recall(entry)
        if row.held_key is not None and row.due_at_us < HELD_US:
            self._keys.head_loaded(row.held_key, entry)
        return entry

    def _load_failed(self, request: m.Load | m.Fetch) -> None:
        if isinstance(request, m.Fetch):
            self._asked_open = False
            return
        if self._calling.is_mine(request):
            self._calling.failed()
        self._timers.failed(request)
        self._commands.looked(request, failed=True)
        if request.held_key is not None:
            self._keys.loaded(request.held_key, None, full=False)
