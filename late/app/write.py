"""Write the rows of an app through the caller's transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

from late import outbox
from late.app.mistakes import named
from late.app.task import Call
from late.errors import InvalidTask
from late.model.admission import name_of
from late.model.lanes import Lane
from late.model.task import NewTask, TaskId
from late.outbox.adapters.lookup import holds_connection
from late.outbox.admission import Admission, Asked
from late.outbox.execute import check, check_async

Capture: TypeAlias = Callable[[list[Call], list[NewTask]], list[TaskId]]
"""A function that takes tasks instead of the database, and returns their ids."""


class Writer(Protocol):
    """The app whose rows are written. `late.App` satisfies it."""

    url: str
    capture: Capture | None
    admission: Admission

    def placed(self, calls: Sequence[Call], lane: Lane) -> list[NewTask]:
        """Return the rows of `calls` for the database's current lane."""


def write(
    app: Writer, tx: Any, calls: list[Call], rows: list[NewTask], *, autocommit: bool
) -> list[TaskId] | Awaitable[list[TaskId]]:
    """Write `rows` through `tx`, or give them to `app.capture`; see `outbox.write`.

    Args:
        calls: the calls of the rows, which are placed anew if the lane was resized. Commands have
            none: they keep their shards.

    Raises:
        InvalidTask, QueueFull: see `outbox.write`. Commands are never refused.
    """
    if app.capture is None:
        again = partial(app.placed, calls)
        return outbox.write(tx, rows, again, asked_by(app, calls), autocommit=autocommit)
    return captured(tx, partial(app.capture, calls, rows), autocommit=autocommit)


def asked_by(app: Writer, calls: Sequence[Call]) -> Asked | None:
    """Return what must be open for `calls`."""
    if not calls:
        return None
    names: dict[str, None] = {}
    for call in calls:
        names[call.queue] = None
        if (key := call.settings.limit_key) is not None:
            names[name_of(call.queue, key)] = None
    return Asked(tuple(names), app.admission)


def captured(
    tx: Any, capture: Callable[[], list[TaskId]], *, autocommit: bool
) -> list[TaskId] | Awaitable[list[TaskId]]:
    """Give tasks to `capture` instead of the database, as `tx` would take them."""
    if tx is not None and outbox.is_async(tx):
        return _capture_async(tx, capture, autocommit)
    if tx is not None and not autocommit and holds_connection(tx):
        check(tx)
    return capture()


def first(ids: Awaitable[list[TaskId]], name: str = "") -> Coroutine[Any, Any, TaskId]:
    """Return a coroutine that awaits the ids of one row, and returns its id.

    Python's warning about a coroutine that nobody awaits then has the `name` of the task.
    """
    made: Any = _first(ids, name)
    if name:
        inner: Any = ids
        inner.__qualname__ = made.__qualname__ = f"{name}.enqueue"
    found: Coroutine[Any, Any, TaskId] = made
    return found


async def _first(ids: Awaitable[list[TaskId]], name: str) -> TaskId:
    try:
        return (await ids)[0]
    except InvalidTask as error:
        if name and type(error) is InvalidTask:  # It is about the transaction.
            raise named(error, name) from error.__cause__
        raise


async def _capture_async(
    tx: Any, capture: Callable[[], list[TaskId]], autocommit: bool
) -> list[TaskId]:
    if not autocommit and holds_connection(tx):
        await check_async(tx)
    return capture()
