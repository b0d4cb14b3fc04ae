"""The adapter for SQLAlchemy.

It takes a `Session`, a `Connection` or their async forms, on SQLite, PostgreSQL and CockroachDB
(experimental); on Spanner a `Session` or a `Connection`.

The session gives its connection, so that the insert is in the session's transaction (and in its
savepoint, if one is open). The transaction begins as for any other statement. Nothing is flushed:
the order of the caller's rows and the task does not matter.

Drivers: pysqlite, aiosqlite, psycopg (sync and async), psycopg2, asyncpg, sqlalchemy-spanner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from late.errors import InvalidTask
from late.outbox.adapters import sqlalchemy_savepoints
from late.outbox.adapters.sqlite import autocommits
from late.outbox.base import Answer, Statement, refuse_over
from late.outbox.statements import ASYNCPG, COCKROACH, GOOGLE, PSYCOPG, PSYCOPG2, SQLITE, Dialect

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session

DIALECTS: dict[tuple[str, str], Dialect] = {
    ("sqlite", "pysqlite"): SQLITE,
    ("sqlite", "aiosqlite"): SQLITE,
    ("postgresql", "psycopg"): PSYCOPG,
    ("postgresql", "psycopg_async"): PSYCOPG,
    ("postgresql", "psycopg2"): PSYCOPG2,
    ("postgresql", "asyncpg"): ASYNCPG,
    ("cockroachdb", "psycopg"): COCKROACH,
    ("cockroachdb", "psycopg2"): COCKROACH,
    ("spanner+spanner", "spanner"): GOOGLE,
}


sqlalchemy_savepoints.watch()

_IDLE = 0
"""libpq's status of a connection without an open transaction, in psycopg and psycopg2."""


class _Connection:
    __slots__ = ("_tx", "dialect")

    def __init__(self, tx: Connection) -> None:
        self._tx = tx
        self.dialect = _dialect(tx)

    @property
    def autocommit(self) -> bool:
        return _autocommits(self._tx)

    @property
    def snapshot(self) -> bool:
        return _snapshot(self._tx)

    def execute(self, statement: Statement) -> Answer:
        # This is driver SQL. A construct would be compiled and cached for each number of rows.
        params = statement.params
        result = self._tx.exec_driver_sql(
            statement.sql, params if isinstance(params, dict) else tuple(params)
        )
        if statement.fetch:
            rows = [tuple(row) for row in result.all()]
            return Answer(len(rows), rows)
        count = result.rowcount
        result.close()
        return Answer(count)


class _AsyncConnection:
    __slots__ = ("_tx", "dialect")

    def __init__(self, tx: AsyncConnection) -> None:
        self._tx = tx
        self.dialect = _dialect(tx)

    @property
    def autocommit(self) -> bool:
        connection = self._tx.sync_connection
        assert connection is not None
        return _autocommits(connection)

    @property
    def snapshot(self) -> bool:
        return False  # Only Spanner needs it, and its dialect is not async.

    async def execute(self, statement: Statement) -> Answer:
        def run(tx: Connection) -> Answer:
            return _Connection(tx).execute(statement)

        return await self._tx.run_sync(run)


def connection(tx: Connection) -> _Connection:
    """Return the adapter of a `Connection`."""
    return _Connection(tx)


def session(tx: Session) -> _Connection:
    """Return the adapter of a `Session` or `scoped_session`."""
    refuse_over(tx.info)
    return _Connection(tx.connection())


async def async_connection(tx: AsyncConnection) -> _AsyncConnection:
    """Return the adapter of an `AsyncConnection`."""
    return _AsyncConnection(tx)


async def async_session(tx: AsyncSession) -> _AsyncConnection:
    """Return the adapter of an `AsyncSession` or `async_scoped_session`."""
    refuse_over(tx.info)
    return await async_connection(await tx.connection())


def _dialect(tx: Connection | AsyncConnection) -> Dialect:
    name, driver = tx.dialect.name, tx.dialect.driver
    found = DIALECTS.get((name, driver))
    if found is None:
        raise InvalidTask(f"cannot enqueue through SQLAlchemy's {name}+{driver}")
    return found


def _snapshot(tx: Connection) -> bool:
    if tx.dialect.name != "spanner+spanner":
        return False
    from late.outbox.adapters.spanner import repeatable_read

    driver: Any = tx.connection.dbapi_connection
    level = driver._transaction_isolation_level or driver.isolation_level
    return repeatable_read(level, driver.database)


def _autocommits(tx: Connection) -> bool:
    """Tell whether the driver would commit each statement by itself.

    The driver is asked and not SQLAlchemy: a connection in autocommit mode is in a transaction
    after the caller, or an event handler (SQLAlchemy's recipe for savepoints on SQLite), has
    executed BEGIN.

    Raises:
        InvalidTask: it is in a savepoint that SQLite takes for the whole transaction.
    """
    driver: Any = tx.connection.driver_connection
    if tx.dialect.name == "sqlite":
        sqlalchemy_savepoints.check(tx)
        return autocommits(driver)
    if not cast(Any, tx.connection.dbapi_connection).autocommit:
        return False
    if tx.dialect.driver == "asyncpg":
        return not driver.is_in_transaction()
    return tx.dialect.name == "spanner+spanner" or driver.info.transaction_status == _IDLE
