"""Carry out commands: records of the log that say what to do with another task of their shard.

`cancel`, `reschedule` and `redrive` are appended like tasks, so they too can be part of a caller's
transaction, and the shard's owner stays the only writer of its state. Pure: a command acts on a
task through the `TaskActions` that the core hands in.

A command is done when what it asked for is in the journal together with its own end, or when there
is nothing to do. Until then it is an unsettled record like any other: a successor finds it again.

A position is no order of causes: a page may hold a command before its task. Whoever could name the
task had seen it committed, or wrote it in the same transaction; so it is among the records up to
the end of the pages in which the command came. Only after that, and a look into the timer table, a
task that is not found has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import msgspec

from late.errors import DecodeError
from late.model.task import HELD_US, TaskId
from late.payload.command import CHANGED, CLOSED, NAMES, Command, closed_version, decode
from late.scheduler.core.ordering_keys import OrderingKeys
from late.scheduler.core.timers import Timers
from late.scheduler.core.window import Window
from late.scheduler.events_effects import Load
from late.scheduler.outcome_rules import Verdict
from late.scheduler.task_state import Entry
from late.store.base import Revival

LOAD_MAX = 100
MISSED_MAX = 1_000
MISSED_US = 60_000_000
"""So many cancels are kept in mind whose task was not found, and for so long: it may be a stage
that another shard starts at this moment."""
PUT_OFF_US = 1_000_000
"""So long a command leaves the window when that is full and its task was not read yet."""


class _Waiting(msgspec.Struct, eq=False):
    entry: Entry
    command: Command
    needs: int
    """Ends of pages that must have been seen before its task counts as read."""
    loading: bool = False
    looked: bool = False
    """The timer table does not hold its task."""
    applied: bool = False
    """Its task is on its way to the timer table, perhaps not with the next settlement."""
    covered: bool = False
    """The next checkpoint has it among its open tasks."""


class TaskActions(Protocol):
    """The ways in which a command may act on a task that is in memory and not running."""

    def finish_unrun(self, entry: Entry, state: str) -> None:
        """End it without an attempt; its ordering key goes on."""

    def reschedule(self, entry: Entry, due_at_us: int) -> None:
        """Let it wait in the timer table until `due_at_us`."""

    def dead_letter(self, entry: Entry, reason: str) -> None:
        """Make it a dead letter."""

    def cancel_workflow(self, task_id: TaskId) -> None:
        """Cancel the workflow of this task, if it has one."""


class Commands:
    """The commands of one shard that wait for something."""

    def __init__(
        self,
        group: str,
        window: Window,
        timers: Timers,
        keys: OrderingKeys,
        actions: TaskActions,
        revive: Callable[[Revival], None],
        closed: Callable[[TaskId, int], None] = lambda closing, version: None,
        *,
        shadow: bool = False,
    ) -> None:
        self._group = group
        self._closed = closed
        self._window = window
        self._timers = timers
        self._keys = keys
        self._actions = actions
        self._revive = revive
        self._shadow = shadow
        self.waiting: dict[TaskId, _Waiting] = {}
        """By the command's own id, in the order in which they were read."""
        self._reviving: set[TaskId] = set()
        """Dead letters that the next settlement may bring back: in no table that can be asked."""
        self.unwritten = False
        """True while a command waits for a task that runs, and the journal does not have that."""
        self.missed: dict[TaskId, int] = {}
        """Cancelled tasks that were not found, and until when they are refused, oldest first."""
        self._ends = 0  # how often the tail has reached the end of what there is
        self._now_us = 0

    def arrived(self, entry: Entry) -> bool:
        """Take in `entry` if it is a command, which is due. False: it is a task."""
        try:
            if entry.record.name == CLOSED:
                self._closed(entry.record.task_id, closed_version(entry.record))
            if entry.record.name in (CLOSED, CHANGED):
                self._conclude(entry, "done")
                return True
            command = decode(entry.record)
        except DecodeError as error:
            self._actions.dead_letter(entry, error.reason)
            return True
        if command is None:
            return False
        entry.move("ready")
        # From a page: the present one may be the last of its pages. From the timer table: a read
        # that is on its way may have begun before its task was there.
        needs = self._ends + (1 if entry.timer_key is None else 2)
        waiting = _Waiting(entry, command, needs)
        self.waiting[entry.record.task_id] = waiting
        # A redrive of a stage is told to its workflow, which is the real group's.
        refused = self._shadow and command.kind == "redrive"
        if refused or command.group not in (None, self._group):
            self._done(waiting, "discarded")
        return True

    def page_read(self, *, more: bool) -> None:
        """Count a page; without `more`, all that had been committed before it was read."""
        self._ends += not more

    def run(self, now_us: int, *, full: bool) -> None:
        """Do what can be done. `full`: the tail stands still until the window gets shorter."""
        self._now_us = now_us
        before = -1
        while len(self.waiting) != before:
            before = len(self.waiting)
            for waiting in self._in_turn():
                self._try(waiting)
        for waiting in list(self.waiting.values()) if full else ():
            # What waits for more pages must not keep them from being read.
            if waiting.needs > self._ends and not waiting.applied:
                del self.waiting[waiting.entry.record.task_id]
                self._actions.reschedule(waiting.entry, now_us + PUT_OFF_US)

    def _in_turn(self) -> list[_Waiting]:
        """Return the first command of each task: they are carried out in the order of the log."""
        first: dict[TaskId, _Waiting] = {}
        for waiting in self.waiting.values():
            first.setdefault(waiting.command.task_id, waiting)
        return [w for task_id, w in first.items() if task_id not in self._reviving]

    def settled(self, revived: Sequence[Revival]) -> None:
        """Note that these letters are in the timer table now, if there were any."""
        self._reviving.difference_update(revival.task_id for revival in revived)

    def _try(self, waiting: _Waiting) -> None:
        command = waiting.command
        if command.kind == "redrive":
            self._reviving.add(command.task_id)
            self._revive(Revival(command.task_id, self._now_us, command.payload))
            self._done(waiting, "done")
        else:
            self._change(waiting, self._find(command.task_id))

    def _find(self, task_id: TaskId) -> Entry | None:
        return self._window.entries.get(task_id) or self._timers.parked.get(task_id)

    def _change(self, waiting: _Waiting, target: Entry | None) -> None:
        if waiting.applied:
            if target is None or target.state != "parked":
                self._done(waiting, "done")
            return
        if target is None:
            if waiting.looked and waiting.needs <= self._ends:
                self._ended(waiting)
            return
        waiting.looked = False
        if target.record.name in NAMES:
            self._done(waiting, "discarded")  # commands are not commanded
            return
        if target.state in ("running", "parked"):
            if target.state == "running" and not waiting.covered:
                # If this worker dies, its successor must have the command before it starts the task
                # again; beyond the cursor it would be read later.
                waiting.covered = self.unwritten = True
                self._window.cover(waiting.entry)
            return  # until the attempt has ended, or the row is in the table
        if target.state not in ("waiting", "held", "ready"):
            self._ended(waiting)
            return
        if waiting.command.kind == "cancel":
            self._actions.finish_unrun(target, "cancelled")
            self._done(waiting, "done")
        else:
            name = target.options.ordering_key
            if target.state == "held" and name is not None:
                self._keys.leave(name, target)
            self._actions.reschedule(target, waiting.command.due_us(waiting.entry.record))
            waiting.applied = True

    def _ended(self, waiting: _Waiting) -> None:
        """Conclude a command whose task has ended, or has not started: it may be a stage."""
        if waiting.command.kind == "cancel":
            task_id = waiting.command.task_id
            self._actions.cancel_workflow(task_id)
            self.missed[task_id] = self._now_us + MISSED_US
            if len(self.missed) > MISSED_MAX:
                del self.missed[next(iter(self.missed))]
        self._done(waiting, "discarded")

    def _done(self, waiting: _Waiting, word: str) -> None:
        del self.waiting[waiting.entry.record.task_id]
        self._conclude(waiting.entry, word)

    def _conclude(self, entry: Entry, word: str) -> None:
        if entry.state != "ready":
            entry.move("ready")
        entry.move("running")  # by the core itself, in no time
        self._actions.finish_unrun(entry, word)

    def was_missed(self, task_id: TaskId, now_us: int) -> bool:
        """Return whether a task that arrives now was cancelled a moment before; once for each."""
        return now_us < self.missed.pop(task_id, 0)

    def cancel_asked(self, task_id: TaskId) -> bool:
        """Return whether a cancel of the task waits for its end. Any thread may ask."""
        # A copy: the loop may take in the next command meanwhile.
        return any(
            w.command.kind == "cancel" and w.command.task_id == task_id
            for w in (list(self.waiting.values()) if self.waiting else ())
        )

    def overruled(self, entry: Entry, verdict: Verdict) -> Verdict:
        """Return the verdict on a task: one that was cancelled as it ran has no other attempt."""
        if verdict.final is not None or not self.cancel_asked(entry.record.task_id):
            return verdict
        return msgspec.structs.replace(
            verdict, word="cancelled", final="cancelled", parked=None, again=False
        )

    def load(self) -> Load | None:
        """Return the load that looks for tasks in the timer table, or None."""
        wanted = [
            waiting
            for waiting in self._in_turn()
            if waiting.needs <= self._ends
            and not waiting.loading
            and not waiting.looked
            and self._find(waiting.command.task_id) is None
        ][:LOAD_MAX]
        if not wanted:
            return None
        for waiting in wanted:
            waiting.loading = True
        ids = tuple(dict.fromkeys(waiting.command.task_id for waiting in wanted))
        return Load(until_us=HELD_US, limit=len(ids), task_ids=ids)

    def looked(
        self, request: Load, *, failed: bool = False, changed: Collection[TaskId] = ()
    ) -> None:
        """Note that the answer to a load has come, and that what it found is in memory.

        Rows that `changed` meanwhile are asked for again: a cancel would find nothing, and end.
        """
        for waiting in self.waiting.values():
            if waiting.loading and waiting.command.task_id in request.task_ids:
                waiting.loading = False
                waiting.looked = not failed and waiting.command.task_id not in changed
