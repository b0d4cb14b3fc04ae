"""What an app knows before anything is enqueued: its settings, tasks and schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, cast, overload

import msgspec

from late.app.options import settings
from late.app.task import BatchDecorator, ScheduleDecorator, Task, TaskDecorator, elsewhere
from late.errors import ConfigError, InvalidCron, InvalidTask
from late.handler import signature
from late.handler.context import AsyncContext, Context
from late.handler.outcomes import Retry
from late.model import validation as validate
from late.model.lanes import Lane
from late.model.targets import Target, by_name
from late.model.task import BATCH_POOL, SHARDS_MAX, Policy, Schedule
from late.payload import codec as codecs
from late.payload.command import PREFIX
from late.payload.encoding import Format

if TYPE_CHECKING:
    from late.app.app import App

P = ParamSpec("P")
R = TypeVar("R")

TIMEOUT_S = 300.0
TIMEOUT_S_MAX = 7 * validate.DAY_S
CATCH_UP_MAX = 1_000
SCHEMES = ("sqlite", "postgresql", "spanner", "cockroachdb")


class Registry:
    """The base of `late.App`: everything that is decided at import time.

    Raises (all methods): ConfigError, for what is wrong in the program and not in its input.
    """

    def __init__(
        self,
        url: str,
        *,
        shards: int,
        group: str,
        codec: codecs.Codec | Format,
        targets: Iterable[Target] = (),
        history: bool = False,
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
        self.shards = shards
        self.lane = Lane(shards=shards)
        """Where new tasks go: by `shards`, until the lane is known to have been resized."""
        self.group = _configured(group, "group")
        self.codec = codecs.resolve(codec)
        self.history = history
        self.schedules: list[Schedule] = []
        self.targets: Mapping[str, Target] = MappingProxyType(by_name(targets))
        self._tasks: dict[str, Task[Any, Any]] = {}
        self._routes: dict[str, Policy] = {}

    @property
    def routes(self) -> Mapping[str, Policy]:
        """Queue -> how its tasks are run that this app has no task for by name; read only."""
        return MappingProxyType(self._routes)

    @property
    def tasks(self) -> Mapping[str, Task[Any, Any]]:
        """Every registered task by name; read only."""
        return MappingProxyType(self._tasks)

    def shard_of(self, key: str) -> int:
        """The shard of an ordering key, or of a schedule's name."""
        return self.lane.shard_of(key)

    def adopt(self, lane: Lane) -> None:
        """From now on place tasks as `lane` says, which is what the database has. Before its first
        resize the app's own `shards=` counts."""
        if lane.version > self.lane.version:
            self.lane = lane

    @overload
    def task(self, fn: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, fn: Callable[Concatenate[AsyncContext, P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, fn: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        fn: None = ...,
        /,
        *,
        queue: str = ...,
        name: str | None = ...,
        retry: Retry | None = ...,
        timeout_s: float | None = ...,
        process: bool = ...,
        priority: int = ...,
        codec: codecs.Codec | Format | None = ...,
        result_ttl: validate.Duration | None = ...,
        history: bool = ...,
    ) -> TaskDecorator: ...
    @overload
    def task(
        self,
        fn: None = ...,
        /,
        *,
        batch: int,
        queue: str = ...,
        name: str | None = ...,
        retry: Retry | None = ...,
        timeout_s: float | None = ...,
        priority: int = ...,
        codec: codecs.Codec | Format | None = ...,
        history: bool = ...,
    ) -> BatchDecorator: ...
    def task(
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        queue: str = "default",
        name: str | None = None,
        retry: Retry | None = None,
        timeout_s: float | None = None,
        process: bool = False,
        priority: int = 0,
        codec: codecs.Codec | Format | None = None,
        result_ttl: validate.Duration | None = None,
        history: bool = False,
        batch: int | None = None,
    ) -> Any:
        """Register a function, `def` or `async def`, as a task: `@app.task` or `@app.task(...)`.

        Its parameters are the payload, by name, typed by their annotations. A first parameter
        annotated `late.Context` (`late.AsyncContext` for `async def`) gets the attempt's context
        and is not part of it.

        Args:
            queue: what knobs and reports group tasks by.
            name: what rows say, unique in the app; the function's name by default.
            retry: how failures are repeated; None for the default policy.
            timeout_s: how long an attempt may run, or stay silent between heartbeats; else 300.
            process: run in a child process (`def` at module level only).
            priority: -100..100, for calls that give none.
            codec: instead of the app's.
            result_ttl: keep what the function returns (JSON, at most 256 KiB) for so long, for
                `app.handle(task_id).result()`; None keeps nothing.
            history: keep each step of its tasks for `late show`: one more row per attempt.
            batch: call the function with up to so many tasks at once, as its only parameter of
                type `late.Batch[T]`; each has one argument, of type `T`.

        Raises:
            ConfigError: a wrong setting, a name that is taken, a signature that is no payload.
        """

        def register(function: Callable[..., Any]) -> Task[Any, Any]:
            label = self._free_label(str(name or getattr(function, "__name__", "?")))
            if batch is None:
                found, target = signature.read(function, label), "local"
            else:
                found, target = signature.read_batch(function, label, batch), BATCH_POOL + label
            plain = not found.is_async and batch is None and "<" not in function.__qualname__
            _check_setting(label, retry, process=process, plain=plain)
            if batch is not None and result_ttl is not None:
                raise ConfigError(f"{label}: a batch keeps no results: its function returns once")
            task: Task[Any, Any] = Task(
                cast("App", self),
                function,
                found,
                name=label,
                queue=_checked(lambda: validate.queue(queue), label),
                retry=retry or Retry(),
                timeout_s=_timeout_s(timeout_s, label),
                process=process,
                priority=_checked(lambda: validate.priority(priority), label),
                codec=self.codec if codec is None else codecs.resolve(codec),
                result_ttl_s=_result_ttl_s(result_ttl, label),
                target=target,
                batch=batch,
                history=history or self.history,
            )
            self._tasks[label] = task
            return task

        return register if fn is None else register(fn)

    @overload
    def remote(
        self,
        name: str,
        *,
        target: str,
        queue: str = ...,
        like: None = ...,
        retry: Retry | None = ...,
        timeout_s: float | None = ...,
        priority: int = ...,
        codec: codecs.Codec | Format | None = ...,
        result_ttl: validate.Duration | None = ...,
        history: bool = ...,
    ) -> Task[..., Any]: ...
    @overload
    def remote(
        self,
        name: str,
        *,
        target: str,
        queue: str = ...,
        like: Callable[P, Any],
        retry: Retry | None = ...,
        timeout_s: float | None = ...,
        priority: int = ...,
        codec: codecs.Codec | Format | None = ...,
        result_ttl: validate.Duration | None = ...,
        history: bool = ...,
    ) -> Task[P, Any]: ...
    def remote(
        self,
        name: str,
        *,
        target: str,
        queue: str = "default",
        like: Callable[..., Any] | None = None,
        retry: Retry | None = None,
        timeout_s: float | None = None,
        priority: int = 0,
        codec: codecs.Codec | Format | None = None,
        result_ttl: validate.Duration | None = None,
        history: bool = False,
    ) -> Task[..., Any]:
        """Register a task that another service executes: it is enqueued like any other, and a
        worker calls `target` for it.

        Args:
            name: what the target knows it as.
            target: name of a `late.GrpcTarget` or `late.HttpTarget`, which workers have.
            like: a function whose parameters are the task's arguments; it is never called. None
                takes any arguments by name, unchecked.
            timeout_s: how long one call may take; 5 minutes by default.
            queue, retry, priority, codec: as `task`. The target gets the arguments without the
                codec's seal.
            result_ttl: as `task`, of the result that the target's answer carries.
            history: as `task`.

        Raises:
            ConfigError: as `task`.
        """
        label = self._free_label(name)
        found = signature.ANYTHING if like is None else signature.read(like, label)
        if retry is not None and not isinstance(retry, Retry):
            raise ConfigError(f"{label}: retry must be a late.Retry")
        if found.wants_context:
            raise ConfigError(f"{label}: like= takes a function of the arguments alone")
        task: Task[..., Any] = Task(
            cast("App", self),
            elsewhere(label, target, like),
            found,
            name=label,
            queue=_checked(lambda: validate.queue(queue), label),
            retry=retry or Retry(),
            timeout_s=_timeout_s(timeout_s, label),
            process=False,
            priority=_checked(lambda: validate.priority(priority), label),
            codec=self.codec if codec is None else codecs.resolve(codec),
            target=_configured(target, f"{label}: target"),
            result_ttl_s=_result_ttl_s(result_ttl, label),
            history=history or self.history,
        )
        self._tasks[label] = task
        return task

    def _free_label(self, name: str) -> str:
        label = _configured(name, "task name")
        if label.startswith(PREFIX):
            raise ConfigError(f"task {label!r}: names that begin with {PREFIX!r} are reserved")
        if label in self._tasks:
            taken = self._tasks[label].fn
            raise ConfigError(
                f"task {label!r} is registered twice: by {taken.__module__}."
                f"{taken.__qualname__} already; give one of them another name=..."
            )
        return label

    def route(
        self,
        queue: str,
        *,
        target: str,
        retry: Retry | None = None,
        result_ttl: validate.Duration | None = None,
        history: bool = False,
    ) -> None:
        """Send the tasks of `queue` that have no handler here to `target`, whatever their name.

        Args:
            target: a pool of the worker: a service by its name, or `pull` for consumers that
                fetch their tasks.
            retry: how failures are repeated; None for the default policy.
            result_ttl: keep the results that answers carry for so long; None keeps nothing.
            history: write down each step of the queue's tasks.

        Raises:
            ConfigError: a wrong name, or a queue that has a route already.
        """
        label = _checked(lambda: validate.queue(queue), "route")
        if label in self._routes:
            raise ConfigError(f"queue {label!r} has a route already")
        ttl_s = _result_ttl_s(result_ttl, label)
        self._routes[label] = msgspec.structs.replace(
            (retry or Retry()).policy(label),
            target=_configured(target, f"{label}: target"),
            result_ttl_us=0 if ttl_s is None else round(ttl_s * 1_000_000),
            history=history or self.history,
        )

    def schedule(
        self,
        rule: str | None = None,
        *,
        every: timedelta | float | None = None,
        tz: str = "UTC",
        catch_up: Literal["skip", "latest", "all"] = "latest",
        catch_up_max: int = 100,
        overlap: Literal["allow", "skip", "queue"] = "skip",
        name: str | None = None,
        args: Mapping[str, object] | None = None,
    ) -> ScheduleDecorator:
        """Run a task again and again: above `@app.task`, or on a function that becomes one.

        Exactly one task per tick, across crashes, restarts and any number of workers, which
        store the schedule when they start. May be given several times with different names.

        Args:
            rule: a cron expression of five fields, in the local time of `tz`.
            every: instead of a rule, an interval of at least one second, in elapsed time.
            tz: IANA name of a time zone.
            catch_up: what to do about ticks missed while no worker ran: none of them, the
                latest one, or all, at most `catch_up_max`.
            overlap: while the last tick's task is unfinished: run both, skip the new one, or
                queue it behind the last.
            name: the schedule's name; the task's by default.
            args: arguments by name, the same at every tick.

        Raises:
            InvalidCron: the rule or zone does not exist, or never fires.
            ConfigError: a taken name, unknown policy.
            InvalidPayload: `args` do not fit the task.
        """
        text = _rule(rule, every)
        from late.model.cron import check

        check(text, tz)
        if catch_up not in ("skip", "latest", "all") or overlap not in ("allow", "skip", "queue"):
            raise ConfigError(f"unknown policy: catch_up={catch_up!r}, overlap={overlap!r}")
        if not 1 <= catch_up_max <= CATCH_UP_MAX:
            raise ConfigError(f"catch_up_max must be 1..{CATCH_UP_MAX}, got {catch_up_max}")

        template = Schedule(
            name=name or "",
            shard_id=0,
            rule=text,
            zone=tz,
            catch_up=catch_up,
            catch_up_max=catch_up_max,
            overlap=overlap,
            queue="",
            task_name="",
            payload=b"",
            options=None,
            # Intervals count from the epoch, so that a new deploy does not move them; the first
            # due time is the database's to say when the schedule is stored.
            anchor_us=0,
            next_due_at_us=None,
        )

        def register(function: Any) -> Any:
            task: Task[Any, Any] = function if isinstance(function, Task) else self.task(function)
            self._add_schedule(template, task, args or {})
            return task

        decorator: ScheduleDecorator = register
        return decorator

    def _add_schedule(
        self, template: Schedule, task: Task[Any, Any], args: Mapping[str, object]
    ) -> None:
        label = _configured(template.name or task.name, "schedule name")
        if any(known.name == label for known in self.schedules):
            raise ConfigError(f"schedule {label!r} exists already: give it a name=...")
        _, payload = task.encode((), args)
        subject = codecs.Subject(f"schedule:{label}", task.name, task.queue)
        self.schedules.append(
            msgspec.structs.replace(
                template,
                name=label,
                shard_id=self.shard_of(label),
                queue=task.queue,
                task_name=task.name,
                payload=task.codec.seal(payload, subject),
                options=settings({}, task.base).options_json,
            )
        )


def _checked(check: Callable[[], Any], label: str) -> Any:
    try:
        return check()
    except InvalidTask as error:
        raise ConfigError(f"{label}: {error}") from None


def _configured(value: Any, what: str) -> str:
    try:
        return validate.name(value, what)
    except InvalidTask as error:
        raise ConfigError(str(error)) from None


def _check_setting(label: str, retry: object, *, process: bool, plain: bool) -> None:
    if process and not plain:
        raise ConfigError(f"{label}: process=True takes a plain def at module level")
    if retry is not None and not isinstance(retry, Retry):
        raise ConfigError(f"{label}: retry must be a late.Retry")


def _timeout_s(value: float | None, label: str) -> float:
    if value is None:
        return TIMEOUT_S
    what = f"{label}: timeout_s"
    found: float = _checked(
        lambda: validate.seconds(value, what, least=0.001, most=TIMEOUT_S_MAX), label
    )
    return found


def _result_ttl_s(value: validate.Duration | None, label: str) -> float | None:
    if value is None:
        return None
    what, most = f"{label}: result_ttl", validate.DELAY_S_MAX
    found: float = _checked(lambda: validate.seconds(value, what, least=1.0, most=most), label)
    return found


def _rule(rule: Any, every: Any) -> str:
    if (rule is None) == (every is None):
        raise ConfigError("a schedule has a rule or every=..., and not both")
    if every is None:
        if not isinstance(rule, str):
            raise InvalidCron(f"a cron rule is text, got {validate.shown(rule)}")
        return rule
    length = validate.seconds(
        every, "every", least=1.0, most=validate.DELAY_S_MAX, error=InvalidCron
    )
    return f"every {length:.6f}".rstrip("0").rstrip(".") + "s"
