"""One SQLite transaction for the handlers of several tasks, one after the other.

Each handler runs in a savepoint of a connection that has the write lock, so nothing else is written
to the file meanwhile: see `TurnQueue`. The connection is closed after the commit.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from late.errors import ConfigError
from late.notify.notifier import tell
from late.outbox import pending_wakeups
from late.outbox.adapters.sqlite import AsyncSqlite
from late.outbox.adapters.sqlite_held import authorizer
from late.outbox.base import COMMIT_REFUSED, ROLLBACK_REFUSED
from late.outbox.shared_part import Sessions, SharedPart
from late.store.base import Fate, Settlement
from late.store.sqlite import shared_transaction
from late.store.sqlite.errors import translate
from late.store.sqlite.write_lock import patiently

if TYPE_CHECKING:
    from late.outbox.adapters.shared_session import HandlerSession

T = TypeVar("T")

STEPS = 10_000
"""The steps of SQLite's machine between two looks whether a statement is to end: some 100 us."""
_ENDED = "the connection is closed: its handler has ended"
_ENDS = re.compile(
    r"(?:[\s;]|--[^\n]*|(?>/\*.*?\*/))*"
    r"(?:(?P<commit>commit|end)|rollback(?!\s+(?:transaction\s+)?to\b))\b",
    re.IGNORECASE | re.DOTALL,
)
"""A statement that ends the transaction: SQLite takes one in each call."""


class _Cursor(sqlite3.Cursor):
    def execute(self, statement: str, *values: Any) -> _Cursor:
        self._refuse_end(statement)
        return super().execute(statement, *values)

    def executemany(self, statement: str, *values: Any) -> _Cursor:
        self._refuse_end(statement)
        return super().executemany(statement, *values)

    def executescript(self, *_: Any) -> NoReturn:
        raise sqlite3.ProgrammingError(f"executescript() would commit: {COMMIT_REFUSED}")

    def _refuse_end(self, statement: str) -> None:
        tx: Any = self.connection
        if tx.held and (found := _ENDS.match(statement)) is not None:
            message = COMMIT_REFUSED if found["commit"] else ROLLBACK_REFUSED
            raise sqlite3.ProgrammingError(message)


class SharedSqlite(sqlite3.Connection):
    """The connection that `def` handlers get: its transaction is not theirs to end."""

    held = True
    """No statement may end the transaction."""

    def cursor(self, factory: Any = _Cursor) -> Any:
        return super().cursor(factory)

    # The driver's own would not ask the cursor's.
    def execute(self, statement: str, *values: Any) -> Any:
        return self.cursor().execute(statement, *values)

    def executemany(self, statement: str, *values: Any) -> Any:
        return self.cursor().executemany(statement, *values)

    def commit(self) -> NoReturn:
        raise sqlite3.ProgrammingError(COMMIT_REFUSED)

    def rollback(self) -> NoReturn:
        raise sqlite3.ProgrammingError(ROLLBACK_REFUSED)

    def executescript(self, *_: Any) -> NoReturn:
        raise sqlite3.ProgrammingError(f"executescript() would commit: {COMMIT_REFUSED}")

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("isolation_level", "autocommit"):  # The driver commits when they are set.
            raise sqlite3.ProgrammingError(COMMIT_REFUSED)
        super().__setattr__(name, value)

    def __exit__(self, *_: object) -> None:  # type: ignore[override]
        """Leave the transaction as it is."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make a savepoint: what the block does is taken back if it raises."""
        self.execute("savepoint late_block")
        try:
            yield
        except BaseException:
            self.execute("rollback to late_block")
            raise
        finally:
            self.execute("release late_block")


class SharedAsyncSqlite(AsyncSqlite):
    """The connection that `async def` handlers get. Its statements run in a thread."""

    def __init__(self, raw: SharedSqlite, thread: ThreadPoolExecutor) -> None:
        self._raw = raw
        self._thread = thread
        self.ended = False

    async def run(self, call: Callable[[], T]) -> T:
        if self.ended:
            raise sqlite3.ProgrammingError(_ENDED)
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def commit(self) -> NoReturn:
        raise sqlite3.ProgrammingError(COMMIT_REFUSED)

    async def rollback(self) -> NoReturn:
        raise sqlite3.ProgrammingError(ROLLBACK_REFUSED)

    async def close(self) -> NoReturn:
        raise sqlite3.ProgrammingError(ROLLBACK_REFUSED)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """Make a savepoint: what the block does is taken back if it raises."""
        await self.execute("savepoint late_block")
        try:
            yield
        except BaseException:
            await self.execute("rollback to late_block")
            raise
        finally:
            await self.execute("release late_block")


class _Lent:
    """The connection of a handler's SQLAlchemy session; see `shared_session.Lent`. A file's
    connection has one object, so this stands before it."""

    def __init__(self, raw: SharedSqlite) -> None:
        self._raw = raw
        self.quiet = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def commit(self) -> None:
        if not self.quiet:
            self._raw.commit()

    def rollback(self) -> None:
        if not self.quiet:
            self._raw.rollback()

    def close(self) -> None:
        """Nothing: the connection is the transaction's."""


