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
from functools import partial
from typing import TYPE_CHECKING, Any

from late.model.task import NewTask, TaskId
from late.outbox.adapters.lookup import find
from late.outbox.base import AsyncTransaction, SyncTransaction
from late.outbox.execute import run, run_async, write_one
from late.outbox.insert import Again, asks_nothing
from late.outbox.insert import insert as _insert
from late.outbox.pending_wakeups import note

if TYPE_CHECKING:
    from late.outbox.connections import connect, connect_async

__all__ = [
    "AsyncTransaction",
    "SyncTransaction",
    "connect",
    "connect_async",
    "insert",
    "insert_async",
    "is_async",
]


def is_async(tx: object) -> bool:
    """Whether `tx` is for `insert_async`.

    Raises:
        InvalidTask: neither; names what is accepted.
    """
    return find(tx)[1]


def insert(
    tx: SyncTransaction, rows: Sequence[NewTask], again: Again | None = None
) -> list[TaskId]:
    """Write checked `rows` through `tx`; their ids in order.

    Args:
        again: makes the rows anew where the lane was resized; None leaves them where they are.

    Raises:
        InvalidTask: `tx` is of no accepted type, or is async; unique keys outside a transaction.
        KeyConflict: a unique key is taken by a task with another body; nothing was written.
        SchemaMismatch: the tables are missing or of another version.
    """
    if asks_nothing(rows):
        write_one(tx, rows)
        task_ids = [rows[0].task_id]
    else:
        task_ids = run(tx, partial(_insert, rows, again=again))
    note(tx, task_ids)
    return task_ids


async def insert_async(
    tx: AsyncTransaction, rows: Sequence[NewTask], again: Again | None = None
) -> list[TaskId]:
    """`insert` for an async transaction. Cancelled, the transaction must be rolled back."""
    task_ids = await run_async(tx, partial(_insert, rows, again=again))
    note(tx, task_ids)
    return task_ids


def __getattr__(name: str) -> Any:
    # Connecting is for handlers (`ctx.begin()`); a producer has a connection and needs none of it.
    if name in ("connect", "connect_async"):
        from late.outbox import connections

        return getattr(connections, name)
    raise AttributeError(name)
