"""A transaction for code that has none: on a new connection for scripts, a kept one for handlers.

The transaction is committed at the end of the block and rolled back if the block raises. After a
commit the workers are woken for the tasks that were enqueued through it.

The value is one of the driver: a `psycopg.Connection`, `psycopg.AsyncConnection`,
`sqlite3.Connection` or google-cloud-spanner's `Transaction`. There are two exceptions: for async
SQLite, for which Python has no driver, it is an `AsyncSqlite`, and for async Spanner an
`AsyncSpanner`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from time import monotonic
from types import ModuleType
from typing import Any, TypeVar, cast
from urllib.parse import quote

from late.errors import ConfigError, SchemaMismatch
from late.notify.notifier import tell
from late.observability.conflicts import current
from late.outbox.adapters.sqlite import AsyncSqlite
from late.outbox.base import Steps
from late.outbox.conflict_errors import note
from late.outbox.execute import run
from late.outbox.idle_connections import IdleConnections
from late.outbox.insert import Target
from late.outbox.pending_wakeups import noting
from late.outbox.write_turns import BUSY_TIMEOUT_S, HANDLER_TIMEOUT_S, TurnConnection
from late.schema import held_files
from late.store.sqlite.guard import path_of

T = TypeVar("T")

_LOCKED = (
    "late opened a second connection. If this thread has a transaction open already, pass it:"
    " `with late.celery.transaction(tx):` around calls by Celery's names, or app.enqueue(tx, ...)."
)


@contextmanager
def connect(url: str) -> Iterator[Any]:
    """Open a sync transaction in the database at `url`, on a new connection.

    SQLite takes the write lock at once, and waits up to five seconds for it. Otherwise SQLite could
    refuse the first write of a transaction that has read before.

    Raises:
        ConfigError: `late` does not support the database of the URL, or its driver is not
            installed.
        SchemaMismatch: the SQLite file does not exist.
    """
    with begin(url) as tx:
        yield tx


@asynccontextmanager
async def connect_async(url: str) -> AsyncIterator[Any]:
    """Open an async transaction; see `connect`. A cancellation rolls it back."""
    async with begin_async(url) as tx:
        yield tx


@contextmanager
def begin(
    url: str,
    idle: IdleConnections | None = None,
    first: Callable[[Any], object] | None = None,
    tag: str = "",
) -> Iterator[Any]:
    """Do the same as `connect`, on a connection of `idle` if there is one.

    Args:
        first: runs in the transaction before the block, maybe twice: see `psycopg_session`.
        tag: the handler whose transaction it is; else the context says whose (`late.tag`). On
            SQLite a handler waits longer for the lock.
    """
    wait_s = HANDLER_TIMEOUT_S if tag else BUSY_TIMEOUT_S
    with _begun(url, idle, first, tag or current(), wait_s) as tx, noting(tx) as shards:
        yield tx
    if shards:
        tell(frozenset(shards))


@asynccontextmanager
async def begin_async(
    url: str,
    idle: IdleConnections | None = None,
    first: Callable[[Any], Awaitable[object]] | None = None,
    tag: str = "",
) -> AsyncIterator[Any]:
    """Do the same as `connect_async`; see `begin`."""
    wait_s = HANDLER_TIMEOUT_S if tag else BUSY_TIMEOUT_S
    async with _begun_async(url, idle, first, tag or current(), wait_s) as tx:
        with noting(tx) as shards:
            yield tx
    if shards:
        tell(frozenset(shards))


def read(url: str, make: Callable[[Target], Steps[T]], idle: IdleConnections | None = None) -> T:
    """Run steps that only read, in a transaction of their own. On SQLite it takes no write lock."""
    if url.startswith("sqlite"):
        with closing(open_sqlite(url)) as connection:
            return run(connection, make)
    if url.startswith("spanner"):
        found: T = spanner().read(url, make)
        return found
    with begin(url, idle) as tx:
        return run(tx, make)


def shared(url: str, most: int) -> Any:
    """Return what makes shared transactions in a database; see `late.outbox.shared`."""
    if url.startswith("sqlite"):
        from late.outbox.adapters.sqlite_shared import SqliteSharedTransactions

        path_of(_plain(url))  # Raises for a wrong URL.
        return SqliteSharedTransactions(
            lambda kind: open_sqlite(url, kind, check_same_thread=False)
        )
    psycopg()
    from late.outbox.adapters.psycopg_shared import PsycopgSharedTransactions

    return PsycopgSharedTransactions(conninfo(url), most)


def load_driver(url: str) -> None:
    """Import what transactions in the database at `url` need, if it is installed.

    Before handlers run: a soft time limit that appears within an import leaves the lock of a module
    held, and whoever imports it next waits for good.
    """
    from late.outbox import inbox  # noqa: F401

    with suppress(ConfigError):
        if url.startswith("spanner"):
            spanner()
        elif not url.startswith("sqlite"):
            psycopg()


@contextmanager
def _begun(
    url: str,
    idle: IdleConnections | None,
    first: Callable[[Any], object] | None,
    tag: str,
    wait_s: float,
) -> Iterator[Any]:
    if url.startswith("sqlite"):
        connection = open_sqlite(url, TurnConnection, timeout=wait_s)
        try:
            begun = monotonic()
            try:
                connection.begin(path_of(_plain(url)), wait_s)
            except sqlite3.OperationalError as error:
                error.add_note(_LOCKED)
                note(error, tag, begun)
                raise
            if first is not None:
                first(connection)
            yield connection
            if connection.in_transaction:
                connection.commit()
        finally:
            connection.close()
    elif url.startswith("spanner"):
        with spanner().begin(url, first, tag) as tx:
            yield tx
    else:
        with psycopg().connect(conninfo(url), idle, first, tag) as tx:
            yield tx


@asynccontextmanager
async def _begun_async(
    url: str,
    idle: IdleConnections | None,
    first: Callable[[Any], Awaitable[object]] | None,
    tag: str,
    wait_s: float,
) -> AsyncIterator[Any]:
    if url.startswith("sqlite"):
        path = path_of(_plain(url))  # Raises for a wrong URL here and not in the thread.
        connection = AsyncSqlite(lambda: open_sqlite(url, TurnConnection, timeout=wait_s))
        try:
            begun = monotonic()
            try:
                await connection.run(
                    lambda: cast(TurnConnection, connection.raw).begin(path, wait_s)
                )
            except sqlite3.OperationalError as error:
                note(error, tag, begun)
                raise
            if first is not None:
                await first(connection)
            yield connection
            await connection.commit()
        finally:
            await connection.close()
    elif url.startswith("spanner"):
        async with spanner().begin_async(url, first, tag) as tx:
            yield tx
    else:
        async with psycopg().connect_async(conninfo(url), idle, first, tag) as tx:
            yield tx


def configure_sqlite(call: Callable[[sqlite3.Connection], T]) -> Callable[[sqlite3.Connection], T]:
    """Call `call` with each connection of SQLite that is opened here from now on, before its use.

    It is for what SQLite keeps by connection: `pragma foreign_keys = on`, functions, collations.
    It must leave no transaction open. As a decorator it returns `call`.
    """
    _configured.append(call)
    return call


_configured: list[Callable[[sqlite3.Connection], object]] = []


def open_sqlite(
    url: str,
    kind: type[Any] = sqlite3.Connection,
    timeout: float = BUSY_TIMEOUT_S,
    **settings: Any,
) -> Any:
    """Open the file at `url`, with a connection of `kind`.

    Raises:
        SchemaMismatch: there is no file.
        DatabaseReplaced: it is not the file that a worker in this process has open.
    """
    path = path_of(_plain(url))
    if not path.exists():
        held_files.check(path)
        raise SchemaMismatch(held_files.missing(path))
    where = f"file:{quote(str(path.absolute()))}?mode=rw&cache=private"
    connection = sqlite3.connect(
        where,
        uri=True,
        timeout=timeout,
        isolation_level=None,
        factory=kind,
        **settings,
    )
    try:
        held_files.check(path)
        for configure in _configured:
            configure(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _plain(url: str) -> str:
    """Return the URL without SQLAlchemy's name of a driver."""
    scheme, separator, rest = url.partition("://")
    return scheme.partition("+")[0] + separator + rest


def conninfo(url: str) -> str:
    """Return the URL as psycopg takes it."""
    scheme, _, rest = _plain(url).partition("://")
    if scheme not in ("postgresql", "cockroachdb"):
        raise ConfigError(
            "a URL starts with sqlite:///, postgresql://, spanner:/// or cockroachdb://"
        )
    return f"postgresql://{rest}"


def psycopg() -> ModuleType:
    """Return the module that opens transactions of PostgreSQL."""
    try:
        from late.outbox.adapters import psycopg_session
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("psycopg"):
            raise
        raise ConfigError(
            "PostgreSQL needs psycopg: install it with `pip install 'late-queue[postgres]'`"
        ) from error
    return psycopg_session


def spanner() -> ModuleType:
    """Return the module that opens transactions of Spanner."""
    try:
        from late.outbox.adapters import spanner_session
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith(("google", "grpc")):
            raise
        raise ConfigError(
            "Spanner needs google-cloud-spanner: "
            "install it with `pip install 'late-queue[spanner]'`"
        ) from error
    return spanner_session
