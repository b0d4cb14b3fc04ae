"""Ids that callers choose (`task_id=`): unique keys of `late`, which lead to its own ids."""

from __future__ import annotations

from late.app.app import App
from late.celery.exceptions import NotSupported
from late.errors import InvalidName
from late.model.ids import shard_of
from late.model.task import Options, TaskId

PREFIX = "celery:"


def is_own(id: str) -> bool:
    """Return whether an id has the form of those that `late` makes."""
    try:
        shard_of(id)
    except InvalidName:
        return False
    return True


def key_of(task: str, id: str) -> str:
    """Return the unique key of a task with this id.

    Raises:
        NotSupported: the id has the form of `late`'s own, of which each names a shard.
    """
    if is_own(id):
        raise NotSupported(
            f"{task}: task_id={id} is a UUID of version 7, as late makes them itself"
        )
    return PREFIX + id


def chosen(options: Options | None) -> str | None:
    """Return the id that the caller has chosen for a task, or None."""
    key = None if options is None else options.unique_key
    return key.removeprefix(PREFIX) if key is not None and key.startswith(PREFIX) else None


def found(app: App, id: str) -> TaskId | None:
    """Return the id that `late` has given to a task; None if no task has it any more, or yet."""
    if is_own(id):
        return TaskId(id)
    from late.control import Control

    with Control(app.url) as control:
        return control.tasks.holder(PREFIX + id)
