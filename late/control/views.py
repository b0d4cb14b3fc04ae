"""Answers of the control plane: plain values, whose field names are the keys of `--json`.

Times are microseconds since the Unix epoch, by the database's clock. Ages and lags are in seconds,
by that clock at the time of the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from late.control.past.as_of import AsOf
from late.control.status_views import ObjectiveView, Pause
from late.control.task_list.model import Enqueued
from late.model.lanes import DEFAULT_LANE
from late.model.replay import WindowState
from late.model.task import AttemptError, StepDetail
from late.model.worker_report import LimitedKey, WorkerReport


class Count(msgspec.Struct, frozen=True):
    """A count. If `capped`, counting stopped at a limit, and there are at least `n`."""

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
    """Tasks in the log beyond the group's cursors, which have not started."""
    in_flight: Count = Count()
    """Tasks that started or are due within seconds, which the last checkpoint has in `open`."""
    parked: Count = Count()
    """Tasks in the timer table: delays, retries, and tasks held by their ordering key."""
    dead: Count = Count()
    oldest_age_s: float | None = None
    """Age of the oldest task in the log that is not settled; None if there is none."""
    held: Count = Count()
    """Parked tasks that wait for another task of their ordering key and not for a time. That task
    runs, or has to end in another shard because the lane was resized. It is `capped` if the limit
    of tasks to look at was reached, even if few of these count."""
    killed: Count = Count()
    """Dead letters under which workers died again and again."""

    @property
    def waiting(self) -> int:
        """The number of tasks that need a worker.

        If the search for held tasks reached its limit and found none, one is added, so that a
        scaler does not remove the last worker.
        """
        return self.depth.n + self.in_flight.n + max(self.held.n, int(self.held.capped))


class ShardStatus(msgspec.Struct, frozen=True):
    """One shard in one consumer group."""

    group: str
    shard_id: int
    owner: str | None
    owner_live: bool
    epoch: int
    seq: int
    """Sequence number of the last settlement; 0 before the first."""
    lag: Count
    """Rows of the log beyond the cursor."""
    lag_s: float | None
    """Age of the first row beyond the cursor; None if there is none."""
    in_flight: int
    settled_at_us: int | None
    stale_s: float = 0.0
    """Every task that was committed, or became due, this long ago has ended or was postponed."""
    old: bool = False
    """True for a shard that is no longer part of its lane and gets no new tasks."""
    lane: str = DEFAULT_LANE
    """The lane whose range it is in."""


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
    """The number of (group, shard) pairs that it owns."""


class Reported(msgspec.Struct, frozen=True):
    """The last report of one worker."""

    report: WorkerReport
    at_us: int
    age_s: float
    live: bool
    """Its heartbeat says that it is alive. One that stalls lives too, and says that it is gone."""

    @property
    def fresh(self) -> bool:
        """True if the process was alive lately: it should have written again only now."""
        return self.age_s < 3 * max(self.report.every_s, 5.0)

    @property
    def working(self) -> bool:
        """True if it may own shards as well: others have the tasks of one that died or stalls."""
        return self.fresh and self.live

    @property
    def running(self) -> bool:
        """True if its process runs: by its heartbeat, or by its own word while it stalls."""
        return self.fresh and (self.live or bool(self.report.stalled))


class UnhandledTasks(msgspec.Struct, frozen=True):
    """Parked tasks of one name that no live worker could run when they were last tried."""

    group: str
    queue: str
    task: str
    waiting: Count
    since_s: float
    """The time since one of them was first refused."""
    handlers: int | None = None
    """The number of live workers of the group that have declared a handler of this name. With some,
    the arguments did not fit or the handlers refused. None if some have declared nothing and the
    others have no handler."""


class SuspectTask(msgspec.Struct, frozen=True):
    """A task that ran when its worker died, and has not ended since."""

    group: str
    shard_id: int
    task_id: str
    deaths: int
    """The number of workers that died while it ran."""


class LimitedTasks(msgspec.Struct, frozen=True):
    """Parked tasks of one name that a limit holds back: a setting, or a target that fails."""

    group: str
    queue: str
    task: str
    waiting: Count


class Status(msgspec.Struct, frozen=True):
    """The content of `late status`."""

    now_us: int
    schema_version: str
    deployment: str
    queues: tuple[QueueStatus, ...]
    shards: tuple[ShardStatus, ...]
    workers: tuple[WorkerStatus, ...]
    groups: tuple[GroupView, ...] = ()
    unhandled: tuple[UnhandledTasks, ...] = ()
    limited: tuple[LimitedTasks, ...] = ()
    limited_keys: tuple[LimitedKey, ...] = ()
    """The limit keys whose tasks wait for each other, by the reports of workers; the most waiting
    first."""
    suspects: tuple[SuspectTask, ...] = ()
    """The tasks under which most workers died, at most 100, the most deaths first."""
    pauses: tuple[Pause, ...] = ()
    """The things that are paused, with the actor and the time."""
    objectives: tuple[ObjectiveView, ...] = ()
    """Those of the queues with `objective_s` that are not paused; at most half a minute old."""
    as_of: AsOf | None = None
    """The past moment that was asked for; None: now."""

    def stale_s(self, group: str) -> float | None:
        """Return the staleness of a group's stalest shard; None if the group has no shard."""
        return max((s.stale_s for s in self.shards if s.group == group), default=None)

    def pause(self, kind: str, name: str) -> Pause | None:
        """Return the pause of one thing; None if it is not paused."""
        return next((p for p in self.pauses if (p.kind, p.name) == (kind, name)), None)


