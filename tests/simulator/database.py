"""A database in memory with the contract of `late.store.base`, which judges what it is told.

Every method happens in one instant of the world's time. The rules are those of the real stores:
the journal is the fence, leases follow the database's clock, a settlement is known by its id. On
top of that it knows the truth, and has each settlement judged by it (`truth`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec

from late.model.task import (
    HELD_US,
    Cursor,
    Epoch,
    NewTask,
    OpenTask,
    Parked,
    Record,
    Schedule,
    ShardId,
    TaskId,
)
from late.payload.command import NAMES
from late.scheduler.task_state import POSTPONED
from late.store.base import (
    CHANGES,
    Fate,
    HeldKey,
    Lease,
    Page,
    PruneReport,
    Settlement,
    SettleResult,
    Tick,
    WorkerInfo,
)
from late.store.common.fleet import ends_text, groups_text
from late.store.common.fleet_view import NEIGHBOURS, Numbers
from late.store.common.suspects import inherited
from tests.simulator.logs import Log
from tests.simulator.truth import TAKEOVER, Broken, Journal, Shard, Truth
from tests.simulator.workflows import Flows

if TYPE_CHECKING:
    from tests.simulator.transactions import Effect

Row = tuple[Any, ...]
AGAIN_US = 62_000_000
"""The longest time for which a limit or an outage puts a task off: a minute, or a retry's wait."""


