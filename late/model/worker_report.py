"""The report of a worker: what it calls, how that answers, and what of its own work stands still.

A worker writes it while it has something to tell, in a row of its own (`late_worker_report`), also
while it has given its shards up and its heartbeat says that it is gone. So an operator sees a
process that lives and does not get on. Fields have defaults and are left out where they hold them:
a report of another version stays readable.
"""

from __future__ import annotations

import msgspec

from late.errors import LateError

ERROR_MAX = 300
"""Characters of an error that a report keeps."""
NAMES_MAX = 50
"""A report names this many tasks of one target, and this many stuck runs."""
RUNS_MAX = 20
"""A report names this many runs."""
QUEUES_MAX = 1_000
"""A report names this many queues."""


class Held(msgspec.Struct, frozen=True):
    """Tasks of one queue in a worker's memory that an open circuit holds back."""

    group: str
    queue: str
    tasks: int


class TargetReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """One target as one worker sees it. Times are the database's, in microseconds."""

    name: str
    kind: str = ""
    """`http` or `grpc`."""
    where: str = ""
    """The address, for display."""
    calls: int = 0
    """Calls that ended in the last ten seconds, or in those before the circuit opened."""
    failed: int = 0
    """Those of them that failed."""
    error: str = ""
    """The error of the last call that failed."""
    error_at_us: int = 0
    open_since_us: int | None = None
    """The time since when the circuit has not been closed; None while it is."""
    waiting: int = 0
    """Tasks in this worker's memory that wait for the target, without those that are parked too."""
    tasks: tuple[str, ...] = ()
    """Names of tasks that go there."""
    held: tuple[Held, ...] = ()
    """The tasks that wait for it while its circuit is open, by queue."""


CONSUMER = "consumer "
"""The beginning of `Run.where` for a consumer."""


class OutageReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """An outage: most tasks of one name fail in handlers, so that a failure says nothing of one."""

    group: str
    queue: str
    task: str
    since_us: int = 0
    error: str = ""
    """The error of the last attempt that failed in this worker."""
    error_at_us: int = 0