class Tenure(msgspec.Struct, frozen=True):
    """One term of one owner of one shard, as the journal shows it."""

    epoch: int
    owner: str
    settlements: int
    """The number of its settlements in the journal, including the one of its takeover."""
    first_us: int
    last_us: int
    cut: bool
    """True if it may have begun before `first_us`, as older settlements were pruned or not read."""


class OwnerView(msgspec.Struct, frozen=True):
    """The owner of one shard in one consumer group, and its former owners."""

    group: str
    shard_id: int
    owner: str | None
    owner_live: bool
    epoch: int
    since_us: int | None
    """The beginning of this term; None without an owner, or if older settlements were not read."""
    fenced: int
    """The number of settlements of former owners that the journal has ever refused."""
    late: int
    """The number of attempts' results that were never recorded, as the worker no longer owned the
    shard."""
    history: tuple[Tenure, ...]
    """Every known term, the latest first."""
    lane: str = DEFAULT_LANE


class Owners(msgspec.Struct, frozen=True):
    """The content of `late status --owners`."""

    now_us: int
    fenced_total: int
    late_total: int
    shards: tuple[OwnerView, ...]


State = Literal["waiting", "logged", "open", "parked", "dead", "settled", "passed", "unknown"]


class TaskInGroup(msgspec.Struct, frozen=True):
    """The state of a task in one consumer group."""

    group: str
    state: State
    """`waiting`: it is a stage of a workflow, and others must be done before it. `logged`: it has
    not started. `open`: it started, or is due within seconds. `settled`: it ended and its row is
    still in the log, or its group began or was reset behind it, so that it may never have run.
    `passed`: the group does not read its queue, or begins after it by its time. `unknown`: it was
    settled long ago, rolled back or never made, or there is no such group."""
    reason: str | None = None
    """The reason for which it is parked or dead."""
    due_at_us: int | None = None
    """The time at which a parked task runs; None if it waits for its ordering key."""
    dead_at_us: int | None = None
    held_key: str | None = None
    attempts: int | None = None
    deaths: int | None = None
    """The known number of workers that died while it ran."""
    suspect: bool = False
    """True if it may have killed a worker. It then runs on trial until an attempt has ended."""
    errors: tuple[AttemptError, ...] = ()
    owner: str | None = None
    history: tuple[StepView, ...] = ()
    """Its steps, the oldest first; empty if no history is kept."""
    payload: str | None = None
    """Its edited payload in this group; None if there is none, or if payloads are not asked for."""
    outcome: str | None = None
    """Its end (`done`, `expired`, ...); None if neither its result nor its history is kept. Of a
    stage it is also `skipped`: it never starts."""


class StepView(msgspec.Struct, frozen=True):
    """One step of a task's history."""

    number: int
    at_us: int
    event: str
    """A `Final`, `retried`, `snoozed`, `died`, `not_capable`, `stalled` or `rescheduled`."""
    worker: str
    detail: StepDetail = StepDetail()


class StageView(msgspec.Struct, frozen=True):
    """One stage of a workflow."""

    stage: int
    task_id: str
    name: str
    queue: str
    state: str
    """`waiting`, `started` (it is in the log), `parked`, `stopping` (cancelled, and it may still
    run), or the end of its task; `purged`, if that was a dead letter that was removed. `skipped`:
    it never starts, as one before it can no longer be done, or for `on_failure` as none failed."""
    after: tuple[int, ...]
    """The stages that must be done before it."""
    ended_at_us: int | None = None
    on_failure: bool = False
    """True if it starts only when another one has failed."""


class TaskView(Enqueued, frozen=True):
    """Everything that the database knows about one task."""

    task_id: str
    shard_id: int
    made_at_us: int
    """The time of its id, by the producer's clock."""
    groups: tuple[TaskInGroup, ...]
    queue: str | None = None
    """The queue. This field and all below are None if no row of the task is left."""
    name: str | None = None
    position: int | None = None
    created_at_us: int | None = None
    """Deprecated, as `enqueued_at_us`."""
    payload_bytes: int | None = None
    payload: str | None = None
    """The payload, if it was asked for: JSON as text, anything else in base64."""
    headers: dict[str, str] | None = None
    options: dict[str, object] | None = None
    workflow: tuple[StageView, ...] = ()
    """The stages of its workflow; none if it belongs to no workflow."""
    as_of: AsOf | None = None
    """The past moment that was asked for; None: now."""
    enqueued_at_us: int | None = None
    """The time of its enqueue: on Spanner the commit's, elsewhere the insert's."""


