"""The next settlement of a shard, as it is collected, and the one that is out.

Invariant: a settlement that is out never changes, so it may be written again while its outcome is
unknown; what happens meanwhile is collected for the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, get_args

import msgspec

from late.clock import was_set_back
from late.model.task import (
    DEFAULT_GROUP,
    Cursor,
    DeadLetter,
    EndDetail,
    Final,
    OpenTask,
    Outcome,
    Parked,
    Record,
    StepDetail,
    Suspect,
    TaskId,
)
from late.model.workflow import StageEnd
from late.scheduler.core.crash_suspects import CrashSuspects
from late.scheduler.core.window import NONE, Window
from late.scheduler.settings import NEVER_US, CoreSettings
from late.scheduler.task_state import POSTPONED, Entry
from late.scheduler.usage import UsageCounters
from late.store.base import Lease, Result, Revival, Settlement, Step, Tick

STARTS_US = 1_000_000
"""The least time from a settlement to one that tells of nothing but starts."""
ERROR_CHARS = 500
"""Characters of an error in a history: a settlement may carry thousands of them."""
_ENDS = frozenset(get_args(Final))
_NOTHING = StepDetail()
_encode = msgspec.json.Encoder().encode


class PendingSettlement:
    """Collects the ends and parkings of one shard into one settlement after the other."""

    def __init__(
        self, lease: Lease, settings: CoreSettings, tenant_of: Callable[[Record], str | None]
    ) -> None:
        self._lease = lease
        self._settings = settings
        self.seq = lease.seq
        self.cursor = lease.cursor
        """The cursor of the last settlement that is in the journal."""
        self._settled_at_us = 0
        self.usage = UsageCounters(tenant_of)
        self.out: Settlement | None = None
        self.awaited = False
        """True when somebody waits for what the next settlement carries."""
        self._ended: dict[TaskId, Entry] = {}
        self._parking: dict[TaskId, tuple[Entry, Parked]] = {}
        self._unparked: list[tuple[int, TaskId]] = []
        self._dead: list[DeadLetter] = []
        self._revived: dict[TaskId, Revival] = {}
        self._results: list[Result] = []
        self._steps: list[Step] = []
        self._released_keys: list[tuple[str, TaskId]] = []
        self._ended_ticks: list[tuple[str, TaskId]] = []
        self._ended_stages: list[StageEnd] = []
        self._out_ended: dict[TaskId, Entry] = {}
        self._out_parking: dict[TaskId, tuple[Entry, Parked]] = {}
        self._ran: set[TaskId] = set()
        """The tasks of `_parking` that have run; a delay or a setting has put off the rest."""
        self._out_ran: set[TaskId] = set()

    def __len__(self) -> int:
        """Count the tasks that wait for the next settlement."""
        return len(self._ended) + len(self._parking)

    @property
    def unrecorded(self) -> int:
        """Tasks that wait for the next settlement or are in the one that is out."""
        return len(self) + len(self._out_ended) + len(self._out_parking)

    @property
    def repeated(self) -> int:
        """Those of `unrecorded` that would run again if the worker died now."""
        return len(self._ended) + len(self._out_ended) + len(self._ran) + len(self._out_ran)

    @property
    def has_steps(self) -> bool:
        """True while steps of histories wait for the next settlement."""
        return bool(self._steps)

    def follow_clock(self, now_us: int) -> None:
        """Count the time without a settlement from the present, if the clock was set back."""
        if was_set_back(now_us, self._settled_at_us):
            self._settled_at_us = now_us

    def is_cursor_due(self, cursor: Cursor, now_us: int, *, last: bool) -> bool:
        """Return whether the cursor or steps of histories alone are worth a row.

        They are in the `last` settlement, and after a while: pruning follows the journal.
        """
        if cursor == self.cursor and not self._steps:
            return False
        return last or now_us - self._settled_at_us >= self._settings.idle_settle_us

    def starts_due_at_us(self) -> int:
        """Return when starts that the journal does not have are worth a row by themselves."""
        return NEVER_US if self.out is not None else self._settled_at_us + STARTS_US

    def due_at_us(self, cursor: Cursor) -> int:
        """Return when `is_cursor_due` becomes true by time alone."""
        if self.out is not None or (cursor == self.cursor and not self._steps):
            return NEVER_US
        return self._settled_at_us + self._settings.idle_settle_us

    def end(self, entry: Entry, result: bytes | None = None) -> None:
        """End the task in this group; `result` is JSON."""
        task_id = entry.record.task_id
        self._ended[task_id] = entry
        if entry.timer_key is not None:
            self._unpark(entry)
        if entry.policy.result_ttl_us:
            self.keep(entry, result)
        if entry.options.unique_key is not None:
            self.free([(entry.options.unique_key, task_id)])
        if entry.options.schedule is not None and self._lease.group == DEFAULT_GROUP:
            self.awaited = True
            self._ended_ticks.append((entry.options.schedule, task_id))
        if entry.options.stage:
            self.end_stage(StageEnd(task_id, entry.state, result))

    def end_stage(self, end: StageEnd) -> None:
        """Record the end of a stage. As for unique keys, that in the group that is always there."""
        if self._lease.group == DEFAULT_GROUP:
            self.awaited = True
            self._ended_stages.append(end)

    def keep(self, entry: Entry, result: bytes | None) -> None:
        """Keep the result of a task that has ended; nobody waits for that of a shadow."""
        if self._lease.reads.shadow:
            return
        self.awaited = True
        value = b'{"outcome":"%b","value":%b}' % (entry.state.encode(), result or b"null")
        self._results.append(Result(entry.record.task_id, value, entry.policy.result_ttl_us))

    def free(self, keys: Sequence[tuple[str, TaskId]]) -> None:
        """Free the unique keys of tasks that have ended, each with its task.

        Uniqueness and schedules are bound to the life of the task in the group that is always
        there; another group that is behind must not hold them.
        """
        if self._lease.group == DEFAULT_GROUP:
            self.awaited = True
            self._released_keys += keys

    def end_all(self, entries: Mapping[TaskId, Entry]) -> None:
        """End each of these; none has a row of the timer table. Besides, see `keep` and `free`."""
        self._ended.update(entries)

    def note(
        self,
        entry: Entry,
        event: str,
        now_us: int,
        outcome: Outcome | None = None,
        *,
        until_us: int | None = None,
        reason: str | None = None,
    ) -> None:
        """Add a step to the task's history, if one is kept.

        It is written with the end or the parking that it belongs to; one that belongs to neither
        (an interrupted attempt) is written with the next settlement.
        """
        if not entry.policy.history:
            return
        self.awaited = True
        if outcome is None:
            values: tuple[Any, ...] = (None, "", None, None, until_us or None, reason or None, None)
        else:
            values = (
                outcome.attempt.number,
                outcome.target,
                outcome.started_at_us,
                outcome.busy_us,
                until_us or None,
                reason or outcome.reason,
                outcome.error and outcome.error[:ERROR_CHARS],
            )
        record = entry.record
        detail = StepDetail(*values)
        if event in _ENDS:
            values += record.queue, record.name
            detail = EndDetail(*values)
        text = None if detail == _NOTHING else _encode(detail).decode()
        self._steps.append(Step(record.task_id, now_us, event, text))

    def dead(self, letter: DeadLetter) -> None:
        """Add a dead letter for a task that has ended."""
        self.awaited = True
        self._dead.append(letter)

    def revive(self, revival: Revival) -> None:
        """Send a dead letter back into the timer table, if there is one."""
        self.awaited = True
        self._revived[revival.task_id] = revival

    def park(self, entry: Entry, row: Parked, now_us: int, *, ran: bool) -> None:
        """Move the task to the timer table, under a new row if it had one; `ran`: it has run.

        A retry may start when its row is durable, and not before. What a limit or a key puts off
        is called back from its row as soon as it may run.
        """
        soon = row.due_at_us - now_us <= self._settings.soon_us
        self.awaited = self.awaited or soon or row.reason in ("held", *POSTPONED)
        self._parking[entry.record.task_id] = (entry, row)
        if ran:
            self._ran.add(entry.record.task_id)
        self._unpark(entry)

    def _unpark(self, entry: Entry) -> None:
        if entry.timer_key is not None:
            self._unparked.append((entry.timer_key[0], entry.record.task_id))

    def build(
        self,
        window: Window,
        ticks: tuple[Tick, ...],
        suspects: CrashSuspects,
        now_us: int,
        results: Sequence[Result] = (),
        waiting: AbstractSet[str] = NONE,
    ) -> Settlement:
        """Build the settlement of all that was collected; nothing may be out.

        Args:
            results: results besides those of tasks.
            waiting: tasks whose attempt is handed over and has not begun.
        """
        assert self.out is None
        self.usage.add_arrived(window.arrived(), now_us)
        if suspects.asked or suspects.out:
            waiting = suspects.unstarted | waiting
        later = self._beyond() if self._parking else {}
        unparked, steps = self._unparked, self._steps
        if later:
            for task_id in later:
                del self._parking[task_id]
            self._unparked = [timer for timer in unparked if timer[1] not in later]
            self._steps = [step for step in steps if step.task_id not in later]
        gone = self._ended.keys() | self._parking.keys()
        suspects.out, suspects.asked = suspects.asked, []
        self.out = self.compose(
            window.cursor,
            window.open(without=gone, waiting=waiting),
            suspects.told(),
            ticks=ticks,
            results=results,
        )
        self._unparked = [timer for timer in unparked if timer[1] in later] if later else []
        self._steps = [step for step in steps if step.task_id in later] if later else []
        self._out_ended, self._ended = self._ended, {}
        self._out_parking, self._parking = self._parking, later
        self._out_ran, self._ran = self._ran - later.keys(), self._ran & later.keys()
        self._dead, self._revived, self._results = [], {}, []
        self.awaited = bool(later)
        self._released_keys, self._ended_ticks, self._ended_stages = [], [], []
        return self.out

    def compose(
        self,
        cursor: Cursor,
        open_tasks: tuple[OpenTask, ...],
        suspects: tuple[Suspect, ...],
        *,
        mark: str = "",
        ticks: tuple[Tick, ...] = (),
        results: Sequence[Result] = (),
    ) -> Settlement:
        """Return the settlement of all that was collected.

        Args:
            mark: makes its name another than that of the next one with the same `seq`.
        """
        lease, seq = self._lease, self.seq + 1
        return Settlement(
            # Unique without a random: the epoch is new for every lease, and a fenced core never
            # builds again. The end of the owner's name, which is new for every process, tells a
            # copy of the database from the database.
            settlement_id=f"{lease.owner[-8:]}/{lease.epoch}/{seq}{mark}",
            group=lease.group,
            shard_id=lease.shard_id,
            seq=seq,
            epoch=lease.epoch,
            owner=lease.owner,
            cursor=cursor,
            open=open_tasks,
            usage=self.usage.take(),
            unparked=tuple(self._unparked),
            parked=tuple([row for _, row in self._parking.values()]),
            dead=tuple(self._dead),
            revived=tuple(self._revived.values()),
            results=(*self._results, *results),
            history=tuple(self._steps),
            ticks=ticks,
            ended_ticks=tuple(self._ended_ticks),
            released_keys=tuple(self._released_keys),
            ended_stages=tuple(self._ended_stages),
            suspects=suspects,
        )

    def _beyond(self) -> dict[TaskId, tuple[Entry, Parked]]:
        """Return the tasks that a later settlement parks: a database bounds a transaction.

        Until then each of them stays in `open` or in its row of the timer table. This settlement
        parks one at least, however large it is.
        """
        later: dict[TaskId, tuple[Entry, Parked]] = {}
        size = 0
        for task_id, (entry, row) in self._parking.items():
            size += len(row.record.payload)
            if size > self._settings.settle_bytes and size > len(row.record.payload):
                later[task_id] = (entry, row)
        return later

    def settled(
        self, now_us: int
    ) -> tuple[Settlement, dict[TaskId, Entry], dict[TaskId, tuple[Entry, Parked]]]:
        """Note that the settlement is in the journal; return it, what ended and what was parked."""
        settlement = self.out
        assert settlement is not None
        self.out = None
        self.seq, self.cursor, self._settled_at_us = settlement.seq, settlement.cursor, now_us
        ended, self._out_ended = self._out_ended, {}
        parked, self._out_parking = self._out_parking, {}
        self._out_ran = set()
        return settlement, ended, parked
