"""Answers of the control plane: plain values, whose field names are the keys of `--json`.

Times are microseconds since the Unix epoch by the database's clock; ages and lags are in seconds,
counted by that clock at the moment of the answer.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from late.model.task import AttemptError, StepDetail


class Count(msgspec.Struct, frozen=True):
    """A count. `capped`: counting stopped at a limit, there are at least `n`."""

    n: int = 0
    capped: bool = False

    def __add__(self, other: Count) -> Count:
        return Count(self.n + other.n, self.capped or other.capped)

    def __str__(self) -> str:
        return f">= {self.n:,}" if self.capped else f"{self.n:,}"


class QueueStatus(msgspec.Struct, frozen=True):
    """One queue as one consumer group sees it. The first four counts do not overlap."""

    group: str
    queue: str
    depth: Count = Count()
    """In the log, beyond the group's cursors: not started."""
    in_flight: Count = Count()
    """Started or due within seconds: in the last checkpoint's `open`."""
    parked: Count = Count()
    """In the timer table: delays, retries, tasks held by their ordering key."""
    dead: Count = Count()
    oldest_age_s: float | None = None
    """Age of the oldest task in the log that is not settled, None when there is none."""
    held: Count = Count()
    """The parked tasks that wait for no time: the task before them of their key runs, or
    has to end in another shard because their lane was resized. `capped` where as many tasks with
    a key were looked at as the limit allows, also if few of them count."""

    @property
    def waiting(self) -> int:
        """Tasks for which there should be a worker. Where the look for those that are held came to
        its bound and saw none, it is one: nobody is to take the last worker away."""
        return self.depth.n + self.in_flight.n + max(self.held.n, int(self.held.capped))


class ShardStatus(msgspec.Struct, frozen=True):
    """One shard in one consumer group."""

    group: str
    shard_id: int
    owner: str | None
    owner_live: bool
    epoch: int
    seq: int
    """Sequence number of the last settlement, 0 before the first."""
    lag: Count
    """Rows of the log beyond the cursor."""
    lag_s: float | None
    """Age of the first of them."""
    in_flight: int
    settled_at_us: int | None
    stale_s: float = 0.0
    """Everything that was committed, or became due, this long ago is done or was put off."""
    old: bool = False
    """True for a shard that its lane has no more: it gets no new tasks."""


class WorkerStatus(msgspec.Struct, frozen=True):
    """One live worker."""

    worker_id: str
    address: str
    groups: tuple[str, ...]
    capacity: float
    version: str
    started_at_us: int
    expires_in_s: float
    shards: int
    """The number of (group, shard) that it holds."""


class Status(msgspec.Struct, frozen=True):
    """Everything `late status` shows."""

    now_us: int
    schema_version: str
    deployment: str
    queues: tuple[QueueStatus, ...]
    shards: tuple[ShardStatus, ...]
    workers: tuple[WorkerStatus, ...]
    groups: tuple[GroupView, ...] = ()

    def stale_s(self, group: str) -> float | None:
        """Return the staleness of a group's stalest shard; None where it has none."""
        return max((s.stale_s for s in self.shards if s.group == group), default=None)


class Tenure(msgspec.Struct, frozen=True):
    """One term of one owner of one shard, by the journal."""

    epoch: int
    owner: str
    settlements: int
    """The number of its settlements in the journal, that of its takeover included."""
    first_us: int
    last_us: int
    cut: bool
    """It may have begun before `first_us`: older settlements were pruned, or not looked at."""


class OwnerView(msgspec.Struct, frozen=True):
    """The owner of one shard in one consumer group, and its former owners."""

    group: str
    shard_id: int
    owner: str | None
    owner_live: bool
    epoch: int
    since_us: int | None
    """The beginning of this term; None without an owner, or if it is older than what is read."""
    fenced: int
    """Settlements of former owners that the journal has refused, ever."""
    late: int
    """Results of attempts that were not recorded, because their shard had gone, ever."""
    history: tuple[Tenure, ...]
    """The latest term first."""


class Owners(msgspec.Struct, frozen=True):
    """Everything `late status --owners` shows."""

    now_us: int
    fenced_total: int
    late_total: int
    shards: tuple[OwnerView, ...]


State = Literal["logged", "open", "parked", "dead", "settled", "passed", "unknown"]


class TaskInGroup(msgspec.Struct, frozen=True):
    """The state of a task in one consumer group."""

    group: str
    state: State
    """`logged`: not yet started. `open`: started, or due within seconds. `settled`: it ended and
    its row is still in the log, or its group began or was reset behind it, so that it may never
    have run. `passed`: the group does not read its queue, or begins after it by its time.
    `unknown`: settled long ago, rolled back, or never made; or there is no such group."""
    reason: str | None = None
    """Why it is parked or dead."""
    due_at_us: int | None = None
    """The time at which a parked task runs; None for one that waits for its ordering key."""
    dead_at_us: int | None = None
    held_key: str | None = None
    attempts: int | None = None
    deaths: int | None = None
    """The number of workers that died while it ran, as far as that is known."""
    suspect: bool = False
    """It may have killed one: until it has ended by itself, it runs on trial."""
    errors: tuple[AttemptError, ...] = ()
    owner: str | None = None
    history: tuple[StepView, ...] = ()
    """Its steps, the first one first, where they are kept."""
    payload: str | None = None
    """Its payload, if payloads are asked for and an edit has given it another one here."""
    outcome: str | None = None
    """Its end, where its result or its history is kept: `done`, `expired`, ..."""