class Database:
    """See the module.

    Args:
        log: the profile.
        now_us: the database's clock.
        groups: consumer groups that are registered.
        shards: how many shards the lane has.
    """

    def __init__(
        self,
        log: Log,
        *,
        now_us: Callable[[], int],
        groups: Sequence[str],
        shards: int,
        schedules: Sequence[Schedule],
        window: int,
    ) -> None:
        self.log = log
        self.now_us = now_us
        self.groups = tuple(groups)
        self.shards = tuple(ShardId(n) for n in range(shards))
        self.journals: dict[Shard, Journal] = defaultdict(Journal)
        self.workers: dict[str, tuple[int, WorkerInfo]] = {}
        self.schedules = {schedule.name: schedule for schedule in schedules}
        self.unique: dict[str, TaskId] = {}
        self.truth = Truth(log, now_us, groups, window)
        self.flows = Flows(self.truth)
        self.pruned = 0
        self.fenced = 0
        self.changed: Counter[str] = Counter()
        self.writes = 0
        self._trace = blake2b(digest_size=8)

    @property
    def trace(self) -> str:
        """A hash of all that has reached the database, and when."""
        return self._trace.hexdigest()

    def note(self, what: str) -> None:
        """Put one event into the trace."""
        self._trace.update(f"{self.now_us()} {what}\n".encode())

    # ------------------------------------------------------------------ producers

    def begin(self) -> int:
        return self.log.begin()

    def commit(self, transaction: int, tasks: Sequence[NewTask]) -> list[TaskId]:
        """Insert `tasks`, except those whose unique key is taken; returns what is in the log."""
        now_us = self.now_us()
        rows = []
        for t in tasks:
            if t.unique_key is not None and t.unique_key in self.unique:
                continue
            if t.unique_key is not None:
                self.unique[t.unique_key] = t.task_id
            rows.append(
                Record(t.shard_id, 0, t.task_id, t.queue, t.name, t.payload, t.headers,
                       t.options, now_us, 0)
            )  # fmt: skip
        self.truth.committed(self.log.commit(transaction, rows))
        return [row.task_id for row in rows]

    def abort(self, transaction: int) -> None:
        self.log.abort(transaction)

    # ------------------------------------------------------------------ the store's methods

    def read(self, cursors: Mapping[ShardId, Cursor], limit: int) -> list[Page]:
        now_us = self.now_us()
        pages = []
        for shard_id, cursor in cursors.items():
            found = self.log.read(shard_id, cursor, limit)
            if found is not None:
                pages.append(
                    Page(shard_id, found.records, found.cursor, found.window, found.more, now_us)
                )
        return pages

    def fetch(self, shard_id: ShardId, keys: Sequence[OpenTask]) -> list[Record]:
        wanted = {key.task_id for key in keys}
        return [r for r in self.log.rows[shard_id] if r.task_id in wanted]

    def due(
        self,
        group: str,
        shard_id: ShardId,
        until_us: int,
        limit: int,
        after: tuple[int, str],
        held_key: str | None,
        task_ids: Sequence[TaskId] = (),
    ) -> list[Parked]:
        timers = self.journals[group, shard_id].timers
        if task_ids:
            return [row for row in timers.values() if row.record.task_id in task_ids][:limit]
        if held_key is not None:
            rows = [row for row in timers.values() if row.held_key == held_key]
            rows.sort(key=lambda row: (row.record.sequence, row.record.task_id))
            return rows[:limit]
        keys = sorted(key for key in timers if after < key and key[0] <= until_us)
        return [timers[key] for key in keys[:limit]]

    def settle(self, settlements: Sequence[Settlement]) -> list[SettleResult]:
        return [self._settle(settlement) for settlement in settlements]

    def commit_shared(self, effects: Sequence[Effect], settlements: Sequence[Settlement]) -> Fate:
        """Commit a transaction of handlers with its settlements: all of it, or nothing.

        Raises:
            Broken: what the truth says of the settlements, and S22.
        """
        if any(s.seq != self.journals[s.group, s.shard_id].seq + 1 for s in settlements):
            self.fenced += 1
            return Fate.REFUSED
        written = [self.truth.written(each.group, each.task_id, each.epoch) for each in effects]
        self.settle(settlements)
        for each, witness in zip(effects, written, strict=True):
            if witness.final != "done":
                raise Broken(f"S22: what {each.task_id} writes is committed, and not its end")
        rows = [each.follow_up for each in effects if each.follow_up is not None]
        if rows:
            self.commit(self.begin(), rows)
        return Fate.COMMITTED

    def _settle(self, s: Settlement) -> SettleResult:
        journal = self.journals[s.group, s.shard_id]
        if s.seq in journal.ids:
            if journal.ids[s.seq] == s.settlement_id:
                return SettleResult.SETTLED
            self.fenced += 1
            return SettleResult.FENCED
        if s.seq != journal.seq + 1:
            self.fenced += 1
            return SettleResult.FENCED
        if s.epoch != journal.epoch:
            raise Broken(f"S1: {s.owner} settles under epoch {s.epoch}, {journal.epoch} rules")
        self.truth.judge_lost(s, journal)
        before = journal.cursor
        journal.seq, journal.cursor, journal.open = s.seq, s.cursor, s.open
        journal.suspects = s.suspects
        journal.ids[s.seq] = s.settlement_id
        for key in s.unparked:
            journal.timers.pop(key, None)
        for row in s.parked:
            journal.timers[row.due_at_us, row.record.task_id] = row
        self.note(f"{s.settlement_id} {s.cursor} {len(s.open)} {len(journal.timers)}")
        self.truth.judge(s, journal, before)
        self._settle_rest(s)
        self._revive(s, journal)
        return SettleResult.SETTLED

    def _revive(self, s: Settlement, journal: Journal) -> None:
        """Dead letters into the table; those of this settlement too."""
        journal.letters.update((letter.record.task_id, letter) for letter in s.dead)
        for revival in s.revived:
            letter = journal.letters.pop(revival.task_id, None)
            if letter is not None:
                journal.timers[revival.due_at_us, revival.task_id] = Parked(
                    letter.record, revival.due_at_us, "retry", errors=letter.errors
                )
                self.truth.revived(s.group, letter.record, s.epoch)
                if s.group == self.groups[0]:
                    self.flows.revived(revival.task_id)

    def _settle_rest(self, s: Settlement) -> None:
        """Ticks and unique keys."""
        for tick in s.ticks:
            self._tick(tick)
        for name, task_id in s.ended_ticks:
            schedule = self.schedules[name]
            if schedule.open_task_id == task_id:
                self.schedules[name] = msgspec.structs.replace(schedule, open_task_id=None)
        for unique_key, task_id in s.released_keys:
            if self.unique.get(unique_key) == task_id:
                del self.unique[unique_key]
                self.truth.released(unique_key, task_id)
        rows = self.flows.settled(s, self.now_us())
        if rows:
            self.commit(self.begin(), rows)

    def let_go(self, left_out: Collection[str]) -> None:
        """These tasks will never run: their keys are free, and schedules do not wait for them."""
        self.unique = {k: t for k, t in self.unique.items() if t not in left_out}
        self.flows.let_go(left_out)
        for name, schedule in self.schedules.items():
            if schedule.open_task_id in left_out:
                self.schedules[name] = msgspec.structs.replace(schedule, open_task_id=None)

    def _tick(self, tick: Tick) -> None:
        """Takes effect if the schedule still expects it."""
        schedule = self.schedules[tick.schedule]
        if schedule.next_due_at_us != tick.due_at_us:
            return
        self.schedules[tick.schedule] = msgspec.structs.replace(
            schedule,
            next_due_at_us=tick.next_due_at_us,
            open_task_id=tick.tasks[-1].task_id if tick.tasks else schedule.open_task_id,
        )
        self.truth.ticked(tick, schedule.overlap)
        self.commit(self.begin(), tick.tasks)

    def recurring(self) -> list[Schedule]:
        """What `Control.schedules.all` reads."""
        return [self.schedules[name] for name in sorted(self.schedules)]

    def waits_for_time(self) -> bool:
        """Whether a task that has not ended is not due yet, by its delay or by its row."""
        now_us, truth = self.now_us(), self.truth
        for (group, shard_id), unsettled in truth.unsettled.items():
            timers = self.journals[group, shard_id].timers.values()
            rows: dict[str, Parked] = {row.record.task_id: row for row in timers}
            for task_id in unsettled:
                row, record = rows.get(task_id), truth.records[task_id]
                delay_us = truth.witness[group][task_id].options.delay_us
                moved = truth.orders.touched(task_id) or record.name in NAMES
                # A row for a delay that nobody has asked for is no reason to wait.
                if row is not None and (row.reason != "delay" or delay_us or moved):
                    # By a limit it is put off again and again, each time for a minute at most.
                    again = row.reason in POSTPONED and row.due_at_us <= now_us + AGAIN_US
                    at_us = 0 if again else row.due_at_us
                else:
                    at_us = record.created_at_us + delay_us if delay_us else 0
                if now_us < at_us < HELD_US:
                    return True
        return False

    def no_more_ticks(self) -> None:
        """An operator takes every schedule out of use."""
        for name, schedule in self.schedules.items():
            self.schedules[name] = msgspec.structs.replace(schedule, next_due_at_us=None)

    def say(self, worker: WorkerInfo, ttl_s: float) -> None:
        """Write all of a worker's row, or delete it, and count that."""
        if ttl_s > 0:
            self.workers[worker.worker_id] = (self.now_us() + round(ttl_s * 1e6), worker)
        elif self.workers.pop(worker.worker_id, None) is None:
            return
        self.changed["workers"] += CHANGES in worker.version

    def beat(self, worker: WorkerInfo, ttl_s: float, *, says: bool) -> int | None:
        """Renew a worker's lease; returns its end, and None if it is over or the worker leaves."""
        name, now_us = worker.worker_id, self.now_us()
        end_us, said = self.workers.get(name, (0, worker))
        if says or (ttl_s > 0 and end_us <= now_us):
            self.say(worker, ttl_s)
        elif ttl_s > 0:
            self.workers[name] = (now_us + round(ttl_s * 1e6), said)
        return self.workers[name][0] if name in self.workers else None

    def tell(self) -> None:
        """Count the end of a worker's lease."""
        self.changed["workers"] += 1

    def numbers(self) -> Numbers:
        """Return the numbers of changes."""
        changed = self.changed
        return Numbers(changed["workers"], changed["leases"], str(changed["groups"]))

    def live(self) -> int:
        """Count the workers that live."""
        now_us = self.now_us()
        return sum(end_us > now_us for end_us, _ in self.workers.values())

    def ends(self, me: str, told_us: int, ttl_s: float, *, ring: bool) -> list[tuple[str, int]]:
        """Return the unusual ends of leases, with `ring` those of neighbours only."""
        now_us, ttl_us = self.now_us(), round(ttl_s * 1e6)
        found = {name: end_us for name, (end_us, _) in self.workers.items() if end_us > told_us}
        names = sorted(found.keys() - {me})
        if ring:
            place = bisect_left(names, me)
            names = names[max(0, place - NEIGHBOURS) : place + NEIGHBOURS]
        usual = range(ttl_us // 2 + 1, ttl_us + 1)
        return [(name, found[name]) for name in names if found[name] - now_us not in usual]

    def fleet(self, since: int) -> tuple[int, list[Row], list[Row]]:
        """Return a mark, the rows of workers, and those of leases that changed since an earlier
        mark; 0: of all."""
        now_us = self.now_us()
        workers = [
            (
                name,
                each.address,
                groups_text(each),
                each.capacity,
                each.version,
                ends_text(each),
                end,
            )
            for name, (end, each) in self.workers.items()
            if end > now_us
        ]
        leases = [
            (group, shard_id, journal.owner, journal.epoch)
            for (group, shard_id), journal in self.journals.items()
            if journal.epoch and journal.lease_written > since
        ]
        return self.writes + 1, workers, leases

    def wrote(self, journal: Journal, worker_id: str) -> None:
        """Note that a lease has changed. A worker from before counts nothing."""
        self.writes += 1
        journal.lease_written = self.writes + 1
        _, info = self.workers.get(worker_id, (0, None))
        self.changed["leases"] += info is None or CHANGES in info.version

    def acquire(self, worker_id: str, shards: Sequence[tuple[str, ShardId]]) -> list[Lease]:
        return [lease for shard in shards if (lease := self._take(worker_id, shard))]

    def _take(self, worker_id: str, shard: tuple[str, ShardId]) -> Lease | None:
        journal = self.journals[shard]
        until_us, _ = self.workers.get(journal.owner or "", (0, None))
        if journal.owner not in (None, worker_id) and until_us > self.now_us():
            return None
        died = journal.owner not in (None, worker_id)
        journal.taken_at_us = self.now_us() if died else journal.taken_at_us
        journal.owner = worker_id
        journal.suspects = inherited(journal.suspects, died=died)
        journal.epoch += 1
        self.wrote(journal, worker_id)
        journal.seq += 1
        journal.ids[journal.seq] = TAKEOVER.format(journal.epoch)
        held: dict[str, HeldKey] = {}
        for (due_at_us, _), row in journal.timers.items():
            if row.held_key is not None:
                old = held.get(row.held_key, HeldKey(0, False))
                held[row.held_key] = HeldKey(
                    old.waiting + (due_at_us == HELD_US), old.head_parked or due_at_us < HELD_US
                )
        return Lease(
            *shard,
            worker_id,
            Epoch(journal.epoch),
            journal.seq,
            journal.cursor,
            journal.open,
            held,
            taken_at_us=journal.taken_at_us,
            suspects=journal.suspects,
        )

    def release(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            journal = self.journals[lease.group, lease.shard_id]
            if (journal.owner, journal.epoch) == (lease.owner, lease.epoch):
                journal.owner = None
                self.wrote(journal, lease.owner)

    def prune(self) -> PruneReport:
        """Rows that every group has settled go; of the journal its last row stays."""
        open_ids = {o.task_id for journal in self.journals.values() for o in journal.open}
        gone = 0
        for shard_id, rows in self.log.rows.items():
            if not rows:
                continue
            cursors = {self.journals[group, shard_id].cursor for group in self.groups}
            settled = [self.log.covering(cursor) for cursor in cursors]
            kept = [
                record
                for record in rows
                if record.task_id in open_ids or not all(covers(record) for covers in settled)
            ]
            gone += len(rows) - len(kept)
            self.log.rows[shard_id] = kept
        for journal in self.journals.values():
            journal.ids = {journal.seq: journal.ids[journal.seq]} if journal.ids else {}
        self.pruned += gone
        return PruneReport(tasks=gone)
