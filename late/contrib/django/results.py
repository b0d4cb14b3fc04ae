"""The results of Django's tasks, from the rows of `late` and back."""

from __future__ import annotations

import builtins
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from traceback import format_exception
from typing import Any

import msgspec
from django.utils.module_loading import import_string

import late
from late.contrib.django.application import setting
from late.contrib.django.connections import database_url
from late.contrib.django.tasks_api import (
    Task,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from late.control import Control
from late.control.views import TaskInGroup, TaskView
from late.model.task import AttemptError

WORKER = f"{socket.gethostname()}:{os.getpid()}"


class Stored(msgspec.Struct, frozen=True):
    """The result of a task in `late`. No other row of it is left once it has ended."""

    name: str
    queue: str
    priority: int
    args: list[Any]
    kwargs: dict[str, Any]
    enqueued_at: datetime
    started_at: datetime
    finished_at: datetime
    worker_ids: list[str]
    value: Any


def new(task: Any, task_id: str, args: Sequence[Any], kwargs: Mapping[str, Any], alias: str) -> Any:
    """Return the result of a task that has just been enqueued.

    Raises:
        TypeError, ValueError: the arguments are not JSON.
    """
    return TaskResult(
        task=task,
        id=task_id,
        status=TaskResultStatus.READY,
        enqueued_at=enqueued_at(task_id) if task_id else None,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=list(args),
        kwargs=dict(kwargs),
        backend=alias,
        errors=[],
        worker_ids=[],
    )


def enqueued_at(task_id: str) -> datetime:
    """Return the time at which the id was made, to the millisecond: it is the same before and after
    the commit."""
    return datetime.fromtimestamp(int(task_id[:8] + task_id[9:13], 16) / 1e3, UTC)


class Running:
    """One attempt of a task, in a worker."""

    def __init__(self, result: Any) -> None:
        self.result = result
        self.value: Any = None
        """The return value of the function."""

    @property
    def positional(self) -> list[Any]:
        """The arguments by position, with the context if the function takes it."""
        first = [TaskContext(task_result=self.result)] if self.result.task.takes_context else []
        return [*first, *self.result.args]

    def stored(self) -> Stored:
        """Return what is kept of a task that has succeeded."""
        found, task = self.result, self.result.task
        return Stored(
            name=task.module_path,
            queue=task.queue_name,
            priority=task.priority,
            args=found.args,
            kwargs=found.kwargs,
            enqueued_at=found.enqueued_at,
            started_at=found.started_at,
            finished_at=datetime.now(UTC),
            worker_ids=found.worker_ids,
            value=self.value,
        )


@contextmanager
def running(
    task: Any,
    context: late.Context | late.AsyncContext,
    args: list[Any],
    kwargs: dict[str, Any],
    sender: Any,
    alias: str,
) -> Iterator[Running]:
    """Tell Django's signals of one attempt. The last failure of a task is its `FAILED`."""
    options = context.own.options
    task = replace(task, queue_name=context.queue, priority=options.priority if options else 0)
    result = new(task, context.task_id, args, kwargs, alias)
    now = datetime.now(UTC)
    _set(
        result,
        status=TaskResultStatus.RUNNING,
        started_at=now,
        last_attempted_at=now,
        worker_ids=[WORKER] * context.attempt,
    )
    attempt = Running(result)
    task_started.send(sender, task_result=result)
    try:
        yield attempt
        attempt.value = normalize_json(attempt.value)
    except (Exception, SystemExit) as error:
        if context.is_last_attempt:
            told = TaskError(
                exception_class_path=_path(type(error)), traceback="".join(format_exception(error))
            )
            _set(result, status=TaskResultStatus.FAILED, finished_at=datetime.now(UTC))
            _set(result, errors=[told])
            task_finished.send(sender, task_result=result)
        raise
    _set(result, status=TaskResultStatus.SUCCESSFUL, finished_at=datetime.now(UTC))
    _set(result, _return_value=attempt.value)
    task_finished.send(sender, task_result=result)


def read(task_id: str, alias: str) -> Any:
    """Read the result of a task; None if the database knows nothing of it.

    Raises:
        InvalidName: this is no id of a task.
        StoreUnavailable, StoreError: from the database.
    """
    alias_of_database = setting("DATABASE")
    with Control(database_url(alias_of_database)) as control:
        group = setting("GROUP")
        kept = control.tasks.result(task_id, group=group)
        view = control.tasks.show(task_id, group=group, payload=True)
    try:
        if kept is not None:
            row = msgspec.json.decode(kept, type=_Row)
            if row.outcome == "done":
                return _succeeded(task_id, msgspec.convert(row.value, Stored), alias)
        return None if view.name is None or not view.groups else _pending(view, alias)
    except (_NotOurs, msgspec.ValidationError):
        return None


class _Row(msgspec.Struct):
    outcome: str
    value: Any


def _succeeded(task_id: str, found: Stored, alias: str) -> Any:
    task = _task(found.name, alias, found.queue, found.priority)
    result = new(task, task_id, found.args, found.kwargs, alias)
    _set(
        result,
        status=TaskResultStatus.SUCCESSFUL,
        enqueued_at=found.enqueued_at,
        started_at=found.started_at,
        finished_at=found.finished_at,
        last_attempted_at=found.started_at,
        worker_ids=found.worker_ids,
        _return_value=found.value,
    )
    return result


def _pending(view: TaskView, alias: str) -> Any:
    """Return the result of a task whose row is there: it waits, runs, or is a dead letter."""
    (group,) = view.groups
    options = view.options or {}
    task = _task(str(view.name), alias, str(view.queue), int(str(options.get("priority", 0))))
    payload = msgspec.json.decode(view.payload or "{}")
    result = new(task, view.task_id, payload.get("args", []), payload.get("kwargs", {}), alias)
    errors = group.errors
    _set(
        result,
        status=TaskResultStatus.FAILED if _is_over(group) else TaskResultStatus.READY,
        started_at=_moment(errors[0].at_us) if errors else None,
        last_attempted_at=_moment(errors[-1].at_us) if errors else None,
        finished_at=_moment(group.dead_at_us),
        errors=[_error(each) for each in errors],
        worker_ids=[each.worker for each in errors],
    )
    return result


def _is_over(group: TaskInGroup) -> bool:
    return group.state == "dead" or group.outcome not in (None, "done")


class _NotOurs(Exception):
    """The task is one of `late`, and none of Django's."""


def _task(name: str, alias: str, queue: str, priority: int) -> Any:
    try:
        found = import_string(name)
    except ImportError:
        raise _NotOurs from None
    if not isinstance(found, Task):
        raise _NotOurs
    return replace(found, backend=alias, queue_name=queue, priority=priority)


def _error(error: AttemptError) -> Any:
    name = error.error.partition(":")[0]
    path = f"builtins.{name}" if hasattr(builtins, name) else name
    return TaskError(exception_class_path=path, traceback=error.error)


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _moment(us: int | None) -> datetime | None:
    return None if us is None else datetime.fromtimestamp(us / 1e6, UTC)


def _set(result: Any, **values: Any) -> None:
    """Set fields of a frozen result, as Django's own backends do."""
    for name, value in values.items():
        object.__setattr__(result, name, value)
