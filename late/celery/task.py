"""`Task` by Celery's names: what a decorated function becomes, and what `base=` derives from."""

from __future__ import annotations

import inspect
import random
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import cached_property
from traceback import format_exception
from typing import Any, ClassVar
from uuid import uuid4

import msgspec

from late.app.task import Call
from late.celery import ids, signals, transactions
from late.celery.canvas.draft import send
from late.celery.canvas.steps import CALLBACKS
from late.celery.exceptions import (
    Ignore,
    MaxRetriesExceededError,
    NotSupported,
    Reject,
    Retry,
)
from late.celery.request import Request
from late.celery.result import AsyncResult, EagerResult
from late.celery.signatures import Signature
from late.celery.values import to_json
from late.errors import ConfigError, InvalidPolicy
from late.model.validation import queue as queue_name

_IGNORED = {"retry", "retry_policy", "serializer", "compression", "connection", "producer",
            "add_to_parent", "argsrepr", "kwargsrepr"}  # fmt: skip


running: ContextVar[tuple[Any, Request] | None] = ContextVar("late_celery_request", default=None)


def running_task() -> Any:
    """Return the task that runs here, or None."""
    found = running.get()
    return None if found is None else found[0]


class Task:
    """A task. A call of it runs the function; `delay` and `apply_async` enqueue."""

    name: str = ""
    queue: str | None = None
    serializer: str | None = None
    ignore_result: bool | None = None
    max_retries: int | None = 3
    default_retry_delay: float = 180
    autoretry_for: Sequence[type[BaseException]] = ()
    dont_autoretry_for: Sequence[type[BaseException]] = ()
    retry_kwargs: ClassVar[Mapping[str, Any]] = {}
    retry_backoff: bool | int = False
    retry_backoff_max: int = 600
    retry_jitter: bool = True
    soft_time_limit: float | None = None
    time_limit: float | None = None
    expires: Any = None
    priority: int | None = None
    rate_limit: Any = None
    typing: bool | None = None
    """Refuse a call whose arguments the function does not take."""
    MaxRetriesExceededError: ClassVar[type[Exception]] = MaxRetriesExceededError
    run: Any
    """The function. A subclass defines it as a method."""
    bound: Any = None
    """The `Celery` that was the last to register the task."""
    follows_app: ClassVar[bool] = False
    """Its class derives from that of the app: a decorator without `base=` has made it."""

    def __repr__(self) -> str:
        return f"<@task: {self.name}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function here. A class with its own `__call__` wraps each attempt by that."""
        current = running.get()
        if current is not None and current[0] is self and current[1].wrapped:
            current[1].wrapped = False
            return self.run(*args, **kwargs)  # `super().__call__`: the attempt has a request.
        token = running.set((self, Request(task=self.name, args=args, kwargs=kwargs)))
        try:
            return self.run(*args, **kwargs)
        finally:
            running.reset(token)

    @property
    def app(self) -> Any:
        """The `Celery` of the task.

        Raises:
            ConfigError: there is none yet.
        """
        if self.bound is None:
            raise ConfigError(f"{self.name}: make late.celery.Celery(...) before the first call")
        return self.bound

    @cached_property
    def call_signature(self) -> inspect.Signature:
        """The parameters of the function, without the task of `bind=True`."""
        return inspect.signature(self.run)

    def AsyncResult(self, task_id: str) -> AsyncResult:
        """Return the result of a task by its id."""
        return AsyncResult(task_id, self.app)

    @property
    def request(self) -> Request:
        found = running.get()
        return found[1] if found is not None and found[0] is self else Request()

    def limits(self, conf: Any) -> tuple[float | None, float | None]:
        """Return the hard and the soft time limit, its own or those of the settings, in seconds."""
        return (
            self.time_limit or conf.task_time_limit,
            self.soft_time_limit or conf.task_soft_time_limit,
        )

    @property
    def allowed_retries(self) -> int | None:
        """The most retries that the decorator allows; None for no bound."""
        found: int | None = self.retry_kwargs.get("max_retries", self.max_retries)
        return found

    # Methods that a base class may have.
    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None: ...
    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None: ...
    def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None: ...
    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None: ...
    def after_return(
        self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any
    ) -> None: ...

    def delay(self, *args: Any, **kwargs: Any) -> Any:
        """Enqueue the task with these arguments, in the transaction that is open."""
        return self.apply_async(args, kwargs)

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Enqueue the task in the transaction that is open, and return its `AsyncResult`.

        Args:
            options: queue, priority (0..9, 9 first), headers, countdown, eta, expires, task_id.

        Raises:
            TypeError: the function does not take these arguments.
            NoTransaction: none is open.
            NotSupported: an option that does not exist here.
        """
        return self.send(args, kwargs, options)

    def is_strict(self, app: Any) -> bool:
        """Return whether a call has to fit the function: `typing=`, or that of the app."""
        return bool(app.strict_typing if self.typing is None else self.typing)

    def check(self, args: Any, kwargs: Any) -> None:
        """Refuse arguments that are none, and with `typing` those that the function does not take.

        Raises:
            TypeError: they are refused.
        """
        if args is not None and not isinstance(args, list | tuple):
            raise TypeError(f"{self.name}: task args must be a list or tuple")
        if kwargs is not None and not isinstance(kwargs, Mapping):
            raise TypeError(f"{self.name}: task keyword arguments must be a mapping")
        if self.is_strict(self.app):
            self.call_signature.bind(*(args or ()), **(kwargs or {}))

    def signature(self, args: Any = (), kwargs: Any = None, **options: Any) -> Signature:
        """Return the call as a value. `immutable=True` ignores arguments that are added later."""
        immutable = bool(options.pop("immutable", False))
        return Signature(
            self, tuple(args or ()), dict(kwargs or {}), options=options, immutable=immutable
        )

    subtask = signature

    def s(self, *args: Any, **kwargs: Any) -> Signature:
        """Return the call with these arguments as a value."""
        return self.signature(args, kwargs)

    def si(self, *args: Any, **kwargs: Any) -> Signature:
        """Return the call as a value that ignores arguments that are added later."""
        return self.signature(args, kwargs, immutable=True)

    def send(self, args: Any, kwargs: Any, options: Mapping[str, Any]) -> Any:
        """See `apply_async`."""
        self.check(args, kwargs)
        if any(options.get(name) for name in CALLBACKS):
            return send([self.signature(args, kwargs, **options)])
        conf = self.app.conf
        if conf.task_always_eager:
            transactions.tell_of_none(self.app, self.name)
            named = options.get("task_id")
            return self.apply(args, kwargs, throw=conf.task_eager_propagates, task_id=named)
        args, kwargs = list(args or ()), dict(kwargs or {})
        publication = signals.Publication(self.name, self.queue_for(options), args, kwargs, options)
        task_id = self.insert(self.prepare(args, kwargs, publication.options))
        task_id = str(publication.options.get("task_id") or task_id)
        publication.tell(task_id)
        return AsyncResult(task_id, self.app)

    def queue_for(self, options: Mapping[str, Any]) -> str:
        """Return the queue of a call with these options.

        Raises:
            InvalidName: no queue can have that name.
        """
        given = options.get("queue")
        return queue_name(str(given)) if given else str(self.app.queue_of(self))

    @property
    def is_bound(self) -> bool:
        """True if the function gets the task as its first argument, as with `bind=True`."""
        return not isinstance(inspect.getattr_static(type(self), "run"), staticmethod)

    def _refuse(self, *_: object, **__: object) -> Any:
        """Refuse what makes one task of many calls.

        Raises:
            NotSupported: always.
        """
        raise NotSupported(f"{self.name}: map, starmap and chunks are not there: make a group of"
                           " calls, or let one task go through the list")  # fmt: skip

    map = starmap = chunks = _refuse

    def prepare(self, args: Any, kwargs: Any, options: Mapping[str, Any]) -> Call:
        """Return the call that `apply_async` would insert; it raises what that raises before."""
        call: Call = (
            self._late.tasks[self.name]
            .options(**self.late_options(options))
            .call(args=to_json(list(args or ())), kwargs=to_json(dict(kwargs or {})))
        )
        return msgspec.structs.replace(call, queue=self.queue_for(options))

    @property
    def _late(self) -> Any:
        return self.app.late_app

    def insert(self, call: Call) -> str:
        """Insert a call of the app through the transaction that is open, and return its id.

        Raises:
            NoTransaction, NotSupported: see `transactions.write`.
        """
        late_app = self._late
        return str(transactions.write(self.app, self.name, lambda tx: late_app.enqueue(tx, call)))

    def late_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of `late` for those of `apply_async`, but the queue.

        Raises:
            NotSupported, InvalidPolicy: an option that does not exist here, or is out of bounds.
        """
        known = {"queue", "priority", "headers", "countdown", "eta", "expires", "task_id"}
        for option in sorted(given.keys() - known - _IGNORED):
            if given[option] is not None and not (option in CALLBACKS and not given[option]):
                raise NotSupported(f"{self.name}: apply_async({option}=...) does not exist here:"
                                   " docs/celery-tasks.md")  # fmt: skip
        found: dict[str, Any] = {"headers": given.get("headers")}
        if given.get("countdown") is not None:
            found["delay"] = max(0, given["countdown"])
        elif given.get("eta") is not None:
            found["at"] = self._moment(given["eta"])
        expires = given.get("expires", self.expires)
        if isinstance(expires, int | float) and expires <= 0:
            expires = datetime.now(UTC)  # It has expired already, as with Celery.
        found["expires"] = self._moment(expires) if isinstance(expires, datetime) else expires
        priority = given.get("priority", self.priority)
        if priority is not None:
            if priority not in range(10):
                raise InvalidPolicy(f"{self.name}: priority is 0..9, and 9 starts first")
            found["priority"] = 10 * priority
        if given.get("task_id") is not None:
            found["unique_key"] = ids.key_of(self.name, str(given["task_id"]))
            found["unique_for"] = self.app.conf.result_expires
            found["on_conflict"] = self.app.on_conflict
        return found

    def _moment(self, moment: datetime) -> datetime:
        """Return a time with a zone: one without is in UTC, as Celery's workers take it."""
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

    def retry(
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: BaseException | None = None,
        throw: bool = True,
        eta: datetime | None = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> Retry:
        """Ask for another attempt: it ends this one. `max_retries` counts as in Celery.

        Args:
            args, kwargs: those of this attempt, if they are given: a retry has the same ones.

        Raises:
            Retry: always, without `throw=False`.
            The error `exc`, or MaxRetriesExceededError: no retries are left.
            NotSupported: other arguments, or more retries than the decorator allows.
        """
        request, allowed = self.request, self.allowed_retries
        if request.called_directly:
            raise exc or Retry("a task that was called directly can be retried", None, 0)
        if [*(request.args if args is None else args)] != [*request.args] or (
            kwargs is not None and kwargs != request.kwargs
        ):
            raise NotSupported(f"{self.name}: a retry has the arguments of the task: call it anew"
                               " with other ones, and return")  # fmt: skip
        for option in sorted(name for name, value in options.items() if value is not None):
            raise NotSupported(f"{self.name}: a retry keeps the task's {option}")
        most = self.max_retries if max_retries is None else max_retries
        if allowed is not None and (most is None or most > allowed) and not request.is_eager:
            raise NotSupported(
                f"{self.name}: retry(max_retries={most}) is above the {allowed} of the decorator:"
                f" give that max_retries={most}"
            ) from exc
        if most is not None and request.retries >= most:
            request.exhausted = True
            raise exc or MaxRetriesExceededError(
                f"{self.name} {request.id}: {most} retries", request.args, request.kwargs
            )
        after_s = self.default_retry_delay if countdown is None else countdown
        if eta is not None:
            after_s = (self._moment(eta) - datetime.now(UTC)).total_seconds()
        asked = Retry(f"retry in {after_s:g} s", exc, max(0.0, after_s))
        if throw:
            raise asked from exc
        request.asked = asked
        return asked

    def attempt(self, request: Request) -> Any:
        """Run one attempt; raises what the task raises, and `Retry` for another one."""
        passed: tuple[type[BaseException], ...] = (Retry, Ignore, Reject, *self.dont_autoretry_for)
        automatic: tuple[type[BaseException], ...] = tuple(self.autoretry_for)
        # As Celery's workers: its own `__call__` is left out, one of a subclass is called.
        request.wrapped = type(self).__call__ is not Task.__call__
        run = self if request.wrapped else self.run
        token = running.set((self, request))
        try:
            self.before_start(str(request.id), request.args, request.kwargs)
            try:
                value = run(*request.args, **request.kwargs)
            except passed:
                raise
            except automatic as error:
                if request.exhausted:
                    raise
                options = dict(self.retry_kwargs)
                if self.retry_backoff:
                    options["countdown"] = self.backoff(request.retries)
                raise self.retry(exc=error, **options) from error
            if request.asked is not None:
                raise request.asked
            return value
        finally:
            running.reset(token)

    def backoff(self, retries: int) -> int:
        """Return the seconds before the retry after so many, as Celery counts them."""
        factor = int(max(1.0, self.retry_backoff))
        # The jitter needs no secret number.
        most: int = min(int(self.retry_backoff_max), factor * 2**retries)
        return random.randrange(most + 1) if self.retry_jitter else most  # nosec B311

    def apply(
        self, args: Any = None, kwargs: Any = None, *, throw: bool | None = None,
        task_id: str | None = None, **_: Any,
    ) -> EagerResult:  # fmt: skip
        """Run the task here with its retries at once, and return its outcome."""
        args, kwargs = tuple(args or ()), dict(kwargs or {})
        task_id = str(task_id or uuid4())
        retries = 0
        hard_s, soft_s = self.limits(self.app.conf)
        while True:
            request = Request(
                task_id, self.name, args, kwargs, retries, is_eager=True, called_directly=False,
                time_limit=hard_s, soft_time_limit=soft_s,
            )  # fmt: skip
            try:
                return EagerResult(task_id, finish(self, request), "SUCCESS", None, self.name)
            except Retry:
                retries += 1
            except Ignore as error:
                return EagerResult(task_id, error, "IGNORED", None, self.name)
            except Exception as error:
                if self.app.conf.task_eager_propagates if throw is None else throw:
                    raise
                trace = "".join(format_exception(error))
                return EagerResult(task_id, error, "FAILURE", trace, self.name)


def finish(task: Task, request: Request) -> Any:
    """Run one attempt; call the methods of the base class and the signals for its outcome.

    Returns the value of the task, and raises what it raises.
    """
    told = (str(request.id), request.args, request.kwargs)
    about = {"task_id": told[0], "args": told[1], "kwargs": told[2]}
    signals.task_prerun.send(task, task=task, **about)
    state, value = _outcome(task, request)
    try:
        if state == "SUCCESS":
            task.on_success(value, *told)
            signals.task_success.send(task, result=value)
        elif state == "RETRY":
            task.on_retry(value.exc, *told, None)
            signals.task_retry.send(task, request=request, reason=value, einfo=None)
        elif state == "FAILURE":
            task.on_failure(value, *told, None)
            traceback = value.__traceback__
            signals.task_failure.send(
                task, exception=value, traceback=traceback, einfo=None, **about
            )
        if state in ("SUCCESS", "RETRY", "FAILURE"):
            task.after_return(state, value, *told, None)
    finally:
        signals.task_postrun.send(task, task=task, retval=value, state=state, **about)
    if state != "SUCCESS":
        raise value
    return value


def _outcome(task: Task, request: Request) -> tuple[str, Any]:
    """Run one attempt, and return Celery's name of its end with the value or the error."""
    try:
        return "SUCCESS", task.attempt(request)
    except Retry as asked:
        return "RETRY", asked
    except Ignore as error:
        return "IGNORED", error
    except Reject as error:
        return "REJECTED", error
    except Exception as error:
        return "FAILURE", error
