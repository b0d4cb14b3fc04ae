"""Connections of the PostgreSQL store: opened when needed, guarded, closed at the first doubt.

Every connection is autocommit and keeps no session state, so that it works behind a PgBouncer in
transaction mode. Settings are made for one transaction only. A connection to the server itself
prepares the statements that ask for it (`allow_plans`), and others prepare nothing.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal, Self

import psycopg
from psycopg import AsyncConnection, AsyncCursor, IsolationLevel, pq
from psycopg.conninfo import conninfo_to_dict

from late.errors import (
    ConfigError,
    SchemaMismatch,
    StoreClosed,
    StoreError,
    StoreUnavailable,
)
from late.schema.sqlstates import error_of
from late.store.common.statement_counts import count
from late.store.postgres.statements import CLOCK

Connection = AsyncConnection[tuple[object, ...]]

CALL_TIMEOUT_S = 60.0
"""The longest time that one call waits for the database: a lost packet must not block a shard for
ever."""
CONNECT = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "application_name": "late",
    "client_encoding": "utf8",
}
"""Parameters that a URL gets unless it sets them itself; a PgBouncer accepts all of them."""
XID8_OID = 5069
ON_REQUEST = 2**31 - 1
"""`prepare_threshold` of a connection that prepares a statement only where `execute` says so."""
PLAN_LOST = ("0A000", "26000", "42P05")
"""The states of a prepared statement that returns other columns by now, that is not there, or is
there already: in the last two cases the session is another one."""

_ADVICE: dict[type[StoreError], str] = {
    SchemaMismatch: ": run `late migrate URL`",
}
_IN_MESSAGE = re.compile(r"(password\s*[=:]\s*|://[^:@/\s]*:)[^@\s]+", re.IGNORECASE)


def translate(error: BaseException, name: str = "PostgreSQL") -> StoreError:
    """Return the error of `late` for one of psycopg's. Only the first line of the server's message
    is kept: the rest may quote a row, which may be a payload. `name` is the database's."""
    if isinstance(error, StoreError):
        return error
    lines = str(error).strip().splitlines()
    message = _IN_MESSAGE.sub(r"\1***", lines[0][:300] if lines else type(error).__name__)
    state = getattr(error, "sqlstate", None) or ""
    if state:
        kind = error_of(state)
        answer = kind(f"{name}: {message} ({state}){_ADVICE.get(kind, '')}")
        answer.answered = True
        return answer
    if isinstance(error, TimeoutError):
        return StoreUnavailable(f"{name} did not answer within {CALL_TIMEOUT_S:g} s")
    # Without a SQLSTATE there was no answer: the server was not reached, or the connection broke.
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | OSError):
        return StoreUnavailable(f"{name}: {message}")
    return StoreError(f"{name}: {message}")


@contextmanager
def translated() -> Iterator[None]:
    """Raise errors of psycopg as those of `late`."""
    try:
        yield
    except (psycopg.Error, TimeoutError, OSError) as error:
        raise translate(error) from error


def conninfo_of(url: str) -> dict[str, object]:
    """Read connection parameters from a URL as SQLAlchemy or libpq writes it.

    Raises:
        ConfigError: not such a URL. The message does not repeat it, it may hold a password.
    """
    scheme, mark, rest = url.partition("://")
    if not mark or scheme not in ("postgresql", "postgresql+psycopg", "postgres"):
        raise ConfigError("a PostgreSQL URL is needed, such as postgresql://user@host/database")
    try:
        given = conninfo_to_dict(f"postgresql://{rest}")
    except psycopg.ProgrammingError:
        raise ConfigError(
            "not a valid PostgreSQL URL (is every special character of the password %-encoded?)"
        ) from None
    return {**CONNECT, **given}


class CountedCursor(AsyncCursor[Any]):
    """A cursor whose statements are counted."""

    async def execute(self, query: Any, params: Any = None, **more: Any) -> Self:
        count(query)
        return await super().execute(query, params, **more)

    async def executemany(self, query: Any, params_seq: Any, **more: Any) -> None:
        count(query)
        await super().executemany(query, params_seq, **more)


