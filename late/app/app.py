"""`App`, the object that a service creates. It registers tasks and enqueues them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack, overload

from late.app import commands, mistakes, named_calls, workflows
from late.app.backpressure import BacklogGuard, Depth, check_depths
from late.app.decorators import BatchDecorator, ScheduleDecorator, TaskDecorator
from late.app.lifespan import Lifespan
from late.app.lookups import write_looked_up
from late.app.mistakes import FORGOTTEN
from late.app.options import (
    BatchSettings,
    RemoteSettings,
    RouteSettings,
    ScheduleSettings,
    TaskOptions,
    TaskSettings,
)
from late.app.registry import TaskRegistry, check_known, configured
from late.app.results import Handle
from late.app.rows import LaneNeeded, RowFactory
from late.app.task import Call, Prepared, Task
from late.app.workflows import Part, Then, Workflow
from late.app.write import first, write
from late.errors import BatchTooLarge, ConfigError, InvalidName
from late.handler.context import AsyncContext, Context
from late.model import validation as validate
from late.model.ids import shard_of
from late.model.lanes import Lane
from late.model.targets import Target, by_name
from late.model.task import DEFAULT_GROUP, SHARDS_MAX, NewTask, Policy, Schedule, TaskId
from late.model.workflow import Stage
from late.outbox.adapters import sqlalchemy_savepoints
from late.outbox.admission import Admission
from late.outbox.base import AsyncTransaction, SyncTransaction
from late.payload import codec as codecs
from late.payload import values as payloads
from late.payload.subject_keys import SubjectKeyNeeded

__all__ = ["App", "Call", "Prepared", "Task", "TaskOptions"]

P = ParamSpec("P")
R = TypeVar("R")
Resources = TypeVar("Resources", bound=Callable[[], Any])

SCHEMES = ("sqlite", "postgresql", "spanner", "cockroachdb")


class App:
    """The tasks of a service and its business database. Thread-safe; a new app does not connect.

    Args:
        url: the business database in SQLAlchemy's form: `sqlite:///file.db`,
            `postgresql://...` or `postgresql+psycopg://...`.
        shards: the number of active shards for new tasks, 1..4096. It is that of the lane until the
            lane is first resized while it works (`late shards --resize`); from then on the number
            in the database applies.
        group: the consumer group of this app's workers.
        codec: the encoding of arguments: `"json"`, `"msgpack"` or a codec such as `late.Signed`. A
            task may have another one.
        strict: refuse to `send` tasks that this app has not registered.
        max_backlog: a queue whose published backlog has reached this takes no tasks. A number for
            every queue, or a mapping by queue; None for no bound. See `observe_backlog`.
        targets: services that execute tasks: `late.GrpcTarget`, `late.HttpTarget`. Only workers
            need them, and a file named by `LATE_TARGETS` may add to them or change them.
        history: record each step of every task, as `task(history=True)` does for one.
        wrap: gets each handler when it is registered, and returns the function that runs instead,
            made with `functools.wraps`: for what belongs around every attempt, such as the
            connections of a framework.

    Raises:
        ConfigError: a setting is wrong. The message never contains the URL's password.
    """

    def __init__(
        self,
        url: str,
        *,
        shards: int = 8,
        group: str = DEFAULT_GROUP,
        codec: codecs.Codec | payloads.Format = "json",
        strict: bool = True,
        max_backlog: int | Mapping[str, int] | None = None,
        targets: Iterable[Target] = (),
        history: bool = False,
        wrap: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
    ) -> None:
        scheme = url.partition("://")[0].partition("+")[0] if "://" in url else ""
        if scheme not in SCHEMES:
            raise ConfigError(
                "the app's URL must start with sqlite:///, postgresql://, spanner+spanner:///"
                " or cockroachdb://"
            )
        if not isinstance(shards, int) or not 1 <= shards <= SHARDS_MAX:
            raise ConfigError(f"shards must be 1..{SHARDS_MAX}, got {validate.shown(shards)}")
        self.url = url
        if scheme == "sqlite":
            sqlalchemy_savepoints.watch()
        self.shards = shards
        self.group = configured(group, "group")
        self.codec = codecs.resolve(codec)
        self.strict = strict
        self.max_backlog = max_backlog
        self.history = history
        self.targets: Mapping[str, Target] = MappingProxyType(by_name(targets))
        self.registry = TaskRegistry(
            self,
            url=self.url,
            codec=self.codec,
            history=history,
            shard_of=self.shard_of,
            wrap=wrap,
        )
        self._rows = RowFactory(shards)
        self._depths: dict[str, Depth] = {}
        self.admission = Admission()
        """The queues that take no tasks, as its own transactions have found."""
        self.capture: Callable[[list[Call], list[NewTask]], list[TaskId]] | None = None
        """A function that takes tasks instead of the database. `late.testing.inline` sets it."""
        self.loaders: list[Callable[[], None]] = []
        """Functions that import the modules with more tasks. The command line calls them first."""
        self.first_rates: dict[str, float] = {}
        """Queue -> tasks per second. A worker sets them when it starts, for queues without
        settings; from then on the settings of the queue count."""
        self.capture_stages: Callable[[list[Call], list[Stage]], list[TaskId]] | None = None
        """The same for the stages of workflows."""
        self.resources: Any = None
        """The value that the function of `lifespan` has yielded; None while no worker runs in this
        process. A test may set it to something else."""
        self.span = Lifespan(lambda yielded: setattr(self, "resources", yielded))

    def __repr__(self) -> str:
        return f"<App {len(self.tasks)} tasks, group={self.group}>"

    @property
    def tasks(self) -> Mapping[str, Task[Any, Any]]:
        """Every registered task, by name; read only."""
        return self.registry.tasks

    @property
    def routes(self) -> Mapping[str, Policy]:
        """Queue -> the policy of its tasks whose name this app has not registered; read only."""
        return self.registry.routes

    @property
    def schedules(self) -> list[Schedule]:
        """Every registered schedule, in order of registration."""
        return self.registry.schedules

    @property
    def lane(self) -> Lane:
        """The lane of new tasks. It has `shards` shards until a resize of the lane is known."""
        return self._rows.lane

    def shard_of(self, key: str) -> int:
        """Return the shard of an ordering key, or of a schedule's name."""
        return self._rows.lane.shard_of(key)

    def adopt(self, lane: Lane) -> None:
        """Place tasks by the database's `lane` from now on. Before the first resize of `default`
        the app's own `shards=` applies."""
        self._rows.adopt(lane)

    def unknown_lanes(self, calls: Sequence[Call]) -> set[str]:
        """Return the lanes that `calls` name and that are not known here yet."""
        return self._rows.unknown_lanes(calls)

    # --- registration ----------------------------------------------------------------------------

    @overload
    def task(self, fn: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, fn: Callable[Concatenate[AsyncContext, P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, fn: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, fn: None = ..., /, **given: Unpack[TaskSettings]) -> TaskDecorator: ...
    @overload
    def task(
        self, fn: None = ..., /, *, batch: int, **given: Unpack[BatchSettings]
    ) -> BatchDecorator: ...
    def task(self, fn: Callable[..., Any] | None = None, /, **given: Any) -> Any:
        """Register a function, `def` or `async def`, as a task: `@app.task` or `@app.task(...)`.

        Its parameters are the payload, by name; their annotations give the types. A first parameter
        with the annotation `late.Context` (`late.AsyncContext` for `async def`) gets the attempt's
        context and is not part of the payload.

        Args:
            queue: the group of tasks in settings and reports; `default` if none is given.
            name: the task's name in rows, unique in the app; by default the function's name.
            retry: the retry policy; None for the default policy.
            timeout_s: seconds that an attempt may run without a heartbeat; 300 if none are given.
            soft_timeout_s: seconds without a heartbeat after which `late.SoftTimeLimit` is raised
                in the handler, which then has until `timeout_s`; None raises nothing.
            overlap_on_timeout: let a repeat start while a run that cannot be ended (a thread) goes
                on after its time-out. By default the task waits for the end of that run.
            process: run in a child process (`def` at module level only).
            transaction: give the handler `ctx.tx`, a transaction that commits with the record of
                the task's end, so that what it does there happens exactly once. Tasks that start
                together share one. On PostgreSQL and SQLite, for handlers with a context.
            aliases: former names of the task. What waits under them runs here.
            priority: -100..100, for calls without a priority.
            lane: the named range of shards for calls without a lane; `default` if none is given.
            codec: the encoding of arguments, instead of the app's.
            result_ttl: keep the function's return value (JSON, at most 256 KiB) for so long, for
                `app.handle(task_id).result()`; None keeps nothing.
            history: keep each step of its tasks for `late show`: one more row per attempt.
            batch: call the function with up to so many tasks at once. Its only parameter has the
                type `late.Batch[T]`; each task has one argument, of type `T`.

        Raises:
            ConfigError: a setting is wrong, the name is taken, or the signature cannot be a
                payload.
        """
        return self.registry.task(fn, **given)

    @overload
    def remote(
        self, name: str, *, target: str, like: None = ..., **given: Unpack[RemoteSettings]
    ) -> Task[..., Any]: ...
    @overload
    def remote(
        self, name: str, *, target: str, like: Callable[P, Any], **given: Unpack[RemoteSettings]
    ) -> Task[P, Any]: ...
    def remote(self, name: str, **given: Any) -> Task[..., Any]:
        """Register a task that another service executes. It is enqueued like any other task, and a
        worker calls `target` for it.

        Args:
            name: the task's name, also for the target.
            target: the name of a `late.GrpcTarget` or `late.HttpTarget`, which workers have.
            like: a function whose parameters are the task's arguments; it is never called. None
                takes any arguments by name, unchecked.
            timeout_s: the longest time of one call; by default 5 minutes.
            queue, retry, priority, aliases, codec: see `task`. The target gets the arguments
                without the codec's seal.
            result_ttl: see `task`; for the result in the target's answer.
            history: see `task`.

        Raises:
            ConfigError: see `task`.
        """
        return self.registry.remote(name, **given)

    def route(self, queue: str, *, target: str, **given: Unpack[RouteSettings]) -> None:
        """Send all tasks of `queue` without a handler in this app to `target`.

        Args:
            target: a pool of the worker: the name of a service, or `pull` for consumers that
                fetch their tasks.
            retry: the retry policy; None for the default policy.
            result_ttl: keep the results in answers for so long; None keeps nothing.
            history: record each step of the queue's tasks.

        Raises:
            ConfigError: a name is wrong, or the queue has a route already.
        """
        check_known("app.route", given, set(RouteSettings.__annotations__))
        self.registry.route(queue, target=target, **given)

    def lifespan(self, fn: Resources) -> Resources:
        """Let a worker run `fn` for as long as it works: `@app.lifespan`.

        Args:
            fn: a generator without arguments, `def` or `async def`, that yields once. What it
                yields is `app.resources` for all handlers; the rest of it runs behind the last of
                them. A child process runs one of its own, if it is a `def`.

        Raises:
            ConfigError: it is no such function, or the app has one.
        """
        self.span.set(fn)
        return fn

    def schedule(
        self, rule: str | None = None, **given: Unpack[ScheduleSettings]
    ) -> ScheduleDecorator:
        """Run a task repeatedly. Use it above `@app.task`, or on a function that becomes a task.

        There is exactly one task per tick, across crashes, restarts and any number of workers,
        which store the schedule when they start. A task may have several schedules with different
        names.

        Args:
            rule: a cron expression of five fields, in the local time of `tz`.
            every: instead of a rule, an interval of at least one second, in elapsed time.
            tz: the IANA name of a time zone; by default UTC.
            catch_up: the ticks to run that were missed while no worker ran: none of them
                (`skip`), the `latest` one (the default), or `all`, at most `catch_up_max` (100).
            overlap: the treatment of a tick while the last tick's task has not ended: run both
                (`allow`), `skip` the new one (the default), or `queue` it behind the last.
            jitter: each tick comes up to so much later (`"30s"`, seconds or a `timedelta`), by
                an amount that follows from the schedule and the tick: many schedules of one rule
                do not fire at once. At most half of the time between two ticks.
            name: the schedule's name; by default the task's.
            args: arguments by name, the same at every tick.

        Raises:
            InvalidCron: the rule or the zone is not valid, or the rule never fires.
            ConfigError: the name is taken, or a policy is unknown.
            InvalidPayload: `args` do not fit the task.
        """
        check_known("app.schedule", given, set(ScheduleSettings.__annotations__))
        return self.registry.schedule(rule, **given)

    # --- enqueue ---------------------------------------------------------------------------------

    @overload
    def enqueue(self, tx: SyncTransaction, call: Call, /, *, then: Part | None = ...) -> TaskId: ...
    @overload
    def enqueue(
        self, tx: AsyncTransaction, call: Call, /, *, then: Part | None = ...
    ) -> Coroutine[Any, Any, TaskId]: ...
    def enqueue(
        self, tx: Any = FORGOTTEN, call: Call = FORGOTTEN, /, *, then: Part | None = None
    ) -> Any:
        """Insert one `task.call(...)` through the caller's transaction; see `Task.enqueue`.

        Args:
            then: a call, or a chain or group of calls, that starts when this one is done. It makes
                the two a workflow: see `enqueue_workflow`.
        """
        try:
            alone = call.settings.autocommit
        except AttributeError:
            raise mistakes.not_a_call(tx, call) from None
        if then is not None:
            both = workflows.write(self, tx, workflows.chain(call, then), None)
            return both[0] if isinstance(both, list) else first(both, call.name)
        if call.app is not self:
            raise mistakes.not_ours(call, self)
        if self._depths:
            check_depths((call.queue,), self._depths, self.max_backlog)
        try:
            rows = [self._rows.one(call)]
        except (SubjectKeyNeeded, LaneNeeded):
            written = write_looked_up(self, self._rows, tx, [call], autocommit=alone)
        else:
            written = write(self, tx, [call], rows, autocommit=alone)
        return written[0] if isinstance(written, list) else first(written, call.name)

    @overload
    def enqueue_many(self, tx: SyncTransaction, calls: Iterable[Call], /) -> list[TaskId]: ...
    @overload
    def enqueue_many(
        self, tx: AsyncTransaction, calls: Iterable[Call], /
    ) -> Coroutine[Any, Any, list[TaskId]]: ...
    def enqueue_many(self, tx: Any = FORGOTTEN, calls: Iterable[Call] = FORGOTTEN, /) -> Any:
        """Insert many calls, of one task or several, in one statement.

        Returns:
            Their ids in order, or an awaitable of them if `tx` is async. Without calls no statement
            is run.

        Raises:
            BatchTooLarge: there are more than 1,000 tasks or 8 MiB of payload.
            Other errors as for `Task.enqueue`. After an error nothing is written.
        """
        if not isinstance(calls, Iterable):
            raise mistakes.not_calls(tx, calls)
        batch = list(itertools.islice(calls, validate.BATCH_TASKS_MAX + 1))
        for call in batch:
            if not isinstance(call, Call) or call.app is not self:
                raise mistakes.not_ours(call, self)
        alone = all(call.settings.autocommit for call in batch)
        try:
            rows = self.prepare(batch)
        except (SubjectKeyNeeded, LaneNeeded):
            return write_looked_up(self, self._rows, tx, batch, autocommit=alone)
        return write(self, tx, batch, rows, autocommit=alone)

    @overload
    def enqueue_workflow(
        self, tx: SyncTransaction, workflow: Workflow, /, *, on_failure: Call | Then | None = ...
    ) -> list[TaskId]: ...
    @overload
    def enqueue_workflow(
        self, tx: AsyncTransaction, workflow: Workflow, /, *, on_failure: Call | Then | None = ...
    ) -> Coroutine[Any, Any, list[TaskId]]: ...
    def enqueue_workflow(
        self, tx: Any, workflow: Any, /, *, on_failure: Call | Then | None = None
    ) -> Any:
        """Insert a workflow: `late.chain(...)` or `late.group(...)`; see `docs/workflows.md`.

        Args:
            on_failure: a call that runs once, when the first task of the workflow has failed: as a
                dead letter, expired or discarded. `late.RESULT` among its arguments is the id of
                that task.

        Returns:
            The ids of all tasks in the order in which they are written, or an awaitable of them if
            `tx` is async.

        Raises:
            BatchTooLarge: there are more than 1,000 tasks, 100 one after the other, 10,000 links
                between two tasks, or 8 MiB of payload.
            InvalidTask: a task has an option that a stage cannot have, or needs a result that is
                not kept; or no transaction is open.
            Other errors as for `enqueue_many`. After an error nothing is written.
        """
        return workflows.write(self, tx, workflow, on_failure)

    def prepare(self, calls: Sequence[Call]) -> list[NewTask]:
        """Return the rows of one batch, checked as in `enqueue_many`, for other writers of rows."""
        if len(calls) > validate.BATCH_TASKS_MAX:
            raise BatchTooLarge(f"more than {validate.BATCH_TASKS_MAX} tasks in one call")
        size = sum([len(call.payload) for call in calls])
        if size > validate.BATCH_BYTES_MAX:
            limit = validate.BATCH_BYTES_MAX
            raise BatchTooLarge(f"{size} bytes of payload in one call, the limit is {limit}")
        if self._depths:
            queues = dict.fromkeys([call.queue for call in calls])
            check_depths(queues, self._depths, self.max_backlog)
        return self._rows.many(calls)

    send = named_calls.send
    call = named_calls.call
    cancel = commands.cancel
    reschedule = commands.reschedule
    redrive = commands.redrive

    def handle(self, task_id: str, *, group: str | None = None) -> Handle:
        """Return a handle of one task: its state, and its result if that is kept.

        Args:
            group: the consumer group whose state and result are read; by default the app's.

        Raises:
            InvalidName: `task_id` is not a task id, or `group` is not a name.
        """
        validate.name(self.group if group is None else group, "group")
        if not isinstance(task_id, str):
            raise InvalidName(f"not a task id: {validate.shown(task_id)}")
        shard_of(task_id)
        return Handle(self.url, TaskId(task_id), group or self.group)

    def follow(self) -> BacklogGuard:
        """Apply `late queue set NAME closed=on` and `max_backlog=N` from now on.

        Enqueue then raises `QueueFull` before any SQL. Use it as a `with` around the whole run of
        the producer. A thread reads the settings every two seconds.
        """
        return BacklogGuard(self)

    def observe_backlog(self, queue: str, depth: int, *, bound: int | None = None) -> None:
        """Publish the number of tasks that wait in `queue`, for `max_backlog` or the `bound`.

        `follow` calls it for the settings. A value is valid for five seconds, so nothing is refused
        if nobody publishes. Thread-safe.
        """
        self._depths[queue] = Depth(depth, bound, time.monotonic())

    def placed(self, calls: Sequence[Call], lane: Lane) -> list[NewTask]:
        """Return the rows of `calls` for the database's current lane, which the app adopts unless
        it knows a later version (from another database, or from before a restore)."""
        return self._rows.placed(calls, lane)

    def row(self, call: Call, lane: Lane | None = None, /) -> NewTask:
        """Return the row of one call, with a new id, for `lane` or else for the app's lane.

        Raises:
            PayloadTooLarge: the sealed payload is above 1 MiB.
        """
        return self._rows.one(call, lane)
