"""The values that all parts of `late` exchange: frozen, comparable, without I/O.

Times are integers: microseconds since the Unix epoch **by the database's clock**, with the suffix
`_us`. An integer is exact, so that "never early" can be checked exactly. A float would lose the
microsecond, and a `datetime` costs ten times as much to build per row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, NewType

import msgspec

TaskId = NewType("TaskId", str)
"""Canonical lower-case UUIDv7, 36 characters, made by the producer. See `late/model/ids.py`."""
ShardId = NewType("ShardId", int)
Epoch = NewType("Epoch", int)
"""Fencing token of a lease: higher with every grant."""
Cursor = NewType("Cursor", str)
"""Opaque to all but the store that made it: every record that it covers has been read.
The empty string covers nothing: a group that reads from the beginning starts there."""

DEFAULT_GROUP = "default"
CONTROL_QUEUE = "late.control"
"""The queue of commands (`late/payload/command.py`). Every group reads it."""
PULL = "pull"
"""The `Policy.target` of tasks that consumers fetch. Each such queue has a pool of its own, whose
name begins with `PULL_POOL`."""
PULL_POOL = "pull:"
BATCH_POOL = "batch:"
"""The beginning of the name of a batch handler's pool; the task's name follows."""
TRANSACTION_POOL = "transaction:local"
"""The pool of tasks whose handlers share transactions with the record of their ends."""
LIMIT_KEY = "limit_key"
"""The header with the limit key of a task: `key_concurrency` and `key_rate` of its queue hold for
all tasks that have the same one. It chooses the shard, if there is no ordering key."""
SHARDS_MAX = 4096
"""Twelve bits of a task id name its shard."""

Reason = Literal[
    "delay", "retry", "snooze", "held", "unknown", "interrupted", "limited", "unfetched"
]
"""The reason why a task is parked. `limited`: a setting limits it, or its target fails.
`unfetched`: it was due, and no consumer asked for it."""
Kind = Literal[
    "done", "failed", "snooze", "discard", "dead", "expired", "interrupted", "died", "not_capable"
]
"""The end of one attempt. After `failed` the retry policy decides; `interrupted` and `not_capable`
use no attempt; `died` (the process of the attempt ended) is counted separately."""
ENQUEUED = "enqueued"
"""The outcome in `Usage` that counts tasks when the checkpoint first covers them, each once. They
are neither attempts nor ends. Their ages show when they arrived, even if they stayed in the log for
long."""
TENANTS_OTHER = "*"
Counts = tuple[tuple[str, int], ...]
"""(name, sum) of what handlers count with `ctx.count`, ascending by name."""
Histogram = tuple[tuple[int, int], ...]
"""(bucket, count), ascending by bucket: see `late/model/histogram.py`."""
Final = Literal["done", "dead", "expired", "discarded", "cancelled"]
"""The end of a task, once per consumer group."""

# The states of a task within one consumer group, and those that may follow each. No other
# transition exists: the core asserts this table at every change, and `docs/state_machine.md` is
# generated from it.
TRANSITIONS: dict[str, tuple[str, ...]] = {
    # The record was read from the log (or, after a takeover, by its key); no decision was made yet.
    "logged": ("waiting", "held", "ready", "parked", "expired", "dead"),
    # The task is due soon. It is in memory only, so it stays in the checkpoint's `open`.
    "waiting": ("held", "ready", "parked", "expired", "dead", "cancelled"),
    # The task waits for another task of its ordering key.
    "held": ("ready", "parked", "expired", "dead", "cancelled"),
    "ready": ("running", "expired", "parked", "cancelled"),
    # The task is in the timer table, or the next settlement writes it there.
    "parked": ("waiting", "held", "ready", "expired", "dead"),
    "running": ("done", "parked", "ready", "dead", "expired", "discarded", "cancelled"),
    "done": (),
    "dead": (),
    "expired": (),
    "discarded": (),
    "cancelled": (),
}


class Options(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """The producer's options, without those that are defaults. Stored as JSON; NULL if all are.

    Unknown fields come from a newer producer. The worker parks such a task, because it cannot run
    it as the producer asked.
    """

    at_us: int | None = None
    """Do not start before this time."""
    delay_us: int = 0
    """Do not start before the record's `created_at_us` + this."""
    expires_at_us: int | None = None
    """Do not start at or after this time: the task ends as `expired`."""
    expires_in_us: int | None = None
    """The same, as a time after `created_at_us`."""
    priority: int = 0
    """-100..100; higher ones start first; below 0 is background work."""
    ordering_key: str | None = None
    unique_key: str | None = None
    codec: str | None = None
    """The encoding of the payload if it is not JSON: `msgpack`, or the name of a codec."""
    schedule: str | None = None
    """The name of the recurring schedule, if this task is a tick of one."""
    subject: str | None = None
    """The id of the tenant or person whose key encrypts the payload, if it belongs to one."""
    layout: int = 0
    """With an ordering key: the version of the lane by which its shard was chosen."""
    stage: bool = False
    """It is a stage of a workflow: its end is recorded in `late_stage`."""
    committed_below: int = 0
    """With an ordering key, where the log's order is not that of commits: every transaction that
    had committed when the task was inserted has a position below this one. 0: below its own."""
    replay: bool = False
    """Its group has settled it before, and runs it again: it was copied by a replay of a window."""


