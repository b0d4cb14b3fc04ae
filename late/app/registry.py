"""The tasks, routes and schedules that are registered with an app."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from late.app.decorators import ScheduleDecorator
from late.app.options import RemoteSettings, TaskSettings, lane_name, settings
from late.app.task import Task, elsewhere
from late.errors import ConfigError, InvalidCron, InvalidTask
from late.handler import signature
from late.handler.enqueuer import Enqueuer
from late.handler.outcomes import Retry
from late.model import validation as validate
from late.model.task import BATCH_POOL, TRANSACTION_POOL, Policy, Schedule
from late.payload import codec as codecs
from late.payload import terms
from late.payload.command import PREFIX
from late.payload.values import Format

TIMEOUT_S = 300.0
TIMEOUT_S_MAX = 7 * validate.DAY_S
CATCH_UP_MAX = 1_000


class TaskRegistry:
    """The tasks, routes and schedules of one app. They are registered at import time.

    All methods raise ConfigError for mistakes in the program (and not in its input).

    Args:
        enqueuer: the app that enqueues the tasks.
        url: the database of the app.
        codec, history: the settings of tasks that have none.
        shard_of: returns the shard of a schedule's name.
        wrap: see `App`.
    """

    def __init__(
        self,
        enqueuer: Enqueuer,
        *,
        url: str,
        codec: codecs.Codec,
        history: bool,
        shard_of: Callable[[str], int],
        wrap: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
    ) -> None:
        self._enqueuer = enqueuer
        self._url = url
        self._wrap = wrap
        self._codec = codec
        self._history = history
        self._shard_of = shard_of
        self._tasks: dict[str, Task[Any, Any]] = {}
        self._routes: dict[str, Policy] = {}
        self.tasks: Mapping[str, Task[Any, Any]] = MappingProxyType(self._tasks)
        """Every registered task, by name; read only."""
        self.routes: Mapping[str, Policy] = MappingProxyType(self._routes)
        """Queue -> the policy of its tasks whose name is not registered; read only."""
        self.schedules: list[Schedule] = []

    def task(
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        process: bool = False,
        batch: int | None = None,
        **given: Any,
    ) -> Any:
        """See `App.task`."""
        check_known("@app.task", given, {*TaskSettings.__annotations__, "batch"})

        def register(function: Callable[..., Any]) -> Task[Any, Any]:
            if not callable(function):
                shown = validate.shown(function)
                raise ConfigError(f"@app.task takes a function, or settings by name; got {shown}")
            label = self._free_label(str(name or getattr(function, "__name__", "?")))
            if batch is None:
                found, target = signature.read(function, label), "local"
                if given.get("transaction"):
                    # Producers, which import this module, need no store.
                    from late.outbox.shared import check

                    check(self._url, label)
                    _check_transaction(found, label, process, given)
                    target = TRANSACTION_POOL
            else:
                found, target = signature.read_batch(function, label, batch), BATCH_POOL + label
            plain = not found.is_async and batch is None and "<" not in function.__qualname__
            if process and not plain:
                raise ConfigError(f"{label}: process=True takes a plain def at module level")
            if batch is not None and given.get("transaction"):
                raise ConfigError(f"{label}: transaction=True and batch= do not go together")
            if batch is not None and given.get("result_ttl") is not None:
                raise ConfigError(f"{label}: a batch keeps no results: its function returns once")
            handler = function if self._wrap is None else self._wrap(function)
            return self._add(handler, found, label, target, process, batch, **given)

        return register if fn is None else register(fn)

    def remote(
        self, name: str, *, target: str, like: Callable[..., Any] | None = None, **given: Any
    ) -> Task[..., Any]:
        """See `App.remote`."""
        check_known("app.remote", given, set(RemoteSettings.__annotations__))
        label = self._free_label(name)
        found = signature.ANYTHING if like is None else signature.read(like, label)
        if found.wants_context:
            raise ConfigError(f"{label}: like= takes a function of the arguments alone")
        target = configured(target, f"{label}: target")
        refusing = elsewhere(label, target, like)
        return self._add(refusing, found, label, target, False, None, **given)

    def _add(
        self,
        function: Callable[..., Any],
        found: signature.Signature,
        label: str,
        target: str,
        process: bool,
        batch: int | None,
        /,
        *,
        queue: str = "default",
        retry: Retry | None = None,
        timeout_s: float | None = None,
        soft_timeout_s: float | None = None,
        overlap_on_timeout: bool = False,
        transaction: bool = False,
        aliases: Sequence[str] = (),
        priority: int = 0,
        lane: str | None = None,
        codec: codecs.Codec | Format | None = None,
        result_ttl: validate.Duration | None = None,
        history: bool = False,
    ) -> Task[Any, Any]:
        if retry is not None and not isinstance(retry, Retry):
            raise ConfigError(f"{label}: retry must be a late.Retry")
        task: Task[Any, Any] = Task(
            self._enqueuer,
            function,
            found,
            name=label,
            queue=_checked(lambda: validate.queue(queue), label),
            retry=retry or Retry(),
            timeout_s=_timeout_s(timeout_s, label),
            soft_timeout_s=_soft_timeout_s(soft_timeout_s, timeout_s, label, target),
            overlap_on_timeout=overlap_on_timeout,
            process=process,
            priority=_checked(lambda: validate.priority(priority), label),
            lane=None if lane is None else _checked(lambda: lane_name(lane), label),
            codec=self._codec if codec is None else codecs.resolve(codec),
            result_ttl_s=_result_ttl_s(result_ttl, label),
            target=target,
            batch=batch,
            transaction=transaction,
            history=history or self._history,
        )
        if isinstance(aliases, str):
            raise ConfigError(f"{label}: aliases is a list of names, got {validate.shown(aliases)}")
        if batch is not None and aliases:
            raise ConfigError(f"{label}: a batch has no aliases: its tasks meet by their name")
        self._tasks[label] = task
        for name in aliases:
            self._tasks[self._free_label(name)] = task
        return task

    def _free_label(self, name: str) -> str:
        label = configured(name, "task name")
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
        """See `App.route`."""
        label = _checked(lambda: validate.old_queue(queue), "route")
        if label in self._routes:
            raise ConfigError(f"queue {label!r} has a route already")
        ttl_s = _result_ttl_s(result_ttl, label)
        self._routes[label] = msgspec.structs.replace(
            (retry or Retry()).policy(label),
            target=configured(target, f"{label}: target"),
            result_ttl_us=0 if ttl_s is None else round(ttl_s * 1_000_000),
            history=history or self._history,
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
        jitter: timedelta | float | str | None = None,
        name: str | None = None,
        args: Mapping[str, object] | None = None,
    ) -> ScheduleDecorator:
        """See `App.schedule`."""
        text = _rule(rule, every)
        if args is not None and not isinstance(args, Mapping):
            shown = validate.shown(args)
            raise ConfigError(f"args of a schedule is a mapping by name, got {shown}")
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
            # 0: intervals count from the time at which the schedule is stored, which no new deploy
            # moves. The first due time is set by the database's clock then.
            anchor_us=0,
            next_due_at_us=None,
            jitter_us=0 if jitter is None else _jitter_us(jitter, text, tz),
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
        label = configured(template.name or task.name, "schedule name")
        if any(known.name == label for known in self.schedules):
            raise ConfigError(f"schedule {label!r} exists already: give it a name=...")
        declared = self._declared(template, label, task, args)
        if not template.name:
            aliases = [name for name, each in self._tasks.items() if each is task]
            former = [
                self._declared(template, name, task, args) for name in aliases if name != label
            ]
            declared = msgspec.structs.replace(declared, former=tuple(former))
        self.schedules.append(declared)

    def _declared(
        self, template: Schedule, label: str, task: Task[Any, Any], args: Mapping[str, object]
    ) -> Schedule:
        _, payload = task.encode((), args)
        subject = codecs.Subject(f"schedule:{label}", task.name, task.queue)
        schedule = msgspec.structs.replace(
            template,
            name=label,
            shard_id=self._shard_of(label),
            queue=task.queue,
            task_name=task.name,
            options=settings({}, task.base).options_json,
        )
        if codecs.binds(task.codec):
            schedule = msgspec.structs.replace(schedule, anchor_us=terms.ANCHOR_US)
            subject = codecs.Sealing.of(subject, terms.of_schedule(schedule))
        sealed = task.codec.seal(payload, subject)
        return msgspec.structs.replace(schedule, payload=sealed)


def _check_transaction(
    found: signature.Signature, label: str, process: bool, given: Mapping[str, object]
) -> None:
    """Refuse what a handler in a shared transaction cannot have."""
    why = (
        "process=True" if process
        else "soft_timeout_s; ctx.check() tells a handler its time" if given.get("soft_timeout_s")
        else "a handler without a late.Context, whose ctx.tx is the transaction"
        if not (found.wants_context or found.is_async)
        else "a handler without a late.AsyncContext, whose ctx.tx is the transaction"
        if not found.wants_context
        else None
    )  # fmt: skip
    if why is not None:
        raise ConfigError(f"{label}: transaction=True does not go with {why}")


def check_known(call: str, given: Mapping[str, object], known: set[str]) -> None:
    """Refuse a setting that is not `known`, as Python refuses an unknown argument."""
    unknown = sorted(given.keys() - known)
    if unknown:
        raise TypeError(f"{call} has no setting {unknown[0]!r}; it has {', '.join(sorted(known))}")


def _checked(check: Callable[[], Any], label: str) -> Any:
    try:
        return check()
    except InvalidTask as error:
        raise ConfigError(f"{label}: {error}") from None


def configured(value: Any, what: str) -> str:
    """Return `value` if it is a valid name.

    Raises:
        ConfigError: it is not; the message has `what`.
    """
    try:
        return validate.name(value, what)
    except InvalidTask as error:
        raise ConfigError(str(error)) from None


def _timeout_s(value: float | None, label: str, name: str = "timeout_s") -> float:
    if value is None:
        return TIMEOUT_S
    found: float = _checked(
        lambda: validate.seconds(value, name, least=0.001, most=TIMEOUT_S_MAX), label
    )
    return found


def _soft_timeout_s(
    value: float | None, timeout_s: float | None, label: str, target: str
) -> float | None:
    if value is None:
        return None
    if target != "local":
        raise ConfigError(f"{label}: soft_timeout_s is for a handler of one task in this app")
    found, what = _timeout_s(value, label, "soft_timeout_s"), _timeout_s(timeout_s, label)
    if found >= what:
        raise ConfigError(f"{label}: soft_timeout_s is below timeout_s, {what:g}; got {found:g}")
    return found


def _result_ttl_s(value: validate.Duration | None, label: str) -> float | None:
    if value is None:
        return None
    most = validate.DELAY_S_MAX
    found: float = _checked(
        lambda: validate.seconds(value, "result_ttl", least=1.0, most=most), label
    )
    return found


def _rule(rule: Any, every: Any) -> str:
    if (rule is None) == (every is None):
        raise ConfigError("a schedule has a rule or every=..., and not both")
    if every is None:
        if isinstance(rule, str):
            return _text_rule(rule)
        hint = (
            ": give an interval as every=" if isinstance(rule, timedelta | int | float)
            else ': write @app.schedule("0 0 * * *") or @app.schedule(every=...)' if callable(rule)
            else ""
        )  # fmt: skip
        raise InvalidCron(f"a cron rule is text, got {validate.shown(rule)}{hint}")
    length = validate.seconds(
        every, "every", least=1.0, most=validate.DELAY_S_MAX, error=InvalidCron
    )
    return f"every {length:.6f}".rstrip("0").rstrip(".") + "s"


def _jitter_us(jitter: timedelta | float | str, rule: str, zone: str) -> int:
    """Return a jitter in microseconds.

    Raises:
        ConfigError: it is no time, or above half of the time between two ticks.
    """
    from late.model.cron import gap_us
    from late.model.time_text import duration_us

    value: Any = duration_us(jitter, "jitter") / 1e6 if isinstance(jitter, str) else jitter
    length = validate.seconds(value, "jitter", least=0.0, most=validate.DAY_S, error=InvalidCron)
    gap = gap_us(rule, zone)
    if 2 * length * 1e6 > gap:
        raise InvalidCron(
            f"jitter {validate.shown(jitter)} of {rule[:64]!r}: at most half of the time between "
            f"two ticks, {gap / 2e6:g} s"
        )
    return round(length * 1e6)


def _text_rule(rule: str) -> str:
    """Return `rule`, unless it is an interval as other schedulers write it."""
    from late.model.cron import every_us

    if rule.lstrip("@").startswith("every") and every_us(rule) is None:
        raise InvalidCron(
            f"cron rule {rule[:64]!r} cannot be read: an interval is every=SECONDS or a timedelta"
        )
    return rule
