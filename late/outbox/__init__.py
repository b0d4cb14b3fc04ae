"""Producers: tasks are written through the transaction that the caller already has.

| transaction | what is used of it |
|---|---|
| SQLAlchemy `Session`, `AsyncSession` (also scoped) | its connection, in its transaction |
| SQLAlchemy `Connection`, `AsyncConnection` | as it is |
| psycopg `Connection`, `AsyncConnection` | a cursor of our own |
| `sqlite3.Connection` | a cursor of our own |
| Django's `connection` (SQLite, PostgreSQL with psycopg 3) | the driver's connection in it |
| google-cloud-spanner `Transaction` | buffered mutations |

N tasks are one INSERT. An adapter never opens a connection, never begins, commits or rolls back,
never retries and never notifies: whether the tasks exist is decided by the caller's commit. Begin
happens as the driver does it for any other statement; where the driver is in autocommit mode and
no transaction is open, the insert commits by itself.

Errors of the driver come out unchanged, so that a caller who retries its transaction on them goes
on doing so; only missing or foreign tables become `SchemaMismatch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from late.errors import InvalidTask
from late.model.task import NewTask, TaskId
from late.outbox.adapters.lookup import find
from late.outbox.base import AsyncTransaction, SyncTransaction
from late.outbox.execute import write
from late.outbox.insert import Again

if TYPE_CHECKING:
    from late.outbox.connections import connect, connect_async

__all__ = [
    "AsyncTransaction",
    "SyncTransaction",
    "connect",
    "connect_async",
    "insert",
    "is_async",
    "write",
]


def is_async(tx: object) -> bool:
    """Tell whether the adapter of `tx` must be awaited.

    Raises:
        InvalidTask: `tx` is of no accepted type; names those that are accepted.
    """
    return find(tx)[1]


def insert(
    tx: SyncTransaction, rows: Sequence[NewTask], again: Again | None = None
) -> list[TaskId]:
    """Write checked `rows` through a sync `tx`; their ids in order. See `write`.

    Raises:
        InvalidTask: `tx` is async, or as `write`.
    """
    if is_async(tx):
        raise InvalidTask(f"{type(tx).__name__} is async: its answer must be awaited")
    return cast(list[TaskId], write(tx, rows, again))


def __getattr__(name: str) -> Any:
    # Connecting is for handlers (`ctx.begin()`); a producer has a connection and needs none of it.
    if name in ("connect", "connect_async"):
        from late.outbox import connections

        return getattr(connections, name)
    raise AttributeError(name)
