"""The outbox: producers write tasks through a transaction that they already have.

| the caller's transaction | the adapter uses |
|---|---|
| SQLAlchemy `Session`, `AsyncSession` (also scoped) | its connection, in its transaction |
| SQLAlchemy `Connection`, `AsyncConnection` | the connection itself |
| psycopg `Connection`, `AsyncConnection` | a new cursor |
| asyncpg `Connection`, also of a pool | the connection itself |
| `sqlite3.Connection`, aiosqlite `Connection` | a new cursor |
| Django's `connection` (SQLite, PostgreSQL with psycopg 3) | the driver's connection in it |
| google-cloud-spanner `Transaction` | buffered mutations |

N tasks are one INSERT. An adapter never opens a connection, never begins, commits or rolls back,
never retries and never notifies: the caller's commit decides whether the tasks exist. The driver
begins a transaction as for any other statement. If the driver is in autocommit mode and no
transaction is open, nothing is written, unless the caller has said `autocommit=True`: then the
insert commits by itself.

Errors of the driver are passed on unchanged, so that a caller can retry its transaction on them as
before. Only an error about missing tables, or tables of another version, becomes `SchemaMismatch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from late.errors import InvalidTask
from late.model.task import NewTask, TaskId
from late.outbox.adapters.lookup import find
from late.outbox.admission import Asked
from late.outbox.base import AsyncTransaction, SyncTransaction
from late.outbox.execute import write
from late.outbox.insert import Again

if TYPE_CHECKING:
    from late.outbox.connections import configure_sqlite, connect, connect_async

__all__ = [
    "AsyncTransaction",
    "SyncTransaction",
    "configure_sqlite",
    "connect",
    "connect_async",
    "insert",
    "is_async",
    "write",
]


def is_async(tx: object) -> bool:
    """Tell whether the adapter of `tx` must be awaited.

    Raises:
        InvalidTask: the type of `tx` is not accepted; the message names those that are.
    """
    return find(tx)[1]


def insert(
    tx: SyncTransaction,
    rows: Sequence[NewTask],
    again: Again | None = None,
    asked: Asked | None = None,
    *,
    autocommit: bool = False,
) -> list[TaskId]:
    """Write checked `rows` through a sync `tx`, and return their ids in order. See `write`.

    Raises:
        InvalidTask: `tx` is async, or `write` raises it.
    """
    if is_async(tx):
        raise InvalidTask(f"{type(tx).__name__} is async: its answer must be awaited")
    return cast(list[TaskId], write(tx, rows, again, asked, autocommit=autocommit))


def __getattr__(name: str) -> Any:
    # Only handlers connect (`ctx.begin()`). A producer has a connection and need not import this.
    if name in ("connect", "connect_async", "configure_sqlite"):
        from late.outbox import connections

        return getattr(connections, name)
    raise AttributeError(name)
