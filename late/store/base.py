"""The seam between `late` and a database: few deep methods, the same contract for every store.

The contract of the tail, which everything rests on:

- **T1 completeness** A page holds every record whose commit its new cursor covers and the old one
  does not. Nothing covered can appear later.
- **T2 soundness** Every returned record is committed, and as durable as the database's commit is.
- **T3 no hold** Paging keeps no transaction open.
- **T4 monotone** A new cursor covers all that the old one covers.

The contract of the settlement journal, which is the fence: a settlement is an *insert* of
`(group, shard, seq = last + 1)`. Two owners cannot both insert the same `seq`; the loser is
fenced and must throw its state away.

A driver never retries and never sleeps for a retry: it maps foreign errors to `late.errors` and
says whether they are transient. Retry, batching and pacing live once, above the seam.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from late.model.workflow import StageEnd

ALL = Reads()
JOURNAL_DETAIL_S = 3_600.0
"""The age from which the settlements of a minute, or of as many minutes of an hour as some hundreds
of them take, are one row of the journal."""
JOURNAL_MINUTE_S = 86_400.0
"""The age from which those of an hour are."""
CHANGES = "changes.1"
"""A worker with this in its version counts its changes of the fleet (`store/common/fleet_view`)."""
TELLS = "tells.1"
"""A worker with this in its version tells of them too, where the store can (`tailer/beat_pace`)."""
WHOLE_WINDOW = 2**64
"""Above every position: the window is read to its end."""


class Features(msgspec.Struct, frozen=True):
    """Honest differences between stores, as data. Code asks these, never a store's name."""

    commit_order: bool
    """The log's order is the order of commits."""
    delay_counts_from: Literal["commit", "insert"]
    time_resolution_s: float
    """The step of the database's clock as this store reads it."""
    poll_min_s: float
    """The shortest useful pause between two polls of an idle tail."""
    group_commit: bool
    """Settlements of several shards are cheaper in one transaction."""
    batch_size_max: int
    """The most tasks that one enqueue statement carries."""
    experimental: bool = False
    """The store has never been run on the database that it is for. Every start says so."""
    poll_stream_s: float | None = None
    """The pause between two polls while a few records come each time; None: `poll_min_s`."""
    poll_max_s: float = 1.0
    """The longest pause between two polls of a silent log, by default."""
    lease_margin_min_s: float = 0.0
    """The largest difference between the clocks that judge a lease: an owner stops that much
    earlier."""


class Page(msgspec.Struct, frozen=True):
    """One step of the tail of one shard.

    `records` are ascending by (position, task_id). `cursor` covers them all; a cursor that covers
    only the first few is `cursor_within(window, record)`.
    """

    shard_id: ShardId
    records: Sequence[Record]
    cursor: Cursor
    window: str
    """The store's own name for the window that this page was read in, for `cursor_within`."""
    more: bool
    """The page was full: more records are there to be read at once."""
    now_us: int
    """The database's clock when the page was read."""


def taken(page: Page, reads: Reads) -> Page:
    """Leave out the records that a group passes over. The cursor stays: it covers them, and as none
    of them is ever started, parked or settled, they cost the group nothing."""
    if reads == ALL:
        return page
    records = [record for record in page.records if reads.takes(record)]
    return msgspec.structs.replace(page, records=records)


def cursor_within(window: str, record: Record) -> Cursor:
    """Return a cursor that covers all up to and including `record` of a page of `window`."""
    return Cursor(f"{window}@{record.position},{record.task_id}")


def read_below(cursor: Cursor) -> int:
    """Return the position below which everything of the cursor's window is read."""
    _, inside, key = cursor.partition("@")
    return int(key.partition(",")[0]) if inside else WHOLE_WINDOW


class HeldKey(msgspec.Struct, frozen=True):
    """The rows of one ordering key in the timer table."""

    waiting: int
    """The number of rows with this `held_key` and due at `HELD_US`: they wait for the key."""
    head_parked: bool
    """The key's head is there too, with a due time of its own (a retry)."""


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
    """The last time it was taken from an owner who had not given it back, by this takeover or an
    earlier one; None: never. A task that existed then may have killed that owner."""
    suspects: tuple[Suspect, ...] = ()
    """Tasks with deaths of their own, those of this takeover included: see
    `store/common/suspects.py`."""
    reads: Reads = ALL
    """The group's registration, read with the checkpoint, so that a reset changes both."""


