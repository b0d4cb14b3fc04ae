"""The adapter for `sqlite3.Connection`, and an async connection for `late.outbox.connect_async`.

The caller's connection decides when the transaction begins. The standard driver begins one before
the INSERT unless it is in autocommit mode; in that mode the insert would commit by itself, outside
any transaction. A deferred transaction that reads and then enqueues may fail at once with "database
is locked", for any busy timeout. So use BEGIN IMMEDIATE for a transaction that will enqueue.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from late.outbox.base import Answer, Statement
from late.outbox.statements import SQLITE

T = TypeVar("T")


class _Connection:
    __slots__ = ("_tx",)
    dialect = SQLITE
    snapshot = False

    def __init__(self, tx: sqlite3.Connection) -> None:
        self._tx = tx

    @property
    def autocommit(self) -> bool:
        # Each enqueue asks, mostly in a transaction.
        return not self._tx.in_transaction and autocommits(self._tx)

    def execute(self, statement: Statement) -> Answer:
        # `tx.execute` would go through the caller's cursor and row factories.
        cursor = sqlite3.Cursor(self._tx)
        cursor.row_factory = None
        cursor.execute(statement.sql, statement.params)
        rows = cursor.fetchall() if statement.fetch else ()
        count = cursor.rowcount
        cursor.close()
        return Answer(count, rows)


def connection(tx: sqlite3.Connection) -> _Connection:
    """Return the adapter of a `sqlite3.Connection`."""
    return _Connection(tx)


def autocommits(tx: Any) -> bool:
    """Tell whether a statement on this driver's connection would commit by itself."""
    if tx.in_transaction:
        return False
    # Python 3.12 added `autocommit`. Its value -1 means that `isolation_level` applies as before.
    mode = getattr(tx, "autocommit", -1)
    return tx.isolation_level is None if mode == -1 else bool(mode)


class Rows:
    """The result of `AsyncSqlite.execute`, whose rows are fetched already."""

    def __init__(self, rows: list[Any], rowcount: int) -> None:
        self._rows = iter(rows)
        self.rowcount = rowcount

    async def fetchone(self) -> Any:
        return next(self._rows, None)

    async def fetchall(self) -> list[Any]:
        return list(self._rows)


class AsyncSqlite:
    """A `sqlite3.Connection` in its own thread, so that no wait for a lock blocks the event loop.

    It has only those methods of psycopg's AsyncConnection that a handler needs.
    """

    def __init__(self, make: Callable[[], sqlite3.Connection]) -> None:
        self._make = make
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="late-sqlite")
        self._raw: sqlite3.Connection | None = None

    async def execute(self, sql: str, params: Sequence[Any] = ()) -> Rows:
        """Run one statement. Parameters are question marks."""

        def run() -> Rows:
            cursor = self.raw.execute(sql, params)
            return Rows(cursor.fetchall(), cursor.rowcount)

        return await self.run(run)

    async def commit(self) -> None:
        await self.run(lambda: self.raw.commit())

    async def rollback(self) -> None:
        await self.run(lambda: self.raw.rollback())

    @property
    def raw(self) -> sqlite3.Connection:
        """The driver's connection, for code that runs in the thread (`run`)."""
        if self._raw is None:
            self._raw = self._make()
        return self._raw

    async def run(self, call: Callable[[], T]) -> T:
        """Run `call` in the connection's thread.

        A cancellation does not stop it there, and later calls run after its end.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def close(self) -> None:
        """Close the connection, and roll back an open transaction."""

        def close() -> None:
            if self._raw is not None:
                self._raw.close()

        # A cancellation here must not take the closing back: an open transaction holds the lock.
        closing = asyncio.get_running_loop().run_in_executor(self._thread, close)
        self._thread.shutdown(wait=False)
        await asyncio.shield(closing)


class _AsyncConnection:
    __slots__ = ("_tx",)
    dialect = SQLITE
    snapshot = False

    def __init__(self, tx: AsyncSqlite) -> None:
        self._tx = tx

    @property
    def autocommit(self) -> bool:
        # `connect_async` has begun a transaction; after a commit in the block there is none, and
        # the driver begins none. `autocommit` itself is readable only in the connection's thread.
        return not self._tx.raw.in_transaction

    async def execute(self, statement: Statement) -> Answer:
        return await self._tx.run(lambda: _Connection(self._tx.raw).execute(statement))


async def async_connection(tx: AsyncSqlite) -> _AsyncConnection:
    """Return the adapter of an `AsyncSqlite`."""
    return _AsyncConnection(tx)