OnConflict = Literal["existing", "reject", "replace"]
"""The treatment of a task whose unique key is taken: `existing` returns the id of the first task,
`reject` raises `KeyConflict`, `replace` puts the new task in the place of the first."""


class Fence(NamedTuple):
    """A version of a lane, which rows of an insert depend on."""

    lane: str
    version: int


class NewTask(msgspec.Struct, frozen=True, gc=False):
    """One row to insert, already validated, as a producer's adapter (`late/outbox`) receives it."""

    shard_id: int
    task_id: TaskId
    queue: str
    name: str
    payload: bytes
    headers: str | None = None
    """JSON object of strings, or NULL."""
    options: str | None = None
    """JSON of `Options`, or NULL."""
    unique_key: str | None = None
    digest: str | None = None
    """Hash of name and payload. It distinguishes a repeat of the same request from a conflict."""
    unique_for_us: int | None = None
    """The key stays taken for at least this long, even if the task ends sooner."""
    on_conflict: OnConflict = "existing"
    fence: Fence | None = None
    """With an ordering key: its lane must still have this version, which is `Options.layout`, when
    the row is written."""
    max_wait_us: int | None = None
    """With `replace`, and a delay, which is `unique_for_us`: the longest time from the first call
    of the key that has not run to the due time. See `late/outbox/debounce.py`."""
    at: Callable[[int], NewTask] | None = None
    """With `max_wait_us`: it makes this row for the due time that the transaction finds."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """One row of the task log as it was read. Headers and options are not decoded: few tasks need
    them."""

    shard_id: int
    position: int
    task_id: TaskId
    queue: str
    name: str
    payload: bytes
    headers: str | None
    options: str | None
    created_at_us: int
    """Insert time by the database's clock; the commit time if the store's `Features` say so."""
    sequence: int
    """The order among tasks of the same ordering key: ascending, and by `task_id` if equal."""


def emptied(record: Record) -> Record:
    """Return a record without its payload and headers."""
    return msgspec.structs.replace(record, payload=b"", headers=None)


class OpenTask(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The key of a record that a checkpoint's cursor covers but that is not settled yet."""

    position: int
    task_id: TaskId
    started: bool = False
    """An attempt of it was under way when the checkpoint was written. Older versions did not say
    so."""