class Tick(msgspec.Struct, frozen=True):
    """One firing of a schedule. It takes effect only if the schedule still expects `due_at_us`."""

    schedule: str
    due_at_us: int
    """The value that `late_schedule.next_due_at_us` must still have."""
    next_due_at_us: int | None
    """The value that it gets; None when the rule never fires again."""
    tasks: tuple[NewTask, ...]
    """Rows to insert into the log; empty for a tick that policy skipped."""
    skipped: int = 0
    """The number of its times that policy left out."""
    overlaps: bool = False
    """True if the task of an earlier tick had not ended."""


class Revival(msgspec.Struct, frozen=True):
    """A dead letter that is to run again: if it is there, it moves to `late_timer`."""

    task_id: TaskId
    due_at_us: int
    payload: bytes | None = None
    """The payload that takes the place of its own; None keeps that."""


class Result(msgspec.Struct, frozen=True, gc=False):
    """The result of a task, for the caller that waits for it."""

    task_id: TaskId
    value: bytes
    ttl_us: int


class Step(msgspec.Struct, frozen=True, gc=False):
    """One event in the history of a task."""

    task_id: TaskId
    at_us: int
    event: str
    """A word of the usage ledger, `delayed`, `rescheduled`, or `redriven`."""
    detail: str | None = None
    """JSON of `late.model.task.StepDetail`."""


class Settlement(msgspec.Struct, frozen=True):
    """One row of the journal and all that must commit with it, in this order."""

    settlement_id: str
    """A name made by the owner: it tells its own unknown commit from another owner's row."""
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
    """At most one for a task; after `dead`. The delete is the claim: a letter that an operator has
    taken away is left alone, so that no task can be in two places. Attempts and deaths count from
    zero. Where a task's history is kept, the store adds a step `redriven` after `history`."""
    results: tuple[Result, ...] = ()
    """Kept for `ttl_us` from now; a later one of the same task replaces the first."""
    history: tuple[Step, ...] = ()
    """Steps in their order; each is numbered after the last one of its task."""
    ticks: tuple[Tick, ...] = ()
    ended_ticks: tuple[tuple[str, TaskId], ...] = ()
    """(schedule, task) whose task ended: clears `late_schedule.open_task_id` if it is that task."""
    released_keys: tuple[tuple[str, TaskId], ...] = ()
    """(unique key, task) to free in `late_unique`."""
    ended_stages: tuple[StageEnd, ...] = ()
    """Ends of tasks that belong to workflows. After all the rest: see `late/model/workflow.py`."""
    suspects: tuple[Suspect, ...] = ()
    """Tasks of the shard with deaths of their own, and those that run under a mark."""


class SettleResult(Enum):
    """The outcome of one settlement. An unknown outcome is not a result: it raises."""

    SETTLED = "settled"
    """The journal holds this settlement, from this call or an earlier one with an unknown
    outcome."""
    FENCED = "fenced"
    """Another settlement has this `seq`: the shard belongs to someone else."""


class Fate(Enum):
    """The fate of a transaction that carries settlements and other people's writes."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    """Nothing of it is there, and nothing will be."""
    REFUSED = "refused"
    """The same, because the journal refused one of the settlements."""
    UNKNOWN = "unknown"
    """The answer was lost: the journal knows, or will."""


class NameEnds(msgspec.Struct, frozen=True, array_like=True):
    """Says how the last tasks of one name ended in one worker. Times are the database's, in µs."""

    group: str
    queue: str
    task: str
    failed: int
    """The number of the last tasks that fail."""
    worked: int
    """The number of the last tasks that ended well."""
    worked_us: int
    """The time at which the latest one ended well; 0 if none has."""
    failed_us: tuple[int, ...]
    """The times at which the latest tasks failed, of those after the last good end: a few."""


class WorkerInfo(msgspec.Struct, frozen=True):
    """A worker's description of itself, sent with each heartbeat."""

    worker_id: str
    """A new name for every process start, never a hostname: a restarted process is another
    worker."""
    address: str
    """Host and process id, for people to read."""
    groups: tuple[str, ...]
    capacity: float = 1.0
    version: str = ""
    ends: tuple[NameEnds, ...] = ()
    """They are of names that fail, in this worker or in others."""
    handlers: str | None = None
    """The column of that name, see `late.model.handlers`. A heartbeat that has it writes it, and
    one that has it not leaves it alone; a view of the fleet never has it."""


class LeaseView(msgspec.Struct, frozen=True):
    """The public part of a lease: the holder of a shard. `owner` is None after a release."""

    group: str
    shard_id: ShardId
    owner: str | None
    epoch: Epoch


