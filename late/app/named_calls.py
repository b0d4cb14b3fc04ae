"""Calls of tasks by name, for producers that do not import the handler: `app.send`, `app.call`.

`App` has these functions as its methods.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any, Protocol, Unpack, overload

from late.app import mistakes
from late.app.options import Settings, TaskOptions, settings
from late.app.task import Call, Task
from late.errors import InvalidName, InvalidPayload, InvalidTask, UnknownTask
from late.handler.enqueuer import Enqueuer
from late.model import validation as validate
from late.model.task import Options, TaskId
from late.outbox.base import AsyncTransaction, SyncTransaction
from late.payload import codec as codecs
from late.payload import values as payloads
from late.payload.command import PREFIX


class Sender(Enqueuer, Protocol):
    """The app whose tasks are called. `late.App` satisfies it."""

    strict: bool
    codec: codecs.Codec

    @property
    def tasks(self) -> Mapping[str, Task[Any, Any]]: ...


@overload
def send(
    app: Sender,
    tx: SyncTransaction,
    name: str,
    args: Mapping[str, object] | None = ...,
    /,
    *,
    queue: str | None = ...,
    **asked: Unpack[TaskOptions],
) -> TaskId: ...
@overload
def send(
    app: Sender,
    tx: AsyncTransaction,
    name: str,
    args: Mapping[str, object] | None = ...,
    /,
    *,
    queue: str | None = ...,
    **asked: Unpack[TaskOptions],
) -> Coroutine[Any, Any, TaskId]: ...
def send(
    app: Sender,
    tx: Any = mistakes.FORGOTTEN,
    name: str = mistakes.FORGOTTEN,
    args: Mapping[str, object] | None = None,
    /,
    *,
    queue: str | None = None,
    **asked: Unpack[TaskOptions],
) -> Any:
    """Insert a task by name, for producers that do not import its handler.

    Args:
        args: arguments by name. If the task is registered, its signature checks them.
        queue: the queue of an unregistered task (`default`); a registered one has its own.

    Raises:
        UnknownTask: the task is not registered. `App(strict=False)` sends it anyway; no call does.
        Other errors as for `Task.enqueue`.
    """
    try:
        return app.enqueue(tx, call(app, name, args, queue=queue, **asked))
    except InvalidTask as error:
        # The name is in the place of a forgotten transaction.
        task = tx if isinstance(tx, str) else name
        mistakes.check_transaction(tx, validate.shown(task), error, method="app.send")
        raise


def call(
    app: Sender,
    name: str,
    args: Mapping[str, object] | None = None,
    /,
    *,
    queue: str | None = None,
    **asked: Unpack[TaskOptions],
) -> Call:
    """Return the call that `send` would insert, for `enqueue_many`; errors are as in `send`."""
    if isinstance(name, Task):
        raise InvalidName(f"{name.name}: the name of the task is text: {name.name!r}")
    if name is mistakes.FORGOTTEN:
        raise InvalidName('no name of a task given: app.send(tx, "name", {...})')
    validate.name(name, "task name")
    if name.startswith(PREFIX):
        raise InvalidName(f"task {name!r}: names that begin with {PREFIX!r} are reserved")
    args = {} if args is None else args
    if not isinstance(args, Mapping) or not all(isinstance(key, str) for key in args):
        raise InvalidPayload(
            f"{name}: arguments must be a mapping by name, got {validate.shown(args)}"
        )
    task = app.tasks.get(name)
    if task is not None:
        if queue is not None and queue != task.queue:
            raise InvalidTask(f"task {name!r} is in queue {task.queue!r}, not {queue!r:.80}")
        checked = _settings(name, asked, task.base, task.codec, task.lane)
        values, payload = task.encode((), args)
        return Call(app, name, task.queue, task.codec, values, payload, checked, task)
    if app.strict:
        near = mistakes.similar(name, app.tasks)
        raise UnknownTask(f"no task {name!r} is registered; late.App(strict=False) sends any{near}")
    queue = validate.queue("default" if queue is None else queue)
    stored_as = None if app.codec.name == "json" else app.codec.name
    checked = _settings(name, asked, Options(codec=stored_as), app.codec)
    values = dict(args)
    payload = payloads.pack(values, app.codec.format)
    return Call(app, name, queue, app.codec, values, payload, checked)


def _settings(
    name: str,
    asked: TaskOptions,
    base: Options,
    codec: codecs.Codec,
    lane: str | None = None,
) -> Settings:
    try:
        return settings(asked, base, codec, lane)
    except InvalidTask as error:
        raise mistakes.named(error, name) from error.__cause__
    except TypeError as error:
        raise TypeError(f"{name}: {error}; arguments are one mapping by name") from None
