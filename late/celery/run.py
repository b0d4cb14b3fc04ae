"""Register a task of Celery's interface with the `late.App`, and run its attempts in a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from late.celery import ids
from late.celery.exceptions import Ignore, Reject, TimeLimitFailure
from late.celery.exceptions import Retry as Asked
from late.celery.failures import failure
from late.celery.parameters import test_arguments
from late.celery.rates import rate_of
from late.celery.request import Request
from late.celery.task import Task, finish
from late.celery.values import Failed, from_json, to_json
from late.errors import SoftTimeLimit, StoreError
from late.handler.context import Context
from late.handler.outcomes import ATTEMPTS_MAX, AlreadyDone, Discard, Exhausted, Kept, Retry, Snooze
from late.model.validation import DELAY_S_MAX
from late.payload.values import result as encoded

if TYPE_CHECKING:
    from late.celery.app import Celery

REQUEUE_S = 1.0
"""The wait of a task that `Reject(requeue=True)` gives back."""


def register(task: Task, app: Celery) -> None:
    """Register `task` with the app that `app` carries.

    Only `retry` repeats it: an error ends it at once, as in Celery.

    Raises:
        ConfigError: the name is taken, or a setting is out of bounds.
    """
    conf = app.conf
    hard_s, soft_s = task.limits(conf)
    ignored = conf.task_ignore_result if task.ignore_result is None else task.ignore_result
    allowed = task.allowed_retries

    def handle(context: Context, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return _attempt(task, context, args, kwargs)

    # An error of the app names the user's function.
    handle.__module__ = task.run.__module__
    handle.__qualname__ = task.run.__qualname__
    queue, rate = app.queue_of(task), rate_of(task.name, task.rate_limit)
    if rate is not None:
        app.late_app.first_rates[queue] = rate
    made: Any = app.late_app.task(
        name=task.name,
        queue=queue,
        retry=Retry(
            ATTEMPTS_MAX if allowed is None else min(allowed + 1, ATTEMPTS_MAX),
            give_up_on=Exception,
            deadline=DELAY_S_MAX,
        ),
        timeout_s=float(hard_s or max(conf.late_time_limit, (soft_s or 0) + 60)),
        soft_timeout_s=None if soft_s is None else float(soft_s),
        result_ttl=None if ignored else float(conf.result_expires),
    )(handle)
    if task.is_strict(app):
        test_arguments(made, task)
    made.passes_result = True  # `_attempt` returns it for a stage, also with ignore_result.


def _attempt(task: Task, context: Context, args: list[Any], kwargs: dict[str, Any]) -> Any:
    hard_s, soft_s = task.limits(task.app.conf)
    request = Request(
        id=ids.chosen(context.own.options) or context.task_id,
        task=task.name,
        args=_arguments(task, args),
        kwargs=from_json(kwargs),
        retries=context.attempt - 1,
        headers=context.headers,
        eta=_eta(context),
        expires=None if context.expires_at is None else context.expires_at.isoformat(),
        delivery_info={"routing_key": context.queue, "redelivered": context.deaths > 0},
        called_directly=False,
        time_limit=hard_s,
        soft_time_limit=soft_s,
    )
    options = context.own.options
    try:
        return _value(task, request, is_stage=options is not None and options.stage)
    except Exception as error:
        if request.exhausted:
            raise Exhausted from error
        raise


def _value(task: Task, request: Request, *, is_stage: bool) -> Any:
    try:
        value = to_json(finish(task, request))
    except Asked as asked:
        raise Retry(after_s=asked.after_s) from asked.exc
    except Ignore:
        if is_stage:  # The tasks after it do not start.
            raise Discard("ignored") from None
        raise AlreadyDone from None
    except Reject as error:
        if error.requeue:
            raise Snooze(REQUEUE_S) from error
        raise
    except SoftTimeLimit as error:
        raise TimeLimitFailure(f"{task.name}: the soft time limit is over") from error
    return Kept(encoded(value)) if is_stage else value


def _arguments(task: Task, args: list[Any]) -> list[Any]:
    """Return the positional arguments: for a failed task, what a `link_error` gets of it.

    Raises:
        Snooze: the database is away. The attempt does not count.
    """
    found: list[Any] = from_json(args)
    if not (found and isinstance(found[0], Failed)):
        return found
    try:
        return [*failure(task.app.late_app, found[0].id), *found[1:]]
    except StoreError as error:
        if error.transient:
            raise Snooze(REQUEUE_S) from error
        raise


def _eta(context: Context) -> str | None:
    """Return the time that the caller or a retry asked for, or None, as Celery does."""
    options = context.own.options
    asked = options is not None and (options.at_us is not None or options.delay_us > 0)
    return context.due_at.isoformat() if asked or context.attempt > 1 else None