class Suspect(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A task that ran, or was about to run, when its worker died; or that runs under a mark."""

    task_id: TaskId
    deaths: int
    """The number of workers that have died while it ran under a mark."""
    running: bool = False
    """The mark: it may be running now."""


class Reads(msgspec.Struct, frozen=True):
    """The part of the log that a consumer group reads, and the part that it may have run before."""

    queues: frozenset[str] | None = None
    """The queues that the group reads; None stands for all."""
    from_us: int = 0
    """Records that were created before this time are passed over: they count as settled."""
    replay_us: int = 0
    """Records that were created before this time are replays: the group was reset later."""
    shadow: bool = False
    """It is a shadow: its tasks are run without effects."""

    def takes(self, record: Record) -> bool:
        return record.created_at_us >= self.from_us and (
            self.queues is None or record.queue in self.queues
        )


class AttemptError(msgspec.Struct, frozen=True, omit_defaults=True):
    """One failed attempt. The dispatcher cuts the text of the error at 4 KiB."""

    attempt: int
    at_us: int
    worker: str
    error: str


def last_attempt_began_us(errors: tuple[AttemptError, ...]) -> int:
    """Return the time of the first error of the last attempt: a refused attempt is made again and
    again. `errors` must not be empty."""
    return min(error.at_us for error in errors if error.attempt == errors[-1].attempt)


class Parked(msgspec.Struct, frozen=True):
    """A task that is kept in the timer table until `due_at_us`."""

    record: Record
    due_at_us: int
    """`HELD_US` for a task that waits behind its ordering key and not for a time."""
    reason: Reason
    attempts: int = 0
    """Attempts used so far."""
    deaths: int = 0
    """Processes that died while they ran it so far."""
    held_key: str | None = None
    """Its ordering key, if later tasks of the key wait while this task is parked."""
    errors: tuple[AttemptError, ...] = ()


HELD_US = 2**62
"""The due time of a task that waits for its ordering key only. It is after every real time."""


SUBJECT_DROPPED = "subject_dropped"
"""The reason of a dead letter whose subject has no key any more. It has no payload, no headers, and
no errors of earlier attempts."""


KILLED_WORKER = "killed_worker"
"""The reason of a dead letter under which workers died again and again."""


class DeadLetter(msgspec.Struct, frozen=True):
    """A task that will not run again by itself, with the reason and the errors of its attempts."""

    record: Record
    reason: str
    """A word that does not change: `failed`, `undecodable`, `payload_too_large`, `killed_worker`,
    `gave_up`, ..."""
    attempts: int
    deaths: int
    errors: tuple[AttemptError, ...] = ()


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One start of one task, as the dispatcher receives it."""

    group: str
    record: Record
    number: int
    """1 for the first attempt."""
    deaths: int
    epoch: int
    due_at_us: int
    """The due time of the attempt. Its waiting time counts from here."""
    options: Options | None = None
    deadline_us: int | None = None
    """The time at which the task expires. It is not the time-out of the attempt."""
    target: str = "local"
    """The pool that executes it."""
    timeout_us: int | None = None
    """The time that it may take, if a setting replaces the handler's time-out."""
    is_replay: bool = False
    """True if its group was reset after the task was created: it may have run before."""
    keeps_result: bool = False
    """True if its return value is kept: see `Policy.result_ttl_us`."""
    shadow: bool = False
    """True if its group is a shadow: it must have no effect."""

    @property
    def is_background(self) -> bool:
        """True when its priority is below 0: others go first."""
        return self.options is not None and self.options.priority < 0


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The end of one attempt, as the dispatcher reports it."""

    attempt: Attempt
    kind: Kind
    started_at_us: int
    busy_us: int
    target: str = "local"
    error: str | None = None
    reason: str | None = None
    """The reason of a dead letter, if the dispatcher knows it: a word that does not change."""
    after_us: int | None = None
    """The explicit wait of a `snooze` or of a `Retry(after_s)`."""
    retryable: bool = True
    """True if the policy's `retry_on` / `give_up_on` allow another attempt."""
    jitter: float = 0.0
    """Uniform in [0, 1). It is drawn outside the core, which has no random source."""
    overloaded: bool = False
    """True for a failure that shows that the target has too much to do: a refusal or a time-out."""
    result: bytes | None = None
    """The handler's return value as JSON, if it is to be kept."""
    begun: bool = True
    """False if its handler was not called: then the usage counts no attempt."""
    counts: Counts = ()
    """The sums of its calls of `ctx.count`, if it is done."""


class Usage(msgspec.Struct, frozen=True, array_like=True):
    """The counts of one settlement for one (queue, name, target, outcome, tenant). They add up.

    New fields are added at the end only: rows of older versions lack them and get their defaults.
    """

    queue: str
    name: str
    target: str
    outcome: str
    """A `Final`, or `retried` / `stalled` / `snoozed` / `interrupted` / `died` / `not_capable` for
    attempts that did not end a task, or `ENQUEUED`."""
    count: int = 0
    attempts: int = 0
    busy_us: int = 0
    waiting_us: int = 0
    payload_bytes: int = 0
    retries: int = 0
    """The attempts that were not the first of their task."""
    lateness_us: int = 0
    """The part of `waiting_us` that belongs to the `delayed` attempts."""
    delayed: int = 0
    """Attempts whose due time was set (by a delay, a time or a retry) and is not their arrival."""
    waiting: Histogram = ()
    """Attempts by waiting time. For `ENQUEUED`: tasks by age."""
    busy: Histogram = ()
    """Attempts by running time."""
    tenant: str | None = None
    """The tenant, if the queue has a fair key. Beyond a number of tenants, the rest counts as
    `TENANTS_OTHER`."""
    counts: Counts = ()
    """The sums that handlers of tasks that are done have counted."""


class StepDetail(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The details of one step of a task's history."""

    attempt: int | None = None
    target: str = ""
    started_at_us: int | None = None
    busy_us: int | None = None
    until_us: int | None = None
    """The time when the task may run, if it was postponed."""
    reason: str | None = None
    error: str | None = None
    """The beginning of the error. The dead letter or the parked task has all of it."""


class EndDetail(StepDetail, frozen=True, omit_defaults=True, gc=False):
    """The details of a task's last step, which may outlive its row of the log."""

    queue: str = ""
    name: str = ""


class Policy(msgspec.Struct, frozen=True):
    """The rules for running and repeating a task: `@app.task`'s arguments as plain values."""

    queue: str = "default"
    max_attempts: int = 12
    base_us: int = 1_000_000
    factor: float = 2.0
    cap_us: int = 900_000_000
    full_jitter: bool = True
    deadline_us: int = 86_400_000_000
    """No retry begins later than this after the first failed attempt."""
    target: str = "local"
    """The pool that executes it: the worker itself, or a service."""
    result_ttl_us: int = 0
    """The time that a result is kept; with 0 it is not kept."""
    history: bool = False
    """True if each step of its tasks is recorded in their histories."""


class Schedule(msgspec.Struct, frozen=True):
    """One row of `late_schedule`: a recurring task."""

    name: str
    shard_id: int
    rule: str
    """A cron expression of five fields (six with seconds), or `every 90s`."""
    zone: str
    catch_up: Literal["skip", "latest", "all"]
    catch_up_max: int
    overlap: Literal["allow", "skip", "queue"]
    queue: str
    task_name: str
    payload: bytes
    options: str | None
    anchor_us: int
    next_due_at_us: int | None
    paused: bool = False
    open_task_id: TaskId | None = None
    jitter_us: int = 0
    """The most by which a tick comes later than the rule says; how much follows from the tick."""
    former: tuple[Schedule, ...] = ()
    """Only of a declaration without a name of its own: the same under each former name of its task.
    The database keeps the one that it has."""
