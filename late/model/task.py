"""The values that travel through `late`: frozen, comparable, free of behaviour that does I/O.

Times are integers: microseconds since the Unix epoch **by the database's clock**, with the suffix
`_us`. An integer is exact, so that "never early" can be compared and not only approximated; a
float would lose the microsecond, a `datetime` costs ten times as much to build per row.
"""

from __future__ import annotations

from typing import Literal, NewType

import msgspec

TaskId = NewType("TaskId", str)
"""Canonical lower-case UUIDv7, 36 characters, made by the producer. See `late/model/ids.py`."""
ShardId = NewType("ShardId", int)
Epoch = NewType("Epoch", int)
"""Fencing token of a lease: higher with every grant."""
Cursor = NewType("Cursor", str)
"""Opaque to everyone but the store that made it: everything it covers has been read.
The empty string covers nothing: it is where a group starts that reads from the beginning."""
Position = NewType("Position", int)
"""A record's place in the store's log order: page key within a cursor, **not** a watermark."""

DEFAULT_GROUP = "default"
CONTROL_QUEUE = "late.control"
"""The queue of commands (`late/payload/command.py`): every group reads it."""
PULL = "pull"
"""The `Policy.target` of tasks that consumers fetch. Each such queue has a pool of its own, whose
name begins with `PULL_POOL`."""
PULL_POOL = "pull:"
BATCH_POOL = "batch:"
"""Beginning of the name of a batch handler's pool; its task's name follows."""
SHARDS_MAX = 4096
"""Twelve bits of a task id name its shard."""

Reason = Literal[
    "delay", "retry", "snooze", "held", "unknown", "interrupted", "limited", "unfetched"
]
"""Why a task is parked; `limited`: by a knob, or because its target fails; `unfetched`: its time
had come, and no consumer asked for it."""
Kind = Literal[
    "done", "failed", "snooze", "discard", "dead", "expired", "interrupted", "died", "not_capable"
]
"""The end of one attempt. `failed` asks the retry policy; `interrupted` and `not_capable` cost no
attempt; `died` (the process went away under the task) is counted on its own."""
ENQUEUED = "enqueued"
"""In the usage ledger: tasks that the checkpoint has come to cover, each once. They are neither
attempts nor ends. Their ages say when they arrived, however long they stood in the log."""
TENANTS_OTHER = "*"
Histogram = tuple[tuple[int, int], ...]
"""(bucket, count), ascending by bucket: see `late/model/histogram.py`."""
Final = Literal["done", "dead", "expired", "discarded", "cancelled"]
"""The end of a task, once per consumer group."""

# The life of a task within one consumer group. `docs/state_machine.md` is generated from this
# table, and the core asserts it at every move: no other transition exists.
TRANSITIONS: dict[str, tuple[str, ...]] = {
    # Read from the log (or, after a takeover, fetched by its key), not yet judged.
    "logged": ("waiting", "held", "ready", "parked", "expired", "dead"),
    # Due soon: in memory only, so it stays in the checkpoint's `open`.
    "waiting": ("held", "ready", "parked", "expired", "dead", "cancelled"),
    # Behind another task of its ordering key.
    "held": ("ready", "parked", "expired", "dead", "cancelled"),
    "ready": ("running", "expired", "parked", "cancelled"),
    # In the timer table, or on its way there with the next settlement.
    "parked": ("waiting", "held", "ready", "expired", "dead"),
    "running": ("done", "parked", "ready", "dead", "expired", "discarded", "cancelled"),
    "done": (),
    "dead": (),
    "expired": (),
    "discarded": (),
    "cancelled": (),
}


