"""Find the adapter of a transaction by the names of its type's bases.

So no driver is imported that the caller has not imported already.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any, NamedTuple, Protocol, TypeAlias

from late.errors import InvalidTask
from late.outbox.base import Answer, Statement
from late.outbox.insert import Target


class Sync(Target, Protocol):
    """One sync transaction that can execute statements. It needs no close."""

    def execute(self, statement: Statement) -> Answer: ...


class Async(Target, Protocol):
    """One async transaction that can execute statements. It needs no close."""

    def execute(self, statement: Statement) -> Awaitable[Answer]: ...


Opener: TypeAlias = Callable[[Any], Any]
"""`(tx) -> Sync`, or `async (tx) -> Async`."""


class Adapter(NamedTuple):
    """The function that opens transactions of one type."""

    module: str
    function: str
    is_async: bool

    def load(self) -> Opener:
        opener: Opener = getattr(import_module(self.module), self.function)
        return opener


_SQLALCHEMY = "late.outbox.adapters.sqlalchemy"
_PSYCOPG = "late.outbox.adapters.psycopg"
_SQLITE = "late.outbox.adapters.sqlite"
_SPANNER = "late.outbox.adapters.spanner"
_DJANGO = "late.outbox.adapters.django"
_ASYNCPG = "late.outbox.adapters.asyncpg"
_AIOSQLITE = "late.outbox.adapters.aiosqlite"
KNOWN: dict[tuple[str, str], Adapter] = {
    ("sqlalchemy", "Session"): Adapter(_SQLALCHEMY, "session", False),
    ("sqlalchemy", "scoped_session"): Adapter(_SQLALCHEMY, "session", False),
    ("sqlalchemy", "Connection"): Adapter(_SQLALCHEMY, "connection", False),
    ("sqlalchemy", "AsyncSession"): Adapter(_SQLALCHEMY, "async_session", True),
    ("sqlalchemy", "async_scoped_session"): Adapter(_SQLALCHEMY, "async_session", True),
    ("sqlalchemy", "AsyncConnection"): Adapter(_SQLALCHEMY, "async_connection", True),
    ("psycopg", "Connection"): Adapter(_PSYCOPG, "connection", False),
    ("psycopg", "AsyncConnection"): Adapter(_PSYCOPG, "async_connection", True),
    ("asyncpg", "Connection"): Adapter(_ASYNCPG, "async_connection", True),
    ("asyncpg", "PoolConnectionProxy"): Adapter(_ASYNCPG, "async_connection", True),
    ("sqlite3", "Connection"): Adapter(_SQLITE, "connection", False),
    ("aiosqlite", "Connection"): Adapter(_AIOSQLITE, "async_connection", True),
    ("django", "ConnectionProxy"): Adapter(_DJANGO, "connection", False),
    ("django", "BaseDatabaseWrapper"): Adapter(_DJANGO, "connection", False),
    ("google.cloud.spanner_v1.transaction", "Transaction"): Adapter(_SPANNER, "transaction", False),
    ("google.cloud.spanner_v1._async.transaction", "Transaction"): Adapter(
        _SPANNER, "clients_async_transaction", True
    ),
    ("late", "AsyncSpanner"): Adapter(_SPANNER, "async_transaction", True),
    ("late", "AsyncSqlite"): Adapter(_SQLITE, "async_connection", True),
}
"""By (package, class) of a base of the transaction's type, or by (module, class) if a package has
several classes of that name."""
ACCEPTED = (
    "a SQLAlchemy Session, AsyncSession, Connection or AsyncConnection,"
    " a psycopg Connection or AsyncConnection, an asyncpg or aiosqlite Connection,"
    " a google-cloud-spanner Transaction, a Django connection,"
    " or a sqlite3.Connection"
)

_found: dict[type, tuple[Opener, bool]] = {}


def find(tx: object) -> tuple[Opener, bool]:
    """Return the opener for `tx`, and True if it is async.

    Raises:
        InvalidTask: there is no adapter for this type; the message names the types that are
            accepted.
    """
    kind = type(tx)
    found = _found.get(kind)
    if found is None:
        for base in kind.__mro__:
            module, name = base.__module__, base.__name__
            adapter = KNOWN.get((module.partition(".")[0], name)) or KNOWN.get((module, name))
            if adapter is not None:
                found = _found[kind] = (adapter.load(), adapter.is_async)
                break
        else:
            raise InvalidTask(f"cannot enqueue through {_name(kind)}: pass {ACCEPTED}")
    return found


def holds_connection(tx: Any) -> bool:
    """Tell whether `tx` is connected already, so that its adapter does not connect."""
    if hasattr(tx, "ensure_connection"):  # Django connects before the first statement.
        return tx.connection is not None
    # SQLAlchemy's sessions take a connection of their engine when they need one.
    return not hasattr(tx, "get_bind")


def _name(kind: type) -> str:
    full = f"{kind.__module__}.{kind.__qualname__}"
    hints = {
        "Engine": " (a transaction is needed: `with engine.begin() as tx`)",
        "AsyncEngine": " (a transaction is needed: `async with engine.begin() as tx`)",
        "sessionmaker": " (call it to get a Session)",
        "async_sessionmaker": " (call it to get an AsyncSession)",
        "Pool": " (pass a connection of it: `async with pool.acquire() as tx, tx.transaction()`)",
        "Cursor": " (pass its connection)",
        "AsyncCursor": " (pass its connection)",
        "Database": " (pass the transaction that `run_in_transaction` gives its function)",
    }
    return full + next(
        (hints[base.__name__] for base in kind.__mro__ if base.__name__ in hints), ""
    )