class Membership(msgspec.Struct, frozen=True):
    """The fleet at one moment, by the database's clock."""

    now_us: int
    workers: tuple[WorkerInfo, ...]
    """Live workers only, ascending by id, the caller included unless it is leaving."""
    leases: tuple[LeaseView, ...]
    shards: tuple[ShardId, ...]
    """Every shard that must be owned: those of the lanes and any other that holds records. A store
    may tell of the latter some seconds late."""
    groups: frozenset[str] | None = None
    """Groups that are registered and not paused; None: all that workers name."""
    shadows: frozenset[str] = frozenset()
    """Those of `groups` that are shadows."""
    expires_at_us: Mapping[str, int] = {}
    """Worker id -> the end of its lease, by the database's clock."""
    settings: str | None = None
    """The version of all that operators set (lanes, groups, queues, targets, schedules): another
    text after any change. None: this store does not tell, and whoever follows them has to look."""
    offers: bool | None = None
    """True while another worker offers an attempt that nobody has taken, or that this one took
    before. None: this store does not tell."""


class PruneReport(msgspec.Struct, frozen=True):
    """The numbers of rows and partitions that one round of pruning removed."""

    tasks: int = 0
    """Log rows removed by deletes; rows of a dropped partition are not counted."""
    partitions: int = 0
    settlements: int = 0
    workers: int = 0
    compacted: int = 0
    """Rows of the journal that went because another one carries their usage now."""


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
        """Read the records of `keys` that are still in the log, in no order."""

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
        """Read up to `limit` parked tasks with (due_at_us, task_id) > `after` and due <=
        `until_us`, ascending; or, with `held_key`, those parked with that key, whatever their due
        time, ascending by (sequence, task_id); or, with `task_ids`, those of them that are parked.
        """

    async def settle(self, settlements: Sequence[Settlement]) -> list[SettleResult]:
        """Write settlements, at most one per (group, shard), each in one transaction with all
        that it carries. Results are in the order of the argument. Idempotent by `settlement_id`.
        """

    async def prune(
        self,
        *,
        journal_keep_s: float,
        journal_detail_s: float = JOURNAL_DETAIL_S,
        journal_minute_s: float = JOURNAL_MINUTE_S,
    ) -> PruneReport:
        """Remove log rows that every group has settled, judged by the journal alone and never by
        age; journal rows older than `journal_keep_s` that are not the last of their shard;
        workers long gone. Makes partitions ahead of time. Any process may call it at any time.

        Puts journal rows together, with their usage added up: those of a minute, or of some minutes
        in a quiet shard, where they are older than `journal_detail_s`, those of an hour where older
        than `journal_minute_s`. See `store/common/compaction.py`.
        """

    async def heartbeat(self, worker: WorkerInfo, ttl_s: float) -> Membership:
        """Record that the worker lives for `ttl_s` from now; 0 means that it leaves."""

    async def acquire(self, worker_id: str, shards: Sequence[tuple[str, ShardId]]) -> list[Lease]:
        """Take those of (group, shard) that are free: never owned, released, or whose owner's
        heartbeat has expired by the database's clock. Raises the epoch, writes the takeover
        settlement (same cursor and open, new epoch, and the marks as `suspects.inherited` returns
        them) and returns the checkpoint, all in one transaction per shard. A shard that a live
        worker holds is left out, which is no error; one that the caller holds already is granted
        again under a new epoch.
        """

    async def release(self, leases: Sequence[Lease]) -> None:
        """Give leases back; those that are held under another epoch by now are left alone."""

    async def now(self) -> int:
        """Read the database's clock, in microseconds since the Unix epoch."""

    async def close(self) -> None:
        """Close all connections. Calling it twice, or before `open`, is fine."""


class WakeUps(Protocol):
    """Notices of commits, from the database itself, for one tail that sleeps.

    A notice comes when its commit can be read, so one look finds the tasks. Still it is a hint: any
    may be lost, late or needless, and what is lost costs what polling costs. No
    method raises an error of the database; after one `ready` is False until `run` has repaired it.
    """

    @property
    def ready(self) -> bool:
        """True if notices can arrive."""

    @property
    def unable(self) -> str:
        """Why notices cannot arrive; empty if they can, or if that is not known (yet)."""

    @property
    def tells_of_fleet(self) -> bool:
        """True if joins, leaves, grants, releases and offers are told of, too."""

    async def run(
        self,
        heard: Callable[[], None],
        lapsed: Callable[[], None],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """Call `heard` for each notice, in this event loop, until it is cancelled; `lapsed` when
        somebody has taken the announcement back for all; and `changed` after a change of the fleet,
        where `tells_of_fleet`."""

    async def announce(self) -> bool:
        """Ask for a notice of each commit that inserts from now on, for some seconds. True: nobody
        had asked, so the caller must look once more before it sleeps."""

    async def withdraw(self) -> None:
        """Take that back, for all workers: those that sleep ask again soon."""