class Failing(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tasks of one name of which an attempt failed lately, and which are in no outage."""

    group: str
    queue: str
    task: str
    error: str = ""
    """The error of the last attempt that failed in this worker."""
    error_at_us: int = 0


class OpenCircuit(msgspec.Struct, frozen=True, omit_defaults=True):
    """A queue whose breaker is open in one worker: its tasks wait there."""

    queue: str
    since_us: int = 0
    """The time since when it has not been closed."""
    calls: int = 0
    """Attempts that ended in the ten seconds before it opened."""
    failed: int = 0
    error: str = ""
    """The error of the last attempt that failed."""
    error_at_us: int = 0


class LimitedKey(msgspec.Struct, frozen=True, omit_defaults=True):
    """A limit key whose tasks wait for each other, as the owner of its shard sees it."""

    group: str
    queue: str
    key: str
    running: int = 0
    waiting: int = 0
    """Tasks in the owner's memory that could start, if it were not for the limit."""
    concurrency: int | None = None
    """`key_concurrency` of the queue."""
    rate: float | None = None
    """`key_rate` of the queue."""

    @property
    def text(self) -> str:
        """Return what holds it back, in words."""
        of = "" if self.concurrency is None else f" of {self.concurrency}"
        rate = "" if self.rate is None else f", {self.rate:g}/s at most"
        return f"key {self.key}, {self.running}{of} running{rate}, {self.waiting:,} wait"


class Run(msgspec.Struct, frozen=True, omit_defaults=True):
    """One attempt that has begun and has not ended."""

    group: str
    queue: str
    task: str
    task_id: str
    since_us: int = 0
    """The time at which its attempt began."""
    attempt: int = 0
    """1 for the first one."""
    where: str = ""
    """The target or the consumer that has it; empty if it runs in the worker itself."""
    until_us: int | None = None
    """The time until which a consumer has it, if it does not ask for more."""
    trace: str = ""
    """The id of its trace, if it has one."""


class SilentConsumer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A consumer of a pulled queue that takes tasks and lets their time pass."""

    queue: str
    consumer: str
    unanswered: int = 0
    """The tasks whose time it let pass since it last answered."""


class ScheduleSlips(msgspec.Struct, frozen=True, omit_defaults=True):
    """The ticks of one schedule that did not go as planned, since the worker owns it."""

    schedule: str
    skipped: int = 0
    """Times that policy left out: an earlier task had not ended, or they were long ago."""
    overlaps: int = 0
    """Ticks at which the task of an earlier one had not ended."""
    late: int = 0
    """Ticks that fired more than a minute after their time."""
    at_us: int = 0
    """The last of all these."""
    late_us: int = 0
    """The time by which it fired too late."""
    overlap: str = ""
    """The policy of the schedule."""
    open_task_id: str = ""
    """The earlier task, if it had not ended."""
    rule: str = ""
    """The times of the schedule: a cron expression, or `every 90s`."""


class ConflictReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """Transactions of one tag that another one ended or held up, as one worker has seen it."""

    kind: str
    """A kind of `late.observability.conflicts`."""
    tag: str
    """The transactions that have lost the time."""
    other: str = ""
    """The transaction in their way; empty if it is not known."""
    place: str = ""
    """The row, as far as it is known, else the tables."""
    statement: str = ""
    other_statement: str = ""
    other_idle: bool = False
    """The other one held its locks and had no statement running."""
    attempt: int = 1
    """The highest number of an attempt."""
    lost_s: float = 0.0
    """The time lost in the last ten minutes."""
    count: int = 0
    before_s: float = 0.0
    """The time lost in the ten minutes before those."""
    before: int = 0
    """The number of conflicts in them."""


class Block(msgspec.Struct, frozen=True, omit_defaults=True):
    """Code that keeps a worker's event loop from turning."""

    place: str
    """Its file, line and function."""
    since_us: int
    task: str = ""
    """The name of the task that runs it, if it is known."""
    task_id: str = ""


class WorkerReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """The report of one worker."""

    worker_id: str
    address: str
    """Host and process id."""
    groups: tuple[str, ...] = ()
    every_s: float = 0.0
    """The longest time until it is written again."""
    queues: tuple[str, ...] = ()
    """The queues whose tasks it runs, ascending: an idle one is to be seen too."""
    stalled: tuple[str, ...] = ()
    """The duties that are left undone, see `late.worker.watch.progress`."""
    stalled_since_us: int | None = None
    blocked: Block | None = None
    """The place at which its event loop has stood for two seconds and more."""
    slots: int = 0
    running: int = 0
    unrecorded: int = 0
    """Ends of tasks that are in no settlement of the database yet: a death repeats these tasks."""
    stuck: tuple[Run, ...] = ()
    """Handlers that run on after their time-out."""
    runs: tuple[Run, ...] = ()
    """The longest of what runs for over two seconds, the oldest first."""
    targets: tuple[TargetReport, ...] = ()
    outages: tuple[OutageReport, ...] = ()
    """The names of which most tasks fail, see `late.scheduler.limits.outages`."""
    failing: tuple[Failing, ...] = ()
    circuits: tuple[OpenCircuit, ...] = ()
    limited_keys: tuple[LimitedKey, ...] = ()
    """The limit keys of which most tasks wait for each other."""
    silent: tuple[SilentConsumer, ...] = ()
    slips: tuple[ScheduleSlips, ...] = ()
    conflicts: tuple[ConflictReport, ...] = ()
    """The costliest conflicts between transactions of the last twenty minutes."""
    clock_off_s: int = 0
    """Whole seconds by which the machine's clock is behind the database's, if it is off by more
    than ten; negative: it is ahead."""
    unlisted: str = ""
    """The worker's name, if its list of members does not have it: it owns no shard."""
    deaf: str = ""
    """Why nothing tells it of commits while it sleeps, where something could."""
    settling_since_us: int | None = None
    """The time since when a settlement is under way and unanswered; None if none is."""
    refusal: str = ""
    """The error with which the database has refused a settlement for good a moment ago."""
    settling_error: str = ""
    """The error with which the database has answered it so far, such as a full disk."""

    @property
    def matters(self) -> bool:
        """True if an operator needs it beside what the database shows anyway."""
        return bool(
            self.stalled
            or self.blocked
            or self.stuck
            or self.runs
            or self.targets
            or self.outages
            or self.failing
            or self.circuits
            or self.limited_keys
            or self.slips
            or self.conflicts
            or self.clock_off_s
            or self.unlisted
            or self.silent
            or self.settling_since_us
            or self.refusal
        )

    @property
    def ended(self) -> WorkerReport:
        """The report of the worker once it has stopped: nothing in it is of the present."""
        return WorkerReport(
            self.worker_id,
            self.address,
            self.groups,
            self.every_s,
            self.queues,
            slips=self.slips,
            conflicts=self.conflicts,
        )

    @property
    def troubled(self) -> bool:
        """True if something in it goes wrong: then it is written more often."""
        return bool(
            self.stalled
            or self.blocked
            or self.stuck
            or self.outages
            or self.circuits
            or self.silent
            or self.slips
            or self.settling_since_us
            or self.refusal
            or any(each.failed or each.open_since_us for each in self.targets)
        )


_decoder = msgspec.json.Decoder(WorkerReport)


class Death(msgspec.Struct, frozen=True):
    """A worker that died: its process is gone, stands still, or is cut off from the database."""

    worker_id: str
    address: str
    at_us: int
    """The time at which its last heartbeat ceased to count."""
    started_at_us: int = 0


def encode(report: WorkerReport) -> str:
    """Return the text of its row."""
    return msgspec.json.encode(report).decode()


def decode(text: str) -> WorkerReport | None:
    """Read the text of a row; None if it is not of this form."""
    try:
        return _decoder.decode(text)
    except (msgspec.MsgspecError, LateError):
        return None
