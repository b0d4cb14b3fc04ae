"""Commands about tasks that were enqueued before: `app.cancel`, `app.reschedule`, `app.redrive`.

Each inserts one record through the caller's transaction, and has no effect if that rolls back. The
owner of the task's shard executes it when it reads the record. `App` has these functions as its
methods.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from datetime import datetime
from functools import partial
from typing import Any, overload

from late.app.mistakes import not_ours
from late.app.task import Call
from late.app.write import Writer, first, write
from late.errors import InvalidName, InvalidSchedule, InvalidTask
from late.model import validation as validate
from late.model.ids import shard_of
from late.model.task import TaskId
from late.outbox.base import AsyncTransaction, SyncTransaction
from late.outbox.cancels import insert_cancel
from late.outbox.execute import write_by
from late.payload import codec as codecs
from late.payload.command import Command, Kind
from late.payload.terms import OF_REDRIVE


@overload
def cancel(
    app: Writer,
    tx: SyncTransaction,
    task_id: str,
    /,
    *,
    group: str | None = ...,
    autocommit: bool = ...,
) -> TaskId: ...
@overload
def cancel(
    app: Writer,
    tx: AsyncTransaction,
    task_id: str,
    /,
    *,
    group: str | None = ...,
    autocommit: bool = ...,
) -> Coroutine[Any, Any, TaskId]: ...
def cancel(
    app: Writer,
    tx: Any,
    task_id: str,
    /,
    *,
    group: str | None = None,
    autocommit: bool = False,
) -> Any:
    """Ask that no attempt of a task starts any more. The task then ends as `cancelled`.

    An attempt that runs already is not interrupted. If it succeeds, the task is done; if it
    fails or is interrupted, there is no other attempt. A task that has ended does not change.

    A stage takes its workflow with it. One statement more reads which tasks of that are in the log,
    and each of them gets a command too.

    Args:
        group: cancel in this consumer group only; None cancels in all groups.
        autocommit: let the command commit by itself if `tx` is in autocommit mode and no
            transaction is open. Otherwise that is refused, as for an enqueue.

    Returns:
        The id of the command, or an awaitable of it if `tx` is async.

    Raises:
        InvalidName: `task_id` is not a task id, or `group` is not a name. Nothing was written.
        InvalidTask: the type of `tx` is not accepted, or no transaction is open.
    """
    if app.capture is not None or app.url.startswith("cockroachdb"):
        return _send(app, tx, "cancel", task_id, group, autocommit)
    command = _command("cancel", task_id, group)
    written = write_by(tx, partial(insert_cancel, command), autocommit=autocommit)
    return written[0] if isinstance(written, list) else first(written)


@overload
def reschedule(
    app: Writer,
    tx: SyncTransaction,
    task_id: str,
    /,
    *,
    at: datetime | None = ...,
    delay: validate.Duration | None = ...,
    group: str | None = ...,
    autocommit: bool = ...,
) -> TaskId: ...
@overload
def reschedule(
    app: Writer,
    tx: AsyncTransaction,
    task_id: str,
    /,
    *,
    at: datetime | None = ...,
    delay: validate.Duration | None = ...,
    group: str | None = ...,
    autocommit: bool = ...,
) -> Coroutine[Any, Any, TaskId]: ...
def reschedule(
    app: Writer,
    tx: Any,
    task_id: str,
    /,
    *,
    at: datetime | None = None,
    delay: validate.Duration | None = None,
    group: str | None = None,
    autocommit: bool = False,
) -> Any:
    """Give a task another due time, earlier or later.

    The task may also wait to be retried. If an attempt runs, the command waits for its end and
    moves the next attempt. A task that holds its ordering key continues to hold it. A task that
    has ended does not change.

    Args:
        at: an aware time. One in the past means now.
        delay: instead of `at`, seconds or a `timedelta` from the insert of this command.

    Raises:
        InvalidSchedule: neither or both are given, or the value is naive, NaN or more than 366
            days ahead.
        Other errors as for `cancel`.
    """
    if (at is None) == (delay is None):
        raise InvalidSchedule("give at=... or delay=..., and not both")
    return _send(
        app,
        tx,
        "reschedule",
        task_id,
        group,
        autocommit,
        at_us=None if at is None else validate.instant_us(at, "at"),
        delay_us=0 if delay is None else validate.delay_us(delay, "delay", " (below 0 is now)"),
    )


@overload
def redrive(
    app: Writer,
    tx: SyncTransaction,
    task_id: str,
    /,
    *,
    call: Call | None = ...,
    group: str | None = ...,
    autocommit: bool = ...,
) -> TaskId: ...
@overload
def redrive(
    app: Writer,
    tx: AsyncTransaction,
    task_id: str,
    /,
    *,
    call: Call | None = ...,
    group: str | None = ...,
    autocommit: bool = ...,
) -> Coroutine[Any, Any, TaskId]: ...
def redrive(
    app: Writer,
    tx: Any,
    task_id: str,
    /,
    *,
    call: Call | None = None,
    group: str | None = None,
    autocommit: bool = False,
) -> Any:
    """Let a dead letter run again, with its attempts counted from zero.

    If the task is not a dead letter when the command is read, it does not change.

    Args:
        call: run the task with the arguments of this call. It must be a call of the same task. A
            task with a subject keeps its arguments: with others it is a dead letter again.

    Raises:
        InvalidTask: the call has a subject.
        PayloadTooLarge: the new arguments take more than about 750 KiB.
        Other errors as for `cancel`.
    """
    payload = None
    if call is not None:
        if getattr(call, "app", None) is not app:
            raise not_ours(call, app)
        if call.settings.options.subject is not None:
            raise InvalidTask("arguments with a subject cannot be given to a task: enqueue it anew")
        _checked(task_id)
        subject = codecs.Subject(task_id, call.name, call.queue)
        if codecs.binds(call.codec):
            subject = codecs.Sealing.of(subject, OF_REDRIVE)
        payload = call.codec.seal(call.payload, subject)
    return _send(app, tx, "redrive", task_id, group, autocommit, payload=payload)


def _send(
    app: Writer,
    tx: Any,
    kind: Kind,
    task_id: str,
    group: str | None,
    autocommit: bool,
    **asked: Any,
) -> TaskId | Awaitable[TaskId]:
    rows = [_command(kind, task_id, group, **asked).row()]
    written = write(app, tx, [], rows, autocommit=autocommit)
    return written[0] if isinstance(written, list) else first(written)


def _command(kind: Kind, task_id: str, group: str | None, **asked: Any) -> Command:
    if group is not None:
        validate.name(group, "group")
    return Command(kind, _checked(task_id), group, **asked)


def _checked(task_id: Any) -> TaskId:
    if not isinstance(task_id, str):
        raise InvalidName(f"not a task id: {validate.shown(task_id)}")
    shard_of(task_id)
    return TaskId(task_id)
