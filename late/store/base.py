"""The seam between `late` and a database: few deep methods, the same contract for every store.

The contract of the tail, which everything rests on:

- **T1 completeness** every record whose commit is covered by a page's new cursor and not by the
  old one is in that step; nothing covered can appear later.
- **T2 soundness** every returned record is committed, and durable as the database's commit is.
- **T3 no hold** paging keeps no transaction open.
- **T4 monotone** a new cursor covers all that the old one covers.

And of the settlement journal, which is the fence: a settlement is an *insert* of
`(group, shard, seq = last + 1)`. Two owners cannot both insert the same `seq`; the loser is
fenced and must throw its state away.

A driver never retries and never sleeps for a retry: it maps foreign errors to `late.errors` and
says whether they are transient. Retry, batching and pacing live once, above the seam.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Literal, Protocol

import msgspec

from late.model.task import (
    Cursor,
    DeadLetter,
    Epoch,
    NewTask,
    OpenTask,
    Parked,
    Reads,
    Record,
    ShardId,
    Suspect,
    TaskId,
    Usage,
)

ALL = Reads()


class Features(msgspec.Struct, frozen=True):
    """Honest differences between stores, as data. Code asks these, never a store's name."""

    commit_order: bool
    """Whether the log's order is the order of commits."""
    delay_counts_from: Literal["commit", "insert"]
    time_resolution_s: float
    """The step of the database's clock as this store reads it."""
    poll_min_s: float
    """How often an idle tail may ask without being a burden."""
    group_commit: bool
    """Whether settlements of several shards are cheaper in one transaction."""
    batch_size_max: int
    """Most tasks that one enqueue statement carries."""
    experimental: bool = False
    """Whether it has never been run on the database that it is for. Said at every start."""
    lease_margin_min_s: float = 0.0
    """How far the clocks that judge a lease may be apart: an owner stops that long before."""


class Page(msgspec.Struct, frozen=True):
    """One step of the tail of one shard.

    `records` are ascending by (position, task_id). `cursor` covers them all; a cursor that covers
    only the first few is `cursor_within(window, record)`.
    """

    shard_id: ShardId
    records: Sequence[Record]
    cursor: Cursor
    window: str
    """The store's own mark of the window that this page was read in."""
    more: bool
    """The page was full: read on at once."""
    now_us: int
    """The database's clock when the page was read."""


def taken(page: Page, reads: Reads) -> Page:
    """The page without what a group passes over. Its cursor stays: that is covered, and as no
    record of it is ever started, parked or settled, it costs the group nothing."""
    if reads == ALL:
        return page
    records = [record for record in page.records if reads.takes(record)]
    return msgspec.structs.replace(page, records=records)


def cursor_within(window: str, record: Record) -> Cursor:
    """A cursor that covers all up to and including `record` of a page of `window`."""
    return Cursor(f"{window}@{record.position},{record.task_id}")


class HeldKey(msgspec.Struct, frozen=True):
    """What the timer table holds of one ordering key."""

    waiting: int
    """Rows with this `held_key` and due at `HELD_US`: they wait for the key."""
    head_parked: bool
    """Whether the key's head is there too, with a due time of its own (a retry)."""


class Lease(msgspec.Struct, frozen=True):
    """The right to one shard in one consumer group, with the checkpoint it starts from."""

    group: str
    shard_id: ShardId
    owner: str
    epoch: Epoch
    seq: int
    """Sequence number of the takeover settlement; the owner's first one is `seq + 1`."""
    cursor: Cursor
    open: tuple[OpenTask, ...]
    held_keys: Mapping[str, HeldKey]
    """Every `held_key` of the shard's parked tasks."""
    taken_at_us: int | None = None
    """When it was last taken from an owner who had not given it back, by this takeover or an
    earlier one; None: never. What existed then may have killed that owner."""
    suspects: tuple[Suspect, ...] = ()
    """Tasks with deaths of their own, this takeover's included: `store/suspects.py`."""
    reads: Reads = ALL
    """As its group is registered: read with the checkpoint, so that a reset changes both."""