class StepView(msgspec.Struct, frozen=True):
    """One step of a task's history."""

    number: int
    at_us: int
    event: str
    """A `Final`, `retried`, `snoozed`, `died`, `not_capable`, `stalled` or `rescheduled`."""
    worker: str
    detail: StepDetail = StepDetail()


class TaskView(msgspec.Struct, frozen=True):
    """Everything that the database knows of one task."""

    task_id: str
    shard_id: int
    made_at_us: int
    """By the producer's clock, from the id."""
    groups: tuple[TaskInGroup, ...]
    queue: str | None = None
    """None, like all below, when no row of the task is left."""
    name: str | None = None
    position: int | None = None
    created_at_us: int | None = None
    payload_bytes: int | None = None
    payload: str | None = None
    """Only when it was asked for: JSON as text, anything else in base64."""
    headers: dict[str, str] | None = None
    options: dict[str, object] | None = None


class DeadView(msgspec.Struct, frozen=True):
    """One dead letter; `payload` only when it was asked for."""

    task_id: str
    group: str
    shard_id: int
    dead_at_us: int
    reason: str
    queue: str
    name: str
    created_at_us: int
    attempts: int
    deaths: int
    errors: tuple[AttemptError, ...]
    payload_bytes: int
    headers: dict[str, str] | None = None
    options: dict[str, object] | None = None
    payload: str | None = None


class TimerView(msgspec.Struct, frozen=True):
    """One parked task."""

    task_id: str
    group: str
    shard_id: int
    due_at_us: int
    """`late.task.HELD_US` for one that waits behind its ordering key and not for a time."""
    reason: str
    held_key: str | None
    queue: str
    name: str
    attempts: int


class Moved(msgspec.Struct, frozen=True):
    """The effect of a purge or a redrive, or with `dry_run` what it would be."""

    count: int
    dry_run: bool
    task_ids: tuple[str, ...]
    """Ids of the first 100."""
    capped: bool = False
    """A dry run stopped counting: at least so many."""

    @property
    def counted(self) -> Count:
        """The same as one value."""
        return Count(self.count, self.capped)


class DrainView(msgspec.Struct, frozen=True):
    """A width that a lane had before it was resized, and that is not drained."""

    version: int
    shards: int
    state: Literal["closing", "draining"]
    """`closing`: transactions may still write by it."""
    transactions: int = 0
    """Transactions that it waits for, where the database tells them."""
    left: dict[str, int] = {}
    """Group -> shards that are not drained."""
    keys: int = 0
    """Ordering keys with tasks left, as far as they are named."""


class LaneView(msgspec.Struct, frozen=True):
    """A named range of shards."""

    name: str
    first_shard: int
    shards: int
    version: int = 0
    """The number of times it was resized."""
    draining: tuple[DrainView, ...] = ()


GroupState = Literal["working", "paused", "idle", "unregistered"]


class GroupView(msgspec.Struct, frozen=True):
    """A consumer group."""

    name: str
    created_at_us: int | None
    """None: no row of its own; it was worked before groups had to be created."""
    state: GroupState = "idle"
    """`idle`: no live worker serves it."""
    queues: tuple[str, ...] | None = None
    """The queues that it reads; None: all."""
    from_us: int | None = None
    """Records created before are passed over."""
    replay_us: int | None = None
    """The time of its last reset to read something again."""
    workers: int = 0
    """Live ones that serve it."""
    owned: int = 0
    """Shards in their hands."""
    lag: Count = Count()
    """Records that it has not read."""
    lag_s: float | None = None
    """Age of the oldest of them."""
    lagging: bool = False
    """Older than the alarm allows."""
    stale_s: float | None = None
    """Everything that was committed, or became due, this long ago is done or was put off; None
    where only the reading was looked at."""


class ShardReset(msgspec.Struct, frozen=True):
    """The effect of a reset on one shard, as far as it was counted."""

    shard_id: int
    again: Count
    """Records that were read or passed over, and will be read."""
    skipped: Count
    """Records that wait, and will never be read by this group."""
    unparked: Count
    """Parked tasks that are among those read again: their timers go."""
    dead: Count
    """The same of dead letters."""
    kept: Count
    """Started or parked tasks that will not be read again: they go on where they are."""


class Reset(msgspec.Struct, frozen=True):
    """The effect of a reset of a group, or with `dry_run` what it would be."""

    group: str
    to: str
    dry_run: bool
    shards: tuple[ShardReset, ...]


class Waited(msgspec.Struct, frozen=True):
    """The progress of a group with all tasks up to a token."""

    group: str
    token: str
    state: Literal["settled", "gone", "waiting", "unknown"]
    """`gone`: settled, and the token's task is in no table any more, as every group has settled it
    (or it was never committed). `unknown`: in no table, and the time was up at once."""
    left: Count = Count()
    """Unsettled tasks up to the token, in all shards."""


class Check(msgspec.Struct, frozen=True):
    """One line of `late doctor`."""

    name: str
    result: Literal["ok", "warning", "failed"]
    detail: str