class SqliteShared(SharedPart):
    """One shared transaction. One thread at a time may use it; `break_off` and `cancel` are for any
    other."""

    def __init__(
        self,
        make: Callable[[type[SharedSqlite]], SharedSqlite],
        sessions: Sessions,
        *,
        is_async: bool,
    ) -> None:
        """Begin it. It blocks, for up to five seconds if another one has the write lock.

        Raises:
            SchemaMismatch: there is no file.
            sqlite3.OperationalError: the lock was not free.
        """
        super().__init__()
        self._over = False
        self._sessions = sessions
        self._thread = ThreadPoolExecutor(1, "late-sqlite") if is_async else None
        self._raw = make(SharedSqlite)
        self.connection: Any = self._raw
        try:
            self._raw.execute("pragma busy_timeout = 0")
            patiently(lambda: self._raw.execute("begin immediate"))
            self._raw.execute("savepoint late_task")
        except BaseException:
            self._raw.close()
            raise
        self._raw.set_progress_handler(lambda: self._over, STEPS)
        pending_wakeups.begin(self.connection, self._shards)
        self._renew()

    def _new_session(self) -> HandlerSession:
        if self._thread is not None:
            raise ConfigError(
                "ctx.session of an async def handler is for PostgreSQL, since no async driver of"
                " SQLite can take over a connection: write it as def, or use ctx.tx"
            )
        return self._sessions.open(lambda: _Lent(self._raw), lambda lent: None, is_async=False)

    def hold(self) -> None:
        """Refuse every statement that would end the transaction: it is of a shadow."""
        self._raw.set_authorizer(authorizer(self._raw))

    def next(self) -> None:
        """Keep what the last handler did, and begin the part of the next one.

        Raises:
            sqlite3.Error: the last one has spoilt the transaction.
        """
        self._renew()
        self._raw.execute("release late_task")
        self._raw.execute("savepoint late_task")

    async def next_async(self) -> None:
        await self._there(self.next)

    def last(self) -> None:
        """Keep what the last handler did; a commit comes next."""
        self._renew()

    def undo(self) -> bool:
        """Take back what the present handler did; return whether the transaction goes on."""
        try:
            self._raw.execute("rollback to late_task")
        except sqlite3.Error:
            return False
        return not self._over

    async def undo_async(self) -> bool:
        return await self._there(self.undo)

    async def _there(self, call: Callable[[], T]) -> T:
        """Run `call` behind what a handler may have left in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    @property
    def error(self) -> BaseException | None:
        """Why what the present handler did cannot be kept, although it has returned; else None."""
        return None if self._raw.in_transaction else sqlite3.ProgrammingError(COMMIT_REFUSED)

    @staticmethod
    def is_of_database(error: BaseException) -> bool:
        """Return whether the database has raised it, maybe wrapped."""
        return _cause(error) is not None

    @staticmethod
    def is_transient(error: BaseException) -> bool:
        """Return whether a repeat may do better: a lock, a full disk."""
        found = _cause(error)
        return found is not None and translate(found).transient

    def commit(self, settlements: Sequence[Settlement]) -> tuple[Fate, BaseException | None]:
        """Commit with these settlements: see `late.store.sqlite.shared_transaction`."""
        self._raw.held = False
        return shared_transaction.commit(self._raw, settlements)

    def roll_back(self) -> None:
        """Take back what all handlers did."""
        self._raw.held = False
        with suppress(sqlite3.Error):
            self._raw.execute("rollback")

    def close(self, *, committed: bool = False) -> None:
        """Close the connection. What was not committed is rolled back."""
        pending_wakeups.end(self.connection)
        self._raw.close()
        if self._thread is not None:
            self._thread.shutdown(wait=False)
        if committed and self._shards:
            tell(frozenset(self._shards))

    def break_off(self) -> None:
        """Let a statement that runs end soon, from another thread. `cancel` comes next."""
        self._over = True

    def cancel(self) -> None:
        """Take the write lock from a handler that does not come back. It can write nothing from
        here on: by itself each statement would commit."""
        self._raw.held = False
        with suppress(sqlite3.Error):
            self._raw.execute("pragma query_only = on")
            self._raw.execute("rollback")

    def _renew(self) -> None:
        """End what the last handler has set on its connection."""
        self._raw.row_factory = None
        self._raw.text_factory = str
        if self._thread is None:
            return
        if self.connection is not self._raw:
            self.connection.ended = True
        pending_wakeups.end(self.connection)
        self.connection = SharedAsyncSqlite(self._raw, self._thread)
        pending_wakeups.begin(self.connection, self._shards)


def _cause(error: BaseException) -> sqlite3.Error | None:
    """Return the driver's error that `error` is, or has been raised from."""
    seen: BaseException | None = error
    for _ in range(5):
        if isinstance(seen, sqlite3.Error) or seen is None:
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


class SqliteSharedTransactions:
    """Makes shared transactions in one file."""

    one_writer = True

    def __init__(self, make: Callable[[type[SharedSqlite]], SharedSqlite]) -> None:
        """
        Args:
            make: opens the file, with a connection of the given type.
        """
        self._make = make
        self._sessions = Sessions("sqlite+pysqlite")

    def begin(self, is_async: bool = False, /) -> SqliteShared:
        """Begin one. It blocks. Raises: see `SqliteShared`."""
        return SqliteShared(self._make, self._sessions, is_async=is_async)

    def close(self) -> None:
        """Nothing is kept."""