class Tick(msgspec.Struct, frozen=True):
    """One firing of a schedule: takes effect only if the schedule still expects `due_at_us`."""

    schedule: str
    due_at_us: int
    """What `late_schedule.next_due_at_us` must still be."""
    next_due_at_us: int | None
    """What it becomes; None when the rule never fires again."""
    tasks: tuple[NewTask, ...]
    """Rows to insert into the log; empty for a tick that policy skipped."""


class Revival(msgspec.Struct, frozen=True):
    """A dead letter that is to run again: from `late_dead` to `late_timer`, if it is there."""

    task_id: TaskId
    due_at_us: int
    payload: bytes | None = None
    """Instead of its own."""


class Result(msgspec.Struct, frozen=True):
    """How a task ended, for whoever waits for it."""

    task_id: TaskId
    value: bytes
    ttl_us: int


class Step(msgspec.Struct, frozen=True):
    """What happened to one task, for its history."""

    task_id: TaskId
    at_us: int
    event: str
    """A word of the usage ledger, `delayed`, `rescheduled`, or `redriven`."""
    detail: str | None = None
    """JSON of `late.task.StepDetail`."""


class Settlement(msgspec.Struct, frozen=True):
    """One row of the journal and all that must commit with it, in this order."""

    settlement_id: str
    """Made by the owner: tells its own unknown commit from another owner's row."""
    group: str
    shard_id: ShardId
    seq: int
    epoch: Epoch
    owner: str
    cursor: Cursor
    open: tuple[OpenTask, ...]
    usage: tuple[Usage, ...] = ()
    unparked: tuple[tuple[int, TaskId], ...] = ()
    """Timer rows to delete, by (due_at_us, task_id); one that is gone is fine."""
    parked: tuple[Parked, ...] = ()
    """Timer rows to insert, after the deletes."""
    dead: tuple[DeadLetter, ...] = ()
    revived: tuple[Revival, ...] = ()
    """One for a task; after `dead`. The delete is the claim: a letter that an operator has taken
    away is left alone, so that no task can be in two places. Attempts and deaths count from
    zero. Of those whose history is kept, the store writes a step `redriven` after `history`."""
    results: tuple[Result, ...] = ()
    """Kept for their time from now; a later one of the same task takes the place of the first."""
    history: tuple[Step, ...] = ()
    """In their order; each is numbered after the last one of its task."""
    ticks: tuple[Tick, ...] = ()
    ended_ticks: tuple[tuple[str, TaskId], ...] = ()
    """(schedule, task) whose task ended: clears `late_schedule.open_task_id` if it is that."""
    released_keys: tuple[tuple[str, TaskId], ...] = ()
    """(unique key, task) to free in `late_unique`."""
    suspects: tuple[Suspect, ...] = ()
    """Tasks of the shard with deaths of their own, and those that run under a mark."""


class SettleResult(Enum):
    """What became of one settlement. An unknown outcome is not a result: it raises."""

    SETTLED = "settled"
    """The journal holds this settlement, by this call or by an earlier one that was unsure."""
    FENCED = "fenced"
    """Another settlement has this `seq`: the shard belongs to someone else."""


class WorkerInfo(msgspec.Struct, frozen=True):
    """What a worker says of itself with each heartbeat."""

    worker_id: str
    """New for every process start, never a hostname: a restarted process is another worker."""
    address: str
    """Host and process id, for people."""
    groups: tuple[str, ...]
    capacity: float = 1.0
    version: str = ""


class LeaseView(msgspec.Struct, frozen=True):
    """Who holds a shard, as everyone can see it. `owner` is None after a release."""

    group: str
    shard_id: ShardId
    owner: str | None
    epoch: Epoch