class Options(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The producer's options that are no defaults; stored as JSON, NULL when all default.

    Unknown fields come from a newer producer: the worker parks such a task instead of running
    it without what was asked.
    """

    at_us: int | None = None
    """Do not start before this time."""
    delay_us: int = 0
    """Do not start before the record's `created_at_us` + this."""
    expires_at_us: int | None = None
    """Do not start at or after this time: the task ends as `expired`."""
    expires_in_us: int | None = None
    """The same, counted from `created_at_us`."""
    priority: int = 0
    """-100..100, higher first; below 0 is background work."""
    ordering_key: str | None = None
    unique_key: str | None = None
    codec: str | None = None
    """The encoding of the payload if it is not JSON: `msgpack`, or a codec's own name."""
    schedule: str | None = None
    """Name of the recurring schedule that this task is a tick of."""
    layout: int = 0
    """With an ordering key: the version of its lane by which its shard was chosen."""


OnConflict = Literal["existing", "reject", "replace"]
"""The treatment of a task whose unique key is taken: the first one's id is returned, `KeyConflict`,
or it takes the first one's place."""


class NewTask(msgspec.Struct, frozen=True, gc=False):
    """One row to insert: what a producer's adapter (`late/outbox`) gets, already validated."""

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
    """Hash of name and payload: tells a repeat of the same request from a conflict."""
    unique_for_us: int | None = None
    """The key stays taken for at least this long, although the task has ended."""
    on_conflict: OnConflict = "existing"
    layout: int | None = None
    """With an ordering key: `Options.layout`, which its lane must have when the row is written."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """One row of the task log as read: raw, because most tasks never need more than this."""

    shard_id: int
    position: int
    task_id: TaskId
    queue: str
    name: str
    payload: bytes
    headers: str | None
    options: str | None
    created_at_us: int
    """Insert time by the database's clock; the commit time where `Features` says so."""
    sequence: int
    """Order among tasks of the same ordering key: ascending, ties broken by `task_id`."""


class OpenTask(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Key of a record that a checkpoint's cursor covers but that is not settled yet."""

    position: int
    task_id: TaskId


class Suspect(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A task that was running, or about to, when its worker died; or that runs under a mark."""

    task_id: TaskId
    deaths: int
    """The number of workers that have died while it ran under a mark."""
    running: bool = False
    """The mark: it may be running now."""


class Reads(msgspec.Struct, frozen=True):
    """The part of the log that a consumer group takes, and what of that it may have seen before."""

    queues: frozenset[str] | None = None
    """None: all of them."""
    from_us: int = 0
    """Records that were created before are passed over: they count as settled."""
    replay_us: int = 0
    """Records that were created before are replays: the group was reset since."""

    def takes(self, record: Record) -> bool:
        return record.created_at_us >= self.from_us and (
            self.queues is None or record.queue in self.queues
        )


class AttemptError(msgspec.Struct, frozen=True, omit_defaults=True):
    """The record of one failed attempt; text only, capped at 4 KiB by the dispatcher."""

    attempt: int
    at_us: int
    worker: str
    error: str


class Parked(msgspec.Struct, frozen=True):
    """A task in the timer table: out of the log's way until `due_at_us`."""

    record: Record
    due_at_us: int
    """`HELD_US` for a task that waits behind its ordering key and not for a time."""
    reason: Reason
    attempts: int = 0
    """Attempts used so far."""
    deaths: int = 0
    """Processes that went away under it so far."""
    held_key: str | None = None
    """Its ordering key, if the key stays blocked while this task is parked."""
    errors: tuple[AttemptError, ...] = ()


HELD_US = 2**62
"""Due time of a task that only its ordering key releases: after every real time."""


class DeadLetter(msgspec.Struct, frozen=True):
    """A task that will not run again by itself, with all that is known of why."""

    record: Record
    reason: str
    """Stable word: `failed`, `undecodable`, `payload_too_large`, `killed_worker`, `gave_up`, ..."""
    attempts: int
    deaths: int
    errors: tuple[AttemptError, ...] = ()


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One start of one task, handed to the dispatcher."""

    group: str
    record: Record
    number: int
    """1 for the first attempt."""
    deaths: int
    epoch: int
    due_at_us: int
    """Its due time; waiting time counts from here."""
    options: Options | None = None
    deadline_us: int | None = None
    """The time at which this attempt is worthless (expiry), not its time-out."""
    target: str = "local"
    """The pool that executes it."""
    timeout_us: int | None = None
    """The time that it may take, where a knob says so and not its handler."""
    is_replay: bool = False
    """Its group was reset since the task was created: it may have run before."""
    keeps_result: bool = False
    """True if its return value is kept: see `Policy.result_ttl_us`."""


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The end of one attempt, as the dispatcher saw it."""

    attempt: Attempt
    kind: Kind
    started_at_us: int
    busy_us: int
    target: str = "local"
    error: str | None = None
    reason: str | None = None
    """Stable word for a dead letter, when the dispatcher knows it."""
    after_us: int | None = None
    """Explicit wait of a `snooze` or of a `Retry(after_s)`."""
    retryable: bool = True
    """True if the policy's `retry_on` / `give_up_on` allow another attempt."""
    jitter: float = 0.0
    """Uniform in [0, 1): drawn outside, so that the core has no random of its own."""
    overloaded: bool = False
    """A failure that says that the target has too much to do: a refusal, a time-out."""
    result: bytes | None = None
    """JSON of what the handler returned, where it is to be kept."""


class Usage(msgspec.Struct, frozen=True, array_like=True):
    """Counts of one settlement for one (queue, name, target, outcome, tenant); additive.

    Fields are only ever added at the end: rows of older versions lack them and read as none.
    """

    queue: str
    name: str
    target: str
    outcome: str
    """A `Final`, or `retried` / `snoozed` / `interrupted` for attempts that did not end a task, or
    `ENQUEUED`."""
    count: int = 0
    attempts: int = 0
    busy_us: int = 0
    waiting_us: int = 0
    payload_bytes: int = 0
    retries: int = 0
    """Those of the attempts that were not a task's first."""
    lateness_us: int = 0
    """The part of `waiting_us` that is of the `delayed` attempts."""
    delayed: int = 0
    """Attempts whose due time was set (a delay, a time, a retry) and not their arrival."""
    waiting: Histogram = ()
    """Attempts by waiting time; of `ENQUEUED`, tasks by their age."""
    busy: Histogram = ()
    """Attempts by running time."""
    tenant: str | None = None
    """The tenant, if the queue has a fair key; `TENANTS_OTHER` for those beyond a number."""


class StepDetail(msgspec.Struct, frozen=True, omit_defaults=True):
    """More of one step of a task's history."""

    attempt: int | None = None
    target: str = ""
    started_at_us: int | None = None
    busy_us: int | None = None
    until_us: int | None = None
    """The time when it may go on, if it was put off."""
    reason: str | None = None
    error: str | None = None
    """Its beginning; all of it is with the dead letter or the parked task."""


class Policy(msgspec.Struct, frozen=True):
    """The rules by which a task is run and repeated: `@app.task`'s arguments as plain values."""

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
    """The time that its result is kept; 0: not at all."""
    history: bool = False
    """True if each step of its tasks is written down."""


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
