"""Find the task that kills workers. Kept per shard, and pure.

Nothing durable says which tasks a worker runs, for that would be a write per task. So the first
death names no task, and the next ones narrow it down:

1. Once a shard was taken from a worker which had not given it back, every task that the dead one
   can have been running is **marked** before it starts, by whoever owns the shard then. The mark is
   written by the settlements, a few tasks at a time; nothing else waits for it.
2. If this worker dies as well, its marks count as a death of each marked task. These are the
   **suspects**; they start **on trial**: marked, while nothing else is marked in the worker. What
   needs no mark goes on beside it. After `TRIAL_US` the next trial begins beside it: it may never
   end, and most of those that wait are innocent.
3. A task with `DEATHS_MAX` deaths, all but the first of them on trial, is a dead letter.

So a task that kills its worker costs four of them at most, and one that was merely near runs on
trial once and is free. A long task that was on trial during three deaths of other causes becomes a
dead letter too: that is the price, and an operator can redrive it.

A task that is rescheduled after the first death starts without a mark: it has another due time.
That costs one death more; so does each reset of the group, which ends the terms of all owners, the
dead ones' too, and a clock of the database that is set back after the first death: a delayed task
becomes due once more then, and seems to be younger than the death.

A mark ends with the attempt. Deaths are kept with a task that is parked (`late_timer.deaths`), and
go on being counted there, but it is no suspect any more: an attempt of its own has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set as AbstractSet

from late.clock import was_set_back
from late.model.task import HELD_US, Suspect, TaskId
from late.scheduler.events_effects import Care
from late.scheduler.task_state import Entry
from late.store.base import Lease

ENTRIES_MAX = 3_000
"""Records beyond a checkpoint's cursor that its writer can have read, so can have started: a window
and a page by default. With a larger window a killer beyond it is found one death later."""

TRIAL_US = 60_000_000
"""A trial that takes longer holds no other one up."""


class CrashSuspects:
    """The marks of one shard, and the tasks that are to be marked."""

    def __init__(self, lease: Lease) -> None:
        self._taken_at_us = lease.taken_at_us
        self.deaths = {s.task_id: s.deaths for s in lease.suspects if s.deaths}
        """Deaths of each suspect that has not ended, wherever it is."""
        self.marked: dict[TaskId, Entry] = {}
        """Tasks that run under a mark, or are about to."""
        self.asked: list[Entry] = []
        """Marks that wait for the next settlement."""
        self.out: list[Entry] = []
        """Marks of the settlement that is out."""
        self.crowd: deque[Entry] = deque()
        self.queue: deque[Entry] = deque()
        self.on_trial: TaskId | None = None
        """The suspect that is marked, if one is: no other may start in this worker."""
        self._trial_since_us = 0
        self.long: set[TaskId] = set()
        """Those of `marked` whose trial takes longer than `TRIAL_US`."""

    @property
    def unstarted(self) -> frozenset[TaskId]:
        """The tasks that start when their mark is in the journal."""
        return frozenset([entry.record.task_id for entry in (*self.asked, *self.out)])

    @property
    def waiting(self) -> int:
        """Tasks whose turn to be marked has not come."""
        return len(self.crowd) + len(self.queue)

    @property
    def marking(self) -> int:
        """Marks that are not in the journal yet: their tasks are as good as started."""
        return len(self.asked) + len(self.out)

    def recall_deaths(self, entry: Entry) -> None:
        """Note how many workers died under a task that has come into memory, by the marks and by
        its row of the timer table."""
        entry.deaths = max(entry.deaths, self.deaths.get(entry.record.task_id, 0))

    def needs_mark(self, entry: Entry) -> bool:
        """Return whether a task that was there when a worker died may only start under a mark."""
        if entry.record.task_id in self.deaths:
            return True
        assert self._taken_at_us is not None
        if entry.index is None:  # in the timer table, where what ran keeps its due time
            # But a row behind a key has none, and one that was asked for since the insert is lost.
            held = entry.timer_key is not None and entry.timer_key[0] == HELD_US
            return held or entry.postponed or entry.due_at_us <= self._taken_at_us
        return entry.index <= ENTRIES_MAX

    def is_wary_of(self, entry: Entry, until_us: int, now_us: int) -> bool:
        """Return whether a task may only start under a mark.

        Args:
            until_us: a task that was created later cannot have been with a worker that died. One
                that seems to be of the future can: the database's clock was set back since, and
                its due time says nothing either.
        """
        created_us = entry.record.created_at_us
        if was_set_back(now_us, created_us):
            return True
        since = until_us < created_us <= now_us
        return not (since and entry.record.task_id not in self.deaths) and self.needs_mark(entry)

    def defers(self, entry: Entry, care: Care, until_us: int, now_us: int) -> bool:
        """Keep a task that could start, if it has to wait for its turn to be marked; else False."""
        if not self.is_wary_of(entry, until_us, now_us):
            return False
        suspect = entry.record.task_id in self.deaths
        if suspect or care == "none":
            (self.queue if suspect else self.crowd).append(entry)
        return suspect or care == "none"

    def next_marked(self, slots: int, care: Care) -> list[Entry]:
        """Take out the tasks whose turn it is to be marked together."""
        if care == "none" or not self.crowd:
            return []
        return [self.crowd.popleft() for _ in range(min(slots, len(self.crowd)))]

    def next_trial(self, care: Care) -> list[Entry]:
        """Take out the suspect whose turn it is to be marked alone, if there is one."""
        free = care == "trial" and len(self.marked) == len(self.long)
        return [self.queue.popleft()] if free and self.queue else []

    def restricted(self, care: Care, now_us: int) -> Care:
        """Return what `care` leaves to the worker's other shards, beside what is marked here."""
        if self.on_trial is not None and not 0 <= now_us - self._trial_since_us < TRIAL_US:
            self.long.add(self.on_trial)
            self.on_trial = None
        if care == "none" or self.on_trial is not None:
            return "none"
        return "crowd" if len(self.marked) > len(self.long) else care

    def mark(self, entry: Entry, now_us: int) -> None:
        """Mark the task: it starts when the next settlement is in the journal, and not before."""
        task_id = entry.record.task_id
        self.marked[task_id] = entry
        self.asked.append(entry)
        if task_id in self.deaths:
            self.on_trial, self._trial_since_us = task_id, now_us

    def ended(self, task_id: TaskId, *, again: bool) -> None:
        """End the mark of a task, if it had one.

        With `again` the attempt says nothing: there will be another. Else the suspect is free; its
        row of the timer table, if any, keeps its deaths.
        """
        if self.marked.pop(task_id, None) is not None and not again:
            self.deaths.pop(task_id, None)
        self.long.discard(task_id)
        if self.on_trial == task_id:
            self.on_trial = None

    def told(self, without: AbstractSet[str] = frozenset()) -> tuple[Suspect, ...]:
        """Return the suspects and marks as they are, but for the tasks of `without`."""
        found = []
        for task_id in sorted((self.deaths.keys() | self.marked.keys()) - without):
            marked = self.marked.get(task_id)
            deaths = self.deaths.get(task_id, 0) if marked is None else marked.deaths
            found.append(Suspect(task_id, deaths, marked is not None))
        return tuple(found)