class Membership(msgspec.Struct, frozen=True):
    """The fleet at one moment, by the database's clock."""

    now_us: int
    workers: tuple[WorkerInfo, ...]
    """Live ones only, ascending by id, the caller included unless it is leaving."""
    leases: tuple[LeaseView, ...]
    shards: tuple[ShardId, ...]
    """Every shard that must be owned: those of the lanes and any other that holds records."""
    groups: frozenset[str] | None = None
    """Groups that are registered and not paused; None: all that workers name."""


class PruneReport(msgspec.Struct, frozen=True):
    """What one round of house-keeping removed."""

    tasks: int = 0
    """Log rows removed by range deletes; rows of a dropped partition are not counted."""
    partitions: int = 0
    settlements: int = 0
    workers: int = 0


class Store(Protocol):
    """One database. All methods are coroutines, safe to call concurrently, and never block the
    event loop. Cancelling a call leaves the store usable; a write then has an unknown outcome.

    Raises (all methods): `StoreUnavailable` and `TransactionAborted` (transient), `StoreClosed`.
    """

    @property
    def features(self) -> Features: ...

    async def open(self) -> None:
        """Connect and run the guards. Calling it twice is fine.

        Raises:
            SchemaMismatch: no schema, or one of another version.
            StoreRefused: a standby, a restored or cloned copy, a setting that breaks a promise;
                the message says what to do.
        """

    async def read(self, cursors: Mapping[ShardId, Cursor], limit: int) -> list[Page]:
        """Read the next page of each shard: one `Page` per shard, up to `limit` records each.

        A shard with nothing new may be left out, or come with no records and a newer cursor.
        """

    async def fetch(self, shard_id: ShardId, keys: Sequence[OpenTask]) -> list[Record]:
        """The records of `keys` that are still in the log, in no order."""

    async def due(
        self,
        group: str,
        shard_id: ShardId,
        *,
        until_us: int,
        limit: int,
        after: tuple[int, str] = (0, ""),
        held_key: str | None = None,
        task_ids: Sequence[TaskId] = (),
    ) -> list[Parked]:
        """Up to `limit` parked tasks with (due_at_us, task_id) > `after` and due <= `until_us`,
        ascending; or, with `held_key`, those parked with that key, whatever their due time,
        ascending by (sequence, task_id); or, with `task_ids`, those of them that are parked.
        """

    async def settle(self, settlements: Sequence[Settlement]) -> list[SettleResult]:
        """Write settlements, at most one per (group, shard), and what hangs on each atomically
        with it. Results are in the order of the argument. Idempotent by `settlement_id`.
        """

    async def prune(self, *, journal_keep_s: float) -> PruneReport:
        """Remove log rows that every group has settled, judged by the journal alone and never by
        age; journal rows older than `journal_keep_s` that are not the last of their shard;
        workers long gone. Makes room for what comes (partitions). Safe to call from anyone.
        """

    async def heartbeat(self, worker: WorkerInfo, ttl_s: float) -> Membership:
        """Say that the worker lives for `ttl_s` from now; 0 says that it leaves."""

    async def acquire(self, worker_id: str, shards: Sequence[tuple[str, ShardId]]) -> list[Lease]:
        """Take those of (group, shard) that are free: never owned, released, or whose owner's
        heartbeat has expired by the database's clock. Raises the epoch, writes the takeover
        settlement (same cursor and open, new epoch, and of the marks what `suspects.inherited`
        makes of them) and returns the checkpoint, all in one transaction per shard. What is held
        by a live worker is left out, not an error; what the caller already holds is granted again
        under a new epoch.
        """

    async def release(self, leases: Sequence[Lease]) -> None:
        """Give leases back; those that are held under another epoch by now are left alone."""

    async def now(self) -> int:
        """The database's clock, microseconds since the Unix epoch."""

    async def close(self) -> None:
        """Close all connections. Calling it twice, or before `open`, is fine."""
