"""Write the rows of an app through the caller's transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol

from late import outbox
from late.app.task import Call
from late.model.lanes import Lane
from late.model.task import NewTask, TaskId


class Writer(Protocol):
    """The app whose rows are written. `late.App` satisfies it."""

    capture: Callable[[list[Call], list[NewTask]], list[TaskId]] | None

    def placed(self, calls: Sequence[Call], lane: Lane) -> list[NewTask]:
        """Return the rows of `calls` for the database's current lane."""


def write(
    app: Writer, tx: Any, calls: list[Call], rows: list[NewTask]
) -> list[TaskId] | Awaitable[list[TaskId]]:
    """Write `rows` through `tx`, or give them to `app.capture`; see `outbox.write`.

    Args:
        calls: the calls of the rows, which are placed anew if the lane was resized. Commands have
            none: they keep their shards, and each may commit by itself.

    Raises:
        InvalidTask: no transaction is open, and a call does not say that it commits by itself.
    """
    if app.capture is not None:
        asynchronous = tx is not None and outbox.is_async(tx)
        ids = app.capture(calls, rows)
        return _ready(ids) if asynchronous else ids
    alone = all(call.settings.autocommit for call in calls)
    return outbox.write(tx, rows, partial(app.placed, calls), autocommit=alone)


async def first(ids: Awaitable[list[TaskId]]) -> TaskId:
    """Await the ids of one row, and return its id."""
    return (await ids)[0]


async def _ready(ids: list[TaskId]) -> list[TaskId]:
    return ids
