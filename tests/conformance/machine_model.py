"""What the state machine believes: the contract of `late.store.base` in sets and dicts.

- **T1, T2, T4** are those of a `Reader`: what it has seen, and what it must have seen at the end of
  a window. **T3** is not asked: every read is a call of its own.
- **The fence** is that of a `ShardModel`: its last settlement, and who may write the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from late.model.task import (
    HELD_US,
    Cursor,
    DeadLetter,
    NewTask,
    OpenTask,
    Parked,
    Record,
    ShardId,
    TaskId,
    Usage,
)
from late.store.base import HeldKey, Lease, Settlement, cursor_within

GROUP = "default"
BEGINNING = Cursor("")
KEY = "k"
FAR_US = 4_000_000_000_000_000
"""A due time after every test."""


@dataclass
class Producer:
    """An open transaction: its rows, and where its savepoint is."""

    rows: list[NewTask] = field(default_factory=list)
    mark: int | None = None
    prepared: bool = False


@dataclass
class Reader:
    """Who tails one shard."""

    shard_id: ShardId
    cursor: Cursor = BEGINNING
    seen: set[str] = field(default_factory=set)
    due: frozenset[str] | None = None
    """Inside a window: what was committed when it was opened; None between two."""

    def copy(self) -> Reader:
        return Reader(self.shard_id, self.cursor, set(self.seen), self.due)


@dataclass
class ShardModel:
    """The last settlement of one shard, and all that hangs on it."""

    shard_id: ShardId
    seq: int = 0
    epoch: int = 0
    holder: str | None = None
    cursor: Cursor = BEGINNING
    open: tuple[OpenTask, ...] = ()
    covered: frozenset[str] = frozenset()
    timers: dict[tuple[int, str], Parked] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)
    ids: dict[int, str] = field(default_factory=dict)
    """seq -> settlement id."""
    kept_from: int = 0
    """Rows of the journal below may be pruned."""

    @property
    def settled(self) -> set[str]:
        """Whose rows may leave the log."""
        return set(self.covered) - {key.task_id for key in self.open}

    def held(self) -> dict[str, HeldKey]:
        rows = [row for row in self.timers.values() if row.held_key == KEY]
        if not rows:
            return {}
        waiting = sum(row.due_at_us == HELD_US for row in rows)
        return {KEY: HeldKey(waiting, waiting < len(rows))}

    def due(self, after: tuple[int, str], until_us: int, limit: int) -> list[Parked]:
        keys = sorted(key for key in self.timers if after < key and key[0] <= until_us)
        return [self.timers[key] for key in keys[:limit]]

    def waiting_for_key(self, limit: int) -> list[Parked]:
        rows = [row for row in self.timers.values() if row.held_key == KEY]
        return sorted(rows, key=lambda p: (p.record.sequence, p.record.task_id))[:limit]

    def take(self, worker: str, settlement_id: str = "") -> None:
        """A takeover."""
        self.holder, self.epoch, self.seq = worker, self.epoch + 1, self.seq + 1
        self.ids[self.seq] = settlement_id

    def write(self, settlement: Settlement, covered: frozenset[str]) -> None:
        """A settlement that follows the last one."""
        self.seq, self.cursor, self.open = settlement.seq, settlement.cursor, settlement.open
        self.ids[self.seq] = settlement.settlement_id
        self.covered = covered
        for key in settlement.unparked:
            self.timers.pop(key, None)
        for row in settlement.parked:
            self.timers[row.due_at_us, row.record.task_id] = row
        self.dead.update(letter.record.task_id for letter in settlement.dead)


@dataclass
class Draft:
    """A settlement, and what its owner is once it is written."""

    settlement: Settlement
    covered: frozenset[str]
    live: dict[str, Record]
    begun: int
    """How many of those that were read it covers newly."""


class Owner:
    """An honest worker's view of one shard: it covers what it starts, and settles what ends."""

    def __init__(self, lease: Lease, records: Sequence[Record], model: ShardModel) -> None:
        self.lease = lease
        self.seq = lease.seq
        self.cursor = lease.cursor
        self.live: dict[str, Record] = {record.task_id: record for record in records}
        """Covered and not settled."""
        self.ahead: list[tuple[Record, str]] = []
        """Read and not covered, each with its window."""
        self.covered = model.covered
        self.timers = dict(model.timers)
        # Within a window that a predecessor opened: of what it must show at least nothing is known.
        due = frozenset[str]() if "@" in lease.cursor else None
        self.reader = Reader(lease.shard_id, lease.cursor, set(model.covered), due)
        self.unsure: Draft | None = None
        """Written, and the answer was lost."""
        self.last: Settlement | None = None
        self._made = 0

    def draft(self, cover: int, fates: Sequence[str], wakes: Sequence[str]) -> Draft:
        """Start the first `cover` of what was read; end or park what is live, and what is due."""
        begun, ahead = self.ahead[:cover], self.ahead[cover:]
        cursor = self.cursor
        if not ahead:
            cursor = self.reader.cursor
        elif begun:
            cursor = cursor_within(begun[-1][1], begun[-1][0])
        live: dict[str, Record] = dict(self.live)
        live |= {record.task_id: record for record, _ in begun}
        ends = {"done": 0, "dead": 0}
        parked: list[Parked] = []
        unparked: list[tuple[int, TaskId]] = []
        letters: list[DeadLetter] = []
        for fate, record in zip(fates, list(live.values()), strict=False):
            if fate != "open":
                del live[record.task_id]
                self._end(fate, record, 0, ends, parked, letters)
        for fate, row in zip(wakes, sorted(self.timers.items()), strict=False):
            if fate != "open":
                (due_at_us, _), timer = row
                unparked.append((due_at_us, timer.record.task_id))
                self._end(fate, timer.record, timer.attempts + 1, ends, parked, letters)
        self._made += 1
        settlement = Settlement(
            settlement_id=f"{self.lease.owner}/{self.lease.epoch}/{self.seq + 1}/{self._made}",
            group=GROUP,
            shard_id=self.lease.shard_id,
            seq=self.seq + 1,
            epoch=self.lease.epoch,
            owner=self.lease.owner,
            cursor=cursor,
            open=tuple(OpenTask(r.position, r.task_id) for r in live.values()),
            usage=tuple(Usage("q", "n", "", word, n) for word, n in ends.items() if n),
            unparked=tuple(unparked),
            parked=tuple(parked),
            dead=tuple(letters),
        )
        covered = self.covered | {record.task_id for record, _ in begun}
        assert covered <= self.reader.seen, "a mistake of the model"
        return Draft(settlement, covered, live, len(begun))

    def _end(
        self,
        fate: str,
        record: Record,
        attempts: int,
        ends: dict[str, int],
        parked: list[Parked],
        letters: list[DeadLetter],
    ) -> None:
        if fate == "later":
            parked.append(Parked(record, FAR_US + record.position % 3, "retry", attempts))
        elif fate == "behind":
            parked.append(Parked(record, HELD_US, "held", attempts, held_key=KEY))
        elif fate == "head":
            parked.append(Parked(record, FAR_US, "retry", attempts, held_key=KEY))
        else:
            ends[fate] += 1
            if fate == "dead":
                letters.append(DeadLetter(record, "failed", attempts, 0))

    def accept(self, draft: Draft) -> None:
        """It is in the journal."""
        settlement = draft.settlement
        self.seq, self.cursor = settlement.seq, settlement.cursor
        self.live, self.covered = draft.live, draft.covered
        del self.ahead[: draft.begun]
        for key in settlement.unparked:
            self.timers.pop(key, None)
        for row in settlement.parked:
            self.timers[row.due_at_us, row.record.task_id] = row
