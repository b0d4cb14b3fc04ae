"""Open and end SQLite transactions for handlers (`ctx.begin()`), on kept connections.

A kept connection is closed if a handler has changed what the next one would notice: a PRAGMA, an
attached file, a temporary table, a function. SQLite itself reports the first three when it compiles
a statement (its authorizer).
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from late.errors import SchemaMismatch
from late.outbox.adapters.sqlite import AsyncSqlite
from late.outbox.idle_connections import IdleConnections
from late.store.sqlite.guard import path_of

BUSY_TIMEOUT_S = 5.0
_LASTING = {
    sqlite3.SQLITE_ATTACH,
    sqlite3.SQLITE_CREATE_TEMP_TABLE,
    sqlite3.SQLITE_CREATE_TEMP_TRIGGER,
    sqlite3.SQLITE_CREATE_TEMP_VIEW,
    sqlite3.SQLITE_PRAGMA,
}
"""Actions whose result would outlive a transaction."""
_REGISTER = (
    "create_aggregate",
    "create_collation",
    "create_function",
    "create_window_function",
    "enable_load_extension",
    "set_authorizer",
    "set_progress_handler",
    "set_trace_callback",
)
_USE = ("commit", "cursor", "execute", "executemany", "executescript", "rollback")


class Kept(sqlite3.Connection):
    """A connection that knows whether it may serve another transaction."""

    def __init__(self, path: Path, file: tuple[int, int]) -> None:
        super().__init__(
            _where(path),
            uri=True,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )
        self.file = file
        """The device and inode that it has open."""
        self.idle = False
        self._changes: list[int] = []
        super().set_authorizer(partial(_watch, self._changes))

    def clean(self) -> bool:
        """End the transaction, and tell whether nothing of it is left."""
        try:
            if self.in_transaction:
                self.rollback()
            self.row_factory, self.text_factory, self.isolation_level = None, str, None
        except sqlite3.Error:
            return False
        return not self._changes and getattr(self, "autocommit", -1) == -1


def _watch(changes: list[int], action: int, *_: object) -> int:
    if action in _LASTING:
        changes.append(action)
    return sqlite3.SQLITE_OK


def _registering(name: str) -> Callable[..., Any]:
    def register(self: Kept, *args: Any, **options: Any) -> Any:
        self._changes.append(-1)
        return getattr(sqlite3.Connection, name)(self, *args, **options)

    return register


def _using(name: str) -> Callable[..., Any]:
    def use(self: Kept, *args: Any, **options: Any) -> Any:
        if self.idle:  # A statement would commit by itself.
            raise sqlite3.ProgrammingError("the connection is closed: its block has ended")
        return getattr(sqlite3.Connection, name)(self, *args, **options)

    return use


for _name in _REGISTER:
    if hasattr(sqlite3.Connection, _name):  # Python may be built without extensions.
        setattr(Kept, _name, _registering(_name))
for _name in _USE:
    setattr(Kept, _name, _using(_name))


@contextmanager
def connect(
    url: str,
    idle: IdleConnections | None = None,
    first: Callable[[Any], object] | None = None,
) -> Iterator[sqlite3.Connection]:
    """Open a transaction with the write lock; see `psycopg_session.connect`."""
    tx = _take(url, idle)
    try:
        tx.execute("begin immediate")
        if first is not None:
            first(tx)
        yield tx
        if tx.in_transaction:
            tx.commit()
    finally:
        _put(tx, idle)


@asynccontextmanager
async def connect_async(
    url: str,
    idle: IdleConnections | None = None,
    first: Callable[[Any], Awaitable[object]] | None = None,
) -> AsyncIterator[AsyncSqlite]:
    """Open an async transaction with the write lock. A cancellation rolls it back."""
    path_of(url)  # Raises for a wrong URL here and not in the thread.
    tx = AsyncSqlite(lambda: _take(url, idle), lambda raw: _put(raw, idle))
    try:
        await tx.execute("begin immediate")
        if first is not None:
            await first(tx)
        yield tx
        await tx.commit()
    finally:
        await tx.close()


def _take(url: str, idle: IdleConnections | None) -> sqlite3.Connection:
    path = path_of(url)
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise SchemaMismatch(f"there is no database at {url}: run `late migrate {url}`") from None
    if idle is None:
        return sqlite3.connect(_where(path), uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)
    file = (found.st_dev, found.st_ino)
    while isinstance(kept := idle.take(), Kept):
        if kept.file == file:  # A file that was put in its place is another database.
            kept.idle = False
            return kept
        kept.close()
    return Kept(path, file)


def _where(path: Path) -> str:
    return f"file:{quote(str(path.absolute()))}?mode=rw&cache=private"


def _put(tx: sqlite3.Connection, idle: IdleConnections | None) -> None:
    """Keep the connection or close it, and roll back an open transaction."""
    if idle is not None and isinstance(tx, Kept) and tx.clean():
        tx.idle = True
        idle.put(tx, tx.close)
    else:
        tx.close()