class DeadView(Enqueued, frozen=True):
    """One dead letter. `payload` is None if it was not asked for."""

    task_id: str
    group: str
    shard_id: int
    dead_at_us: int
    reason: str
    queue: str
    name: str
    created_at_us: int
    """Deprecated, as `enqueued_at_us`."""
    attempts: int
    deaths: int
    errors: tuple[AttemptError, ...]
    payload_bytes: int
    headers: dict[str, str] | None = None
    options: dict[str, object] | None = None
    payload: str | None = None
    enqueued_at_us: int | None = None


class Moved(msgspec.Struct, frozen=True):
    """The effect of a purge or a redrive; with `dry_run` the effect that it would have."""

    count: int
    dry_run: bool
    task_ids: tuple[str, ...]
    """The ids of the first 100."""
    capped: bool = False
    """True if a dry run stopped counting, and there are at least `count`."""
    names: dict[str, int] = {}
    """The number of those of each name, most first; empty where the names were not read."""

    @property
    def counted(self) -> Count:
        """`count` and `capped` as one value."""
        return Count(self.count, self.capped)


class DrainView(msgspec.Struct, frozen=True):
    """A former width of a lane that is not drained."""

    version: int
    shards: int
    state: Literal["closing", "draining"]
    """`closing`: transactions may still write by this width. `draining`: none can."""
    transactions: int = 0
    """The number of transactions that it waits for, if the database lists them."""
    left: dict[str, int] = {}
    """The number of shards that are not drained, by group."""
    keys: int = 0
    """The number of ordering keys that are named as having tasks left."""


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
    """The time of its creation; None if it has no row, as it was used before groups had to be
    created."""
    state: GroupState = "idle"
    """`idle`: no live worker serves it."""
    queues: tuple[str, ...] | None = None
    """The queues that it reads; None if it reads all."""
    from_us: int | None = None
    """The group skips records that were enqueued before this time."""
    replay_us: int | None = None
    """The time of its last reset that made it read records again."""
    workers: int = 0
    """The number of live workers that serve it."""
    owned: int = 0
    """The number of shards that these workers own."""
    lag: Count = Count()
    """The number of records that it has not read."""
    lag_s: float | None = None
    """Age of the oldest record that it has not read; None if it has read all."""
    lagging: bool = False
    """True if that record is older than the alarm allows."""
    stale_s: float | None = None
    """Every task that was committed, or became due, this long ago has ended or was postponed. None
    if only the reading was looked at."""
    shadow_of: str | None = None
    """The group that it is a shadow of; None if it is no shadow."""
    until_us: int | None = None
    """The time at which a shadow is forgotten."""
    objective_s: float | None = None
    """Seconds within which its attempts are to start; None if it has no objective."""
    max_age_s: float | None = None
    """A task that is older when it would begin ends as expired; None: at any age it begins."""
    replay: WindowState | None = None
    """The replay of a window that has not ended; None if there is none."""


class ShardReset(msgspec.Struct, frozen=True):
    """The counted effect of a reset on one shard."""

    shard_id: int
    again: Count
    """Records that the group has read or skipped, and will read."""
    skipped: Count
    """Waiting records that the group will never read."""
    unparked: Count
    """Parked tasks that will be read again. Their timers are removed."""
    dead: Count
    """Dead letters that will be read again. They are removed."""
    kept: Count
    """Started or parked tasks that will not be read again. They continue unchanged."""


class Reset(msgspec.Struct, frozen=True):
    """The effect of a reset of a group; with `dry_run` the effect that it would have."""

    group: str
    to: str
    dry_run: bool
    shards: tuple[ShardReset, ...]
    queues: Mapping[str, Count] = msgspec.field(default_factory=dict)
    """By queue: the tasks that the group reads from there on, those that wait too."""
    oldest_us: int | None = None
    """The time at which the oldest of them was enqueued."""
    newest_us: int | None = None
    """The time at which the newest of those that were counted was enqueued."""
    kept_us: int | None = None
    """The time at which the first task of the log was enqueued: older ones are not kept. None:
    there is none."""
    rate: float | None = None
    """Replayed tasks that begin in a second, at most."""


class Waited(msgspec.Struct, frozen=True):
    """The progress of a group with all tasks up to a token."""

    group: str
    token: str
    state: Literal["settled", "gone", "waiting", "unknown"]
    """`gone`: all is settled, and the token's task is no longer in any table, as every group has
    settled it (or it was never committed). `unknown`: the task is in no table, and the time ended
    before it counted as gone."""
    left: Count = Count()
    """The number of unsettled tasks up to the token, in all shards. At least one, if the token is a
    stage of a workflow that has not started."""

    @property
    def over(self) -> bool:
        """True if there is nothing left to wait for."""
        return self.state in ("settled", "gone")


class Check(msgspec.Struct, frozen=True):
    """One line of `late doctor`."""

    name: str
    result: Literal["ok", "warning", "failed"]
    detail: str