class ConnectionPool:
    """Up to `size` connections of one store, handed out one call at a time, last used first.

    After any doubt (an error without an answer of the server, a time-out, a cancelled call) a
    connection is closed, and the next call opens a new one and runs `guard` on it first.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        size: int,
        guard: Callable[[Connection], Awaitable[None]],
        name: str,
    ) -> None:
        self._make = connect
        self._guard = guard
        self._name = name
        self._free = asyncio.Semaphore(size)
        self._idle: list[Connection] = []
        self._prepares = True
        """False once a prepared statement was lost: it may be lost again."""
        self._state: Literal["new", "open", "closed"] = "new"

    def open(self) -> None:
        """Allow calls. Calling it twice is fine.

        Raises:
            StoreClosed: it was closed.
        """
        if self._state == "closed":
            raise StoreClosed("the store was closed")
        self._state = "open"

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Connection]:
        """Lend a connection outside any transaction. Errors of psycopg are raised as ours.

        Raises:
            StoreClosed, StoreUnavailable, TransactionAborted, and all that the guard raises.
        """
        async with self._free:
            if self._state != "open":
                raise StoreClosed(
                    "the store is not open: call `await store.open()` first"
                    if self._state == "new"
                    else "the store was closed"
                )
            connection: Connection | None = None
            kept = False
            try:
                async with asyncio.timeout(CALL_TIMEOUT_S):
                    connection = self._idle.pop() if self._idle else await self._connect()
                    yield connection
                kept = True
            except psycopg.Error as error:
                lost = error.sqlstate in PLAN_LOST
                self._prepares = self._prepares and not lost
                # The server itself reported the error, so the connection is sound.
                kept = connection is not None and error.sqlstate is not None and not lost
                raise translate(error, self._name) from error
            except (TimeoutError, OSError) as error:
                raise translate(error, self._name) from error
            finally:
                if connection is not None:
                    await self._put_back(connection, kept)

    async def _put_back(self, connection: Connection, kept: bool) -> None:
        idle = connection.pgconn.transaction_status == pq.TransactionStatus.IDLE
        if kept and idle and self._state == "open":
            self._idle.append(connection)
            return
        await connection.close()
        if connection.broken:
            # A restart of the server broke the others as well: each would cost a failed call.
            await self._drop_idle()

    async def _connect(self) -> Connection:
        connection = await self._make()
        try:
            await self._guard(connection)
            if not self._prepares:
                connection.prepare_threshold = None
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _drop_idle(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()

    async def close(self) -> None:
        """Close idle connections now, the others when their calls end. Calling it twice is fine."""
        self._state = "closed"
        await self._drop_idle()


class StorePools:
    """The connections of one store, in three pools: reading the log never waits for writing.

    A settlement never queues behind loads: after a backlog there may be one load for each of a
    thousand ordering keys, and a task that has run and is not settled would run again after a kill.

    Args:
        connect: makes one new connection, not guarded.
        connections: most connections that are open at once: one that reads the log, one that
            settles, the others for the rest.
        guard: checks each new connection.
        name: the name of the database in messages.

    Raises:
        ConfigError: fewer than 3 connections.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        connections: int,
        guard: Callable[[Connection], Awaitable[None]],
        name: str = "PostgreSQL",
    ) -> None:
        if connections < 3:
            raise ConfigError(f"connections must be 3 or more, not {connections}")
        self.reading = ConnectionPool(connect, 1, guard, name)
        self.settling = ConnectionPool(connect, 1, guard, name)
        self.working = ConnectionPool(connect, connections - 2, guard, name)
        self._opened = False

    async def open(self) -> None:
        """Allow calls, and make two connections, so that their guards run now. Calling it twice
        is fine, and costs nothing once it has worked."""
        self.reading.open()
        self.settling.open()
        self.working.open()
        if self._opened:
            return
        for pool in (self.working, self.settling):
            async with pool.use() as connection:
                await connection.execute(CLOCK)
        self._opened = True

    async def close(self) -> None:
        """Close all connections. Calling it twice, or before `open`, is fine."""
        await self.reading.close()
        await self.settling.close()
        await self.working.close()


async def connect(conninfo: dict[str, object]) -> Connection:
    """Make one new connection, not guarded.

    Raises:
        psycopg.Error: it could not be made.
    """
    # For explicit transactions, whatever the role's default: a read under a lock must use a
    # snapshot that is taken after the lock was got.
    level = IsolationLevel.READ_COMMITTED
    connection = await make(AsyncConnection, level, **conninfo)
    # psycopg knows no xid8; on the wire it is a 64 bit integer.
    loader = connection.adapters.get_loader(20, pq.Format.BINARY)
    assert loader is not None
    connection.adapters.register_loader(XID8_OID, loader)
    return connection


async def make(
    kind: type[AsyncConnection[Any]], level: IsolationLevel, **conninfo: Any
) -> Connection:
    """Make one autocommit connection that prepares nothing and counts its statements, with `level`
    for its transactions.

    Raises:
        psycopg.Error: it could not be made.
    """
    connection: Connection = await kind.connect(
        autocommit=True, prepare_threshold=None, cursor_factory=CountedCursor, **conninfo
    )
    try:
        await connection.set_isolation_level(level)
    except BaseException:  # also a cancellation: nobody else knows of this connection
        await connection.close()
        raise
    return connection


def allow_plans(connection: Connection) -> None:
    """Let a connection to the server itself prepare the statements that ask for it.

    Their names are of this connection alone. Should a pooler be between all the same, which told
    the server's number for its process, another session has no statement of that name: an error,
    where psycopg's own names (`_pg3_0` in every session) would run what somebody else prepared.
    """
    connection.prepare_threshold = ON_REQUEST
    connection._prepared._prepared_idx = secrets.randbits(60)


async def rows_of(
    connection: Connection, statement: str, values: Any = None, *, prepare: bool | None = None
) -> list[Any]:
    """Run one statement, prepared if `prepare` says so and the connection can; return all rows."""
    cursor = await connection.execute(statement, values, prepare=prepare)
    return await cursor.fetchall()
