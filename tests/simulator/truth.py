"""What is true in a simulated world, whoever believes what, and the judge of what is done in it.

| invariant | judged at |
|---|---|
| S1 epochs of accepted settlements grow, and only the newest settles | each settlement |
| S2 what is covered and no longer open or parked was executed, dead or expired | settlement |
| S3 a cursor never loses what it had covered | each settlement |
| S4 nothing that is final is started by who could know it | each start |
| S5 what is open in the journal, and read by a core, stays within the window | settlement, 0.5 s |
| S6 every task is in one place, is final once per group, and is counted once | each settlement |
| S7 nothing is started, parked or buried that was not committed | start, settlement |
| S8 nothing starts early by the database's clock | each start |
| S9 no more attempts than the policy has, and no dead letter before they are used up | both |
| S11 an attempt is burnt by a failure only: not by a snooze, an interruption, a takeover | start |
| S12 nothing is started by a worker whose heartbeat has run out | each start |
| S13 a tick is due, once; without overlap its predecessor has ended | each settlement |
| S14 one task of an ordering key at a time; in the order of the inserts, but on cockroach | start |
| S15 a unique key is free when its task has ended, and not before | each settlement |
| S16 a task takes down four workers at most; who is buried for it had an endless start | both |
| S20 an attempt is lost at most once, and only one that had begun | each settlement |

S10, the retry budget, is in `budget`, S17 to S19 are in `orders`, S22 is in `transactions`, S23 in
`background`, S24 in `limit_keys`, what must hold at the end is in `world`.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from late.model.queue_settings import QueueSettings
from late.model.task import (
    Attempt,
    Cursor,
    DeadLetter,
    OpenTask,
    Options,
    Parked,
    Policy,
    Record,
    Suspect,
)
from late.payload.command import NAMES
from late.scheduler.usage import LOST
from late.store.base import Settlement, Tick
from tests.simulator import limit_keys
from tests.simulator.budget import Budgets
from tests.simulator.logs import Log
from tests.simulator.orders import Orders

Shard = tuple[str, int]
"""(group, shard)."""

POLICY = Policy(max_attempts=5, base_us=200_000, cap_us=2_000_000)
"""Of the only task that there is."""
DEATHS_MAX = 3
"""Starts that took a worker down before a task is given up; one more names nobody."""
ENDS = ("done", "dead", "expired", "discarded", "cancelled")

TAKEOVER = "takeover/{}"
"""The id of the settlement that an acquire writes, with its epoch."""


class Broken(AssertionError):
    """A promise was broken; the message names the invariant."""


class Journal(msgspec.Struct):
    """The last settlement of one (group, shard), and who may write the next."""

    seq: int = 0
    epoch: int = 0
    cursor: Cursor = Cursor("")
    open: tuple[OpenTask, ...] = ()
    owner: str | None = None
    taken_at_us: int | None = None
    """When it was last taken from an owner who had not given it back."""
    suspects: tuple[Suspect, ...] = ()
    ids: dict[int, str] = msgspec.field(default_factory=dict)
    """seq -> settlement id: what retention has not taken yet."""
    lease_written: int = 0
    """Which write of all leases was the last one of this lease."""
    timers: dict[tuple[int, str], Parked] = msgspec.field(default_factory=dict)
    letters: dict[str, DeadLetter] = msgspec.field(default_factory=dict)


class Witness(msgspec.Struct):
    """What is true of one task in one group."""

    options: Options
    headers: str | None = None
    done: bool = False
    """A handler has ended it."""
    final: str | None = None
    """How the journal ended it."""
    final_epoch: int = 0
    starts: int = 0
    failures: int = 0
    """Attempts that ended with an error, in any process."""
    forgiven: int = 0
    """Those of them that were before it came back from the dead letters."""
    back_epoch: int = 0
    """Under which it did: who is older counts its attempts as they were."""
    again_epoch: int = 0
    """Since when it is read once more, by the last reset that was behind it."""
    hangs: int = 0
    """Those of them that had to be ended."""
    followed: int = 0
    """How many tasks of its own it has added, or tried to."""
    kills: int = 0
    """How many processes it took down."""
    first_killed_us: int = 0
    """When it took down the first of them, by the time that really passes."""
    spared: int = 0
    """How many resets there were since it was read: each can hide one of those."""
    spared_epoch: int = 0
    """Of the last of them."""
    hidden: int = 0
    """How many owners it took down whose terms a reset had ended, of which they did not know."""
    blamed: bool = False
    """Whether it was given up for that."""
    effects: int = 0
    """How many transactions have committed what its handler writes in that of its settlement."""
    deferrals: int = 0
    """Starts that ended without costing an attempt."""
    running: set[int] = msgspec.field(default_factory=set)
    """Epochs under which it is running."""

    @property
    def over(self) -> bool:
        """Whether its handler will not be called again, recorded or not."""
        return self.done or self.final is not None or self.burnt >= POLICY.max_attempts

    @property
    def burnt(self) -> int:
        """Failures that count against its attempts."""
        return self.failures - self.forgiven


Queued = tuple[int, str, Witness]
"""(sequence, task id, task)."""


class Clock(Protocol):
    """The database's clock; see `jumps.py`."""

    def elapsed_us(self) -> int: ...
    def longest_us(self) -> int: ...
    def latest_us(self) -> int: ...
    def earliest_us(self) -> int: ...
    def was_set_back(self, since_us: int) -> bool: ...


