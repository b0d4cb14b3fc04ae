"""Write the rows of an app through the caller's transaction."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Any

from late import outbox
from late.app.task import Call
from late.model.task import NewTask, TaskId

if TYPE_CHECKING:
    from late.app.app import App


def write(
    app: App, tx: Any, calls: list[Call], rows: list[NewTask]
) -> list[TaskId] | Awaitable[list[TaskId]]:
    """Write `rows` through `tx`, or give them to `app.capture`; see `outbox.write`.

    Args:
        calls: the calls of the rows, which are placed anew if the lane was resized. Commands have
            none: they keep their shards.
    """
    if app.capture is not None:
        asynchronous = tx is not None and outbox.is_async(tx)
        ids = app.capture(calls, rows)
        return _ready(ids) if asynchronous else ids
    return outbox.write(tx, rows, partial(app.placed, calls))


async def first(ids: Awaitable[list[TaskId]]) -> TaskId:
    """Await the ids of one row, and return its id."""
    return (await ids)[0]


async def _ready(ids: list[TaskId]) -> list[TaskId]:
    return ids
