"""A database in memory with the contract of `late.store.base`, which judges what it is told.

Every method happens in one instant of the world's time. The rules are those of the real stores:
the journal is the fence, leases follow the database's clock, a settlement is known by its id. On
top of that it knows the truth, and looks at each settlement with it (`Broken`):

- S1 epochs of accepted settlements grow, and only the newest settles;
- S2 whatever a settlement makes final was executed, dead or expired; no more is covered;
- S3 cursors never lose what they had covered;
- S6 every task is in exactly one place, and is final once per group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b

import msgspec

from late.store.base import (
    HeldKey,
    Lease,
    LeaseView,
    Membership,
    Page,
    PruneReport,
    Settlement,
    SettleResult,
    WorkerInfo,
)
from late.store.suspects import inherited
from late.task import (
    HELD_US,
    Cursor,
    Epoch,
    NewTask,
    OpenTask,
    Options,
    Parked,
    Record,
    ShardId,
    Suspect,
)
from late.testing.simulation.logs import Log

Shard = tuple[str, int]
"""(group, shard)."""


class Broken(AssertionError):
    """A promise was broken; the message names the invariant."""


class Journal(msgspec.Struct):
    """The last settlement of one (group, shard), and who may write the next."""

    seq: int = 0
    epoch: int = 0
    cursor: Cursor = Cursor("")
    open: tuple[OpenTask, ...] = ()
    owner: str | None = None
    predecessor: str | None = None
    """Whom `owner` took it from."""
    suspects: tuple[Suspect, ...] = ()
    ids: dict[int, str] = msgspec.field(default_factory=dict)
    """seq -> settlement id: what retention has not taken yet."""
    timers: dict[tuple[int, str], Parked] = msgspec.field(default_factory=dict)


class Witness(msgspec.Struct):
    """What is true of one task in one group, whoever believes what."""

    done: bool = False
    """A handler has ended it."""
    final: str | None = None
    """How the journal ended it."""
    final_epoch: int = 0
    starts: int = 0
    failures: int = 0
    """Attempts that ended with an error, in any process."""


class Database:
    """See the module.

    Args:
        log: the profile.
        now_us: the database's clock.
        groups: consumer groups that are registered.
        shards: how many shards the lane has.
    """

    def __init__(
        self, log: Log, *, now_us: Callable[[], int], groups: Sequence[str], shards: int
    ) -> None:
        self.log = log
        self.now_us = now_us
        self.groups = tuple(groups)
        self.shards = tuple(ShardId(n) for n in range(shards))
        self.journals: dict[Shard, Journal] = defaultdict(Journal)
        self.workers: dict[str, tuple[int, WorkerInfo]] = {}
        self.witness: dict[str, dict[str, Witness]] = {group: {} for group in groups}
        self.records: dict[str, Record] = {}
        """Every row that was ever committed, by task id."""
        self.unsettled: dict[Shard, set[str]] = defaultdict(set)
        self.pruned = 0
        self.fenced = 0
        self.verdicts: list[Broken] = []
        """What was found to be broken, in order."""
        self._trace = blake2b(digest_size=8)

    @property
    def trace(self) -> str:
        """A hash of all that has reached the database, and when."""
        return self._trace.hexdigest()

    def broken(self, what: str) -> None:
        """A promise was broken, and whoever did it goes on: the world ends it."""
        self.verdicts.append(Broken(what))

    def note(self, what: str) -> None:
        """Put one event into the trace."""
        self._trace.update(f"{self.now_us()} {what}\n".encode())

    # ------------------------------------------------------------------ producers

    def begin(self) -> int:
        return self.log.begin()

    def commit(self, transaction: int, tasks: Sequence[NewTask]) -> None:
        now_us = self.now_us()
        rows = [
            Record(t.shard_id, 0, t.task_id, t.queue, t.name, t.payload, t.headers,
                   t.options, now_us, 0)
            for t in tasks
        ]  # fmt: skip
        for record in self.log.commit(transaction, rows):
            self.records[record.task_id] = record
            for group in self.groups:
                self.witness[group][record.task_id] = Witness()
                self.unsettled[group, record.shard_id].add(record.task_id)

    def abort(self, transaction: int) -> None:
        self.log.abort(transaction)

    # ------------------------------------------------------------------ the store's methods

    def read(self, cursors: Mapping[ShardId, Cursor], limit: int) -> list[Page]:
        now_us = self.now_us()
        pages = []
        for shard_id, cursor in cursors.items():
            found = self.log.read(shard_id, cursor, limit)
            pages.append(
                Page(shard_id, found.records, found.cursor, found.window, found.more, now_us)
            )
        return pages

    def fetch(self, shard_id: ShardId, keys: Sequence[OpenTask]) -> list[Record]:
        wanted = {key.task_id for key in keys}
        return [r for r in self.log.rows if r.shard_id == shard_id and r.task_id in wanted]

    def due(
        self,
        group: str,
        shard_id: ShardId,
        until_us: int,
        limit: int,
        after: tuple[int, str],
        held_key: str | None,
    ) -> list[Parked]:
        timers = self.journals[group, shard_id].timers
        if held_key is not None:
            rows = [row for row in timers.values() if row.held_key == held_key]
            rows.sort(key=lambda row: (row.record.sequence, row.record.task_id))
            return rows[:limit]
        keys = sorted(key for key in timers if after < key and key[0] <= until_us)
        return [timers[key] for key in keys[:limit]]

    def settle(self, settlements: Sequence[Settlement]) -> list[SettleResult]:
        return [self._settle(settlement) for settlement in settlements]

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
        self._judge_cursor(s, journal)
        journal.seq, journal.cursor, journal.open = s.seq, s.cursor, s.open
        journal.suspects = s.suspects
        journal.ids[s.seq] = s.settlement_id
        for key in s.unparked:
            journal.timers.pop(key, None)
        for row in s.parked:
            journal.timers[row.due_at_us, row.record.task_id] = row
        self._judge_ends(s, journal)
        return SettleResult.SETTLED

    def heartbeat(self, worker: WorkerInfo, ttl_s: float) -> Membership:
        now_us = self.now_us()
        if ttl_s > 0:
            self.workers[worker.worker_id] = (now_us + round(ttl_s * 1e6), worker)
        else:
            self.workers.pop(worker.worker_id, None)
        return Membership(
            now_us=now_us,
            workers=tuple(
                info for _, (until_us, info) in sorted(self.workers.items()) if until_us > now_us
            ),
            leases=tuple(
                LeaseView(group, ShardId(shard_id), journal.owner, Epoch(journal.epoch))
                for (group, shard_id), journal in sorted(self.journals.items())
                if journal.epoch
            ),
            shards=self.shards,
        )

    def acquire(self, worker_id: str, shards: Sequence[tuple[str, ShardId]]) -> list[Lease]:
        return [lease for shard in shards if (lease := self._take(worker_id, shard))]

    def _take(self, worker_id: str, shard: tuple[str, ShardId]) -> Lease | None:
        journal = self.journals[shard]
        until_us, _ = self.workers.get(journal.owner or "", (0, None))
        if journal.owner not in (None, worker_id) and until_us > self.now_us():
            return None
        if journal.owner != worker_id:
            journal.predecessor = journal.owner
        died = journal.predecessor is not None
        journal.owner = worker_id
        journal.suspects = inherited(journal.suspects, died=died)
        journal.epoch += 1
        journal.seq += 1
        journal.ids[journal.seq] = f"takeover/{journal.epoch}"
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
            taken_at_us=self.now_us() if died else None,
            suspects=journal.suspects,
        )

    def release(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            journal = self.journals[lease.group, lease.shard_id]
            if (journal.owner, journal.epoch) == (lease.owner, lease.epoch):
                journal.owner = None

    def prune(self) -> PruneReport:
        """Rows that every group has settled go; of the journal its last row stays."""
        open_ids = {o.task_id for journal in self.journals.values() for o in journal.open}

        def settled(record: Record) -> bool:
            return record.task_id not in open_ids and all(
                self.log.covers(self.journals[group, record.shard_id].cursor, record)
                for group in self.groups
            )

        before = len(self.log.rows)
        self.log.rows = [record for record in self.log.rows if not settled(record)]
        for journal in self.journals.values():
            journal.ids = {journal.seq: journal.ids[journal.seq]} if journal.ids else {}
        self.pruned += before - len(self.log.rows)
        return PruneReport(tasks=before - len(self.log.rows))

    # ------------------------------------------------------------------ the judge

    def _judge_cursor(self, s: Settlement, journal: Journal) -> None:
        for record in self.log.rows:
            known = record.shard_id == s.shard_id and self.log.covers(journal.cursor, record)
            if known and not self.log.covers(s.cursor, record):
                raise Broken(f"S3: the cursor of {s.group}/{s.shard_id} lost {record.task_id}")

    def _judge_ends(self, s: Settlement, journal: Journal) -> None:
        shard = (s.group, int(s.shard_id))
        places = [key.task_id for key in journal.open]
        places += [row.record.task_id for row in journal.timers.values()]
        accounted = set(places)
        if len(accounted) != len(places):
            raise Broken(f"S6: a task of {shard} is in two places")
        dead: set[str] = {letter.record.task_id for letter in s.dead}
        ended = 0
        for task_id in sorted(self.unsettled[shard] - accounted):
            record = self.records[task_id]
            if not self.log.covers(s.cursor, record):
                continue
            self._end(s, record, dead)
            ended += 1
        if accounted - self.unsettled[shard]:
            raise Broken(f"S6: {sorted(accounted - self.unsettled[shard])[0]} is back")
        counted = sum(
            u.count for u in s.usage if u.outcome in ("done", "dead", "expired", "discarded")
        )
        if counted != ended:
            raise Broken(f"S6: {counted} ends are counted of {shard}, {ended} have happened")

    def _end(self, s: Settlement, record: Record, dead: set[str]) -> None:
        task_id = record.task_id
        witness = self.witness[s.group][task_id]
        options = msgspec.json.decode(record.options or "{}", type=Options)
        expires_us = options.expires_in_us
        if task_id in dead:
            witness.final = "dead"
        elif witness.done:
            witness.final = "done"
        elif expires_us is not None and self.now_us() >= record.created_at_us + expires_us:
            witness.final = "expired"
        else:
            raise Broken(f"S2: {task_id} is settled in {s.group} and was never done")
        witness.final_epoch = s.epoch
        self.unsettled[s.group, record.shard_id].discard(task_id)