class Steady:
    """A clock that nobody sets."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self.elapsed_us = self.longest_us = self.latest_us = self.earliest_us = now_us


class Truth:
    """See the module."""

    def __init__(self, log: Log, now_us: Callable[[], int], groups: Sequence[str], window: int):
        self.log = log
        self.groups = tuple(groups)
        self.records: dict[str, Record] = {}
        """Every row that was ever committed, by task id."""
        self.witness: dict[str, dict[str, Witness]] = {group: {} for group in groups}
        self.unsettled: dict[Shard, set[str]] = defaultdict(set)
        self.ticks: dict[str, list[int]] = defaultdict(list)
        """Of each schedule, the times that have become a task: seconds, as its tasks know them."""
        self.tick_starts: dict[str, list[int]] = defaultdict(list)
        """Of each schedule, the first due time of each of its ticks: seconds."""
        self.verdicts: list[Broken] = []
        """What was found to be broken, in order."""
        self.killed_us = 0
        """When a handler last took its process down."""
        self._reset_epochs: dict[Shard, int] = {}
        """By the last reset of the shard: under a lower one nobody owns it any more."""
        self._stays: dict[Shard, set[str]] = defaultdict(set)
        """Tasks that a reset has left in the timer table: perhaps beyond the new cursor."""
        self.clock: Clock = Steady(now_us)
        self._window = window
        self._queues: dict[Shard, dict[str, list[Queued]]] = defaultdict(lambda: defaultdict(list))
        """(group, shard) -> ordering key -> its tasks in their order."""
        self._tick_tasks: dict[str, str] = {}
        self.once_done: set[str] = set()
        """Tasks that have ended as done in the first group, before a reset of it too."""
        self.once_failed: set[str] = set()
        """Those that have ended otherwise and were not cancelled."""
        self.orders = Orders()
        self.budgets = Budgets(QueueSettings())
        self.begun: set[tuple[str, str, int]] = set()
        """(group, task, epoch) of all attempts that have begun."""

    def broken(self, what: str) -> None:
        """A promise was broken, and whoever did it goes on: the world ends it."""
        self.verdicts.append(Broken(what))

    def committed(self, rows: Sequence[Record]) -> None:
        """These are in the log now."""
        for record in rows:
            if record.task_id in self.records:
                self.broken(f"S13: {record.task_id} is in the log twice")
            self.records[record.task_id] = record
            options = msgspec.json.decode(record.options or "{}", type=Options)
            for group in self.groups:
                witness = self.witness[group][record.task_id] = Witness(options, record.headers)
                self.unsettled[group, record.shard_id].add(record.task_id)
                if options.ordering_key is not None:
                    queue = self._queues[group, record.shard_id][options.ordering_key]
                    bisect.insort(queue, (record.sequence, record.task_id, witness))
        for record in rows:
            self.orders.committed(record, self.records)

    # ------------------------------------------------------------------ settlements

    def judge_lost(self, s: Settlement, journal: Journal) -> None:
        """`s` is accepted, `journal` is what it finds.

        Raises:
            Broken: S20.
        """
        lost = sum(usage.count for usage in s.usage if usage.outcome == LOST)
        taken_over = journal.ids[journal.seq] == TAKEOVER.format(s.epoch)
        known = sum(task.started for task in journal.open) if taken_over else 0
        if lost > known:
            raise Broken(f"S20: {lost} attempts of {s.group}/{s.shard_id} are lost, {known} began")
        for task in s.open:
            if task.started and (s.group, task.task_id, s.epoch) not in self.begun:
                raise Broken(f"S20: {task.task_id} is said to have begun under {s.epoch}")

    def judge(self, s: Settlement, journal: Journal, before: Cursor) -> None:
        """`s` was accepted, `journal` is what it has left.

        Raises:
            Broken: S2, S3, S5, S6, S7 or S9.
        """
        if s.cursor != before:
            had, has = self.log.covering(before), self.log.covering(s.cursor)
            for record in self.log.rows[s.shard_id]:
                if not has(record) and had(record):
                    raise Broken(f"S3: the cursor of {s.group}/{s.shard_id} lost {record.task_id}")
        if len(s.open) > self._window:
            raise Broken(f"S5: {len(s.open)} tasks of {s.group}/{s.shard_id} are open")
        self._judge_ends(s, journal)

    def _judge_ends(self, s: Settlement, journal: Journal) -> None:
        shard = (s.group, int(s.shard_id))
        places = [key.task_id for key in journal.open]
        places += [row.record.task_id for row in journal.timers.values()]
        accounted: set[str] = set(places)
        if len(accounted) != len(places):
            raise Broken(f"S6: a task of {shard} is in two places")
        if accounted - self.unsettled[shard]:
            task_id = min(accounted - self.unsettled[shard])
            known = "S6: {} is back" if task_id in self.records else "S7: {} was never committed"
            raise Broken(known.format(task_id))
        dead: dict[str, str] = {letter.record.task_id: letter.reason for letter in s.dead}
        ended, covered = 0, self.log.covering(s.cursor)
        for task_id in sorted(self.unsettled[shard] - accounted):
            record = self.records[task_id]
            if covered(record) or task_id in self._stays[shard]:
                self._end(s, record, dead.pop(task_id, None))
                ended += 1
        if dead:
            raise Broken(f"S6: {min(dead)} is a dead letter of {shard} and has not ended")
        counted = sum(usage.count for usage in s.usage if usage.outcome in ENDS)
        if counted != ended:
            raise Broken(f"S6: {counted} ends are counted of {shard}, {ended} have happened")

    def _end(self, s: Settlement, record: Record, dead: str | None) -> None:
        task_id = record.task_id
        witness = self.witness[s.group][task_id]
        expires_us = witness.options.expires_in_us
        if record.name in NAMES and dead is None:
            self.orders.ended(s.group, record, s.epoch)
            witness.final = "done"
        elif dead is not None:
            witness.final = "dead"
            if dead == "killed_worker":
                unended = witness.starts - witness.failures - witness.deferrals - witness.done
                # A mark counts from when it is written: the start itself may never have come.
                if unended < 1:
                    raise Broken(f"S16: {task_id} is dead ({dead}) and every start has ended")
                witness.blamed = True
            elif dead != "attempts_exhausted" or witness.burnt < POLICY.max_attempts:
                raise Broken(f"S9: {task_id} is dead ({dead}) after {witness.burnt} failures")
        elif witness.done:
            witness.final = "done"
        elif expires_us is not None and self.clock.latest_us() >= record.created_at_us + expires_us:
            witness.final = "expired"
        elif self.orders.cancels(task_id, s.group):
            witness.final = "cancelled"
        else:
            raise Broken(f"S2: {task_id} is settled in {s.group} and was never done")
        witness.final_epoch = s.epoch
        if s.group == self.groups[0]:
            if witness.final == "done":
                self.once_done.add(task_id)
            elif witness.final != "cancelled":
                self.once_failed.add(task_id)
        self.unsettled[s.group, record.shard_id].discard(task_id)

    def revived(self, group: str, record: Record, epoch: int) -> None:
        """A redrive has moved a dead letter; called once the settlement's ends are judged."""
        witness = self.witness[group][record.task_id]
        if witness.final != "dead":
            self.broken(f"S19: {record.task_id} came back, it is {witness.final}")
        witness.final, witness.forgiven = None, witness.failures
        witness.kills, witness.blamed, witness.back_epoch = 0, False, epoch
        self.orders.revived(group, record.task_id)
        self.unsettled[group, record.shard_id].add(record.task_id)

    def reset(self, shard: Shard, again: set[str], goes_on: set[str], epoch: int) -> set[str]:
        """The group begins anew: `again` is what it will read, `goes_on` what stays where it is;
        all else that was not settled is left out, and returned."""
        group = shard[0]
        for task_id in sorted(again):
            old = self.witness[group][task_id]
            self.orders.revived(group, task_id)  # it is read before what was asked of it
            if task_id in self.unsettled[shard] and not old.starts:
                old.again_epoch = epoch  # it may have been in memory, before what is parked
                continue
            new = Witness(
                old.options, old.headers, followed=old.followed, back_epoch=epoch, again_epoch=epoch
            )
            self.witness[group][task_id] = new
            self.unsettled[shard].add(task_id)
            if old.options.ordering_key is not None:
                queue = self._queues[shard][old.options.ordering_key]
                queue[:] = [(n, t, new if t == task_id else w) for n, t, w in queue]
        self._reset_epochs[shard] = epoch
        for task_id in goes_on:
            self.witness[group][task_id].spared += 1
            self.witness[group][task_id].spared_epoch = epoch
        self._stays[shard] = (self._stays[shard] - again) | goes_on
        left = self.unsettled[shard] - again - goes_on
        for task_id in left:
            self.witness[group][task_id].final = "left out"
            self.witness[group][task_id].final_epoch = epoch
        self.unsettled[shard] -= left
        if group == self.groups[0]:  # schedules know their tasks by the first end
            self._tick_tasks = {n: t for n, t in self._tick_tasks.items() if t not in again}
        return left

    def released(self, unique_key: str, task_id: str) -> None:
        """A settlement frees the key of a task; called once its ends are judged."""
        witness = self.witness[self.groups[0]].get(task_id)
        if witness is None or witness.final is None:
            self.broken(f"S15: {unique_key} is free and {task_id} has not ended")

    def ticked(self, tick: Tick, overlap: str) -> None:
        """A schedule has fired; called once the settlement's ends are judged."""
        name = tick.schedule
        if tick.due_at_us > self.clock.latest_us():
            self.broken(f"S13: a tick of {name} is early")
        self.tick_starts[name].append(tick.due_at_us // 1_000_000)
        for task in tick.tasks:
            due = msgspec.json.decode(task.headers or "{}")["late-due"]
            due_s = round(datetime.fromisoformat(due).timestamp())
            if due_s * 1_000_000 > self.clock.latest_us():
                self.broken(f"S13: the tick of {name} at {due} is early")
            if due_s in self.ticks[name]:
                self.broken(f"S13: the tick of {name} at {due} came twice")
            self.ticks[name].append(due_s)
            last = self.witness[self.groups[0]].get(self._tick_tasks.get(name, ""))
            if overlap == "skip" and last is not None and last.final is None:
                self.broken(f"S13: {name} came at {due}, and its last task has not ended")
            self._tick_tasks[name] = task.task_id

    def written(self, group: str, task_id: str, epoch: int) -> Witness:
        """What a handler writes is committed, and the end of its task is about to be."""
        witness = self.witness[group][task_id]
        witness.done = True
        witness.running.discard(epoch)
        witness.effects += 1
        if witness.effects > 1:
            self.broken(f"S22: what {task_id} writes is committed {witness.effects} times")
        return witness

    # ------------------------------------------------------------------ starts

    def started(
        self, attempt: Attempt, worker_id: str, alive_until_us: int, *, again: bool = False
    ) -> Witness | None:
        """A handler is about to be called; None if there is no such task.

        Args:
            again: it is the same attempt once more, since its transaction has failed.
        """
        record, now_us = attempt.record, self.clock.latest_us()
        witness = self.witness[attempt.group].get(record.task_id)
        if witness is None:
            self.broken(f"S7: {record.task_id} was started and never committed")
            return None
        options = witness.options
        if witness.final is not None and witness.final_epoch <= attempt.epoch:
            self.broken(f"S4: {record.task_id} was started, it is {witness.final}")
        delayed = 0 if self.orders.touched(record.task_id) else options.delay_us
        if now_us < attempt.due_at_us or now_us < record.created_at_us + delayed:
            self.broken(f"S8: {record.task_id} was started early")
        objection = self.orders.objection(attempt.group, record.task_id, attempt.epoch, now_us)
        if objection is not None:
            self.broken(objection)
        if attempt.number > POLICY.max_attempts:
            self.broken(f"S9: {record.task_id} has its attempt {attempt.number}")
        if attempt.epoch >= witness.back_epoch and attempt.number > witness.burnt + 1:
            self.broken(f"S11: attempt {attempt.number} after {witness.burnt} failures")
        if attempt.number > 1 and not again:
            objection = self.budgets.objection(worker_id, self.clock.longest_us())
            if objection is not None:
                self.broken(objection)
        self.begins(attempt)
        earliest_us = self.clock.earliest_us()
        if alive_until_us <= earliest_us:
            late_s = (earliest_us - alive_until_us) / 1e6
            self.broken(f"S12: {worker_id} started a task {late_s:.3f} s after its lease")
        if attempt.epoch in witness.running:
            self.broken(f"S14: {record.task_id} is started twice at once")
        if options.ordering_key is not None:
            self._judge_order(attempt, witness)
        witness.starts += 1
        witness.running.add(attempt.epoch)
        known = self.witness[attempt.group].values()
        objection = limit_keys.objection(self.budgets.settings, attempt, known)
        if objection is not None:
            self.broken(objection)
        return witness

    def begins(self, attempt: Attempt) -> None:
        """An attempt is not given back any more."""
        self.begun.add((attempt.group, attempt.record.task_id, attempt.epoch))

    def killed(self, attempt: Attempt, witness: Witness) -> None:
        """A handler takes its process down."""
        witness.kills += 1
        self.killed_us = self.clock.elapsed_us()
        if witness.kills == 1:
            witness.first_killed_us = self.killed_us
        task_id = attempt.record.task_id
        reset_epoch = self._reset_epochs.get((attempt.group, attempt.record.shard_id), 0)
        if attempt.epoch < reset_epoch != witness.spared_epoch:
            # It came, or is to be read again, after a reset that the owner does not know of yet.
            witness.hidden, witness.spared_epoch = witness.hidden + 1, reset_epoch
        hidden = witness.spared + witness.hidden + self.orders.touched(task_id)
        if witness.options.delay_us and self.clock.was_set_back(witness.first_killed_us):
            # It becomes due once more, and seems to be younger than that death.
            hidden += 1
        if witness.kills > 1 + DEATHS_MAX + hidden:
            self.broken(f"S16: {task_id} has taken down {witness.kills} workers")

    def _judge_order(self, attempt: Attempt, witness: Witness) -> None:
        key = witness.options.ordering_key or ""
        queue = self._queues[attempt.group, attempt.record.shard_id][key]
        before = True
        for _, task_id, other in queue:
            if other is witness:
                before = False
            elif attempt.epoch in other.running:
                self.broken(f"S14: two tasks of {key} run at a time")
            elif (
                before
                and self.log.in_order
                and not (other.over or _odd(other) or self.orders.touched(task_id))
                and not _unseen(attempt, witness, other)
            ):
                self.broken(f"S14: {attempt.record.task_id} overtakes another one of {key}")


def _odd(witness: Witness) -> bool:
    """Whether it enters its key's queue when it is due, or may have left it by expiring."""
    return witness.options.delay_us > 0 or witness.options.expires_in_us is not None


def _unseen(attempt: Attempt, witness: Witness, other: Witness) -> bool:
    """Whether `other`, which is read again since a reset, or was sent back, need not be waited for:
    an owner of before takes it for done, and what was taken out of the log before goes on."""
    since = max(other.back_epoch, other.again_epoch)
    return since > 0 and (attempt.epoch < since or _odd(witness) or witness.spared > 0)
