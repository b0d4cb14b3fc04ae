"""One PostgreSQL transaction for the handlers of several tasks, one after the other.

Each handler runs in a savepoint. Between two of them one statement ends the savepoint, takes back
all settings that the handler made (a search path, a role, a tenant's variable: SET LOCAL would stay
until the commit), and makes the next savepoint: one round trip. The session is one of those that
`ctx.begin()` uses, so DISCARD ALL ends what SET without LOCAL and temporary tables leave behind.
Each handler gets an object of psycopg of its own around it, and so does the settlement: a row
factory or an adapter that a handler sets on it is for no other.
"""

from __future__ import annotations

import os
import socket
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import generators
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn

from late.notify.notifier import tell
from late.outbox import pending_wakeups
from late.outbox.adapters import psycopg_session
from late.outbox.adapters.psycopg_handler_connections import (
    LentAsyncConnection,
    LentConnection,
    SharedAsyncConnection,
    SharedConnection,
)
from late.outbox.idle_connections import IdleConnections
from late.outbox.shared_part import Sessions, SharedPart
from late.store.base import Fate, Settlement
from late.store.postgres import shared_transaction

if TYPE_CHECKING:
    from late.outbox.adapters.shared_session import HandlerSession

LOCK_S = 0.050
"""The longest wait for a lock, but for the first handler of a transaction: that of a later one may
be for another shared transaction, which waits for what the earlier ones have locked. The server
would take a second to find that out. The handler runs again in a transaction of its own."""
_BEGIN = (
    b"begin isolation level read committed, read write; savepoint late_task;"
    b" select pg_backend_pid()"
)
PREPARE_AFTER = 2
"""A statement that a transaction has executed so many times is prepared, until its end. The server
plans it a few times more and then no more, which is half of its time for an UPDATE of one row."""
_RESET = b"release savepoint late_task; reset all; reset role; reset session authorization"
_NEXT = _RESET + b"; savepoint late_task; set local lock_timeout = %d" % (LOCK_S * 1000)
_UNDO = b"rollback to savepoint late_task"
_LAST = _RESET + b"; set local lock_timeout = %d" % (shared_transaction.LOCK_S * 1000)


_TRANSIENT = ("40001", "40P01", "55P03")
_GONE = ("08", "57P")
"""The beginnings of the states of a server that has gone away."""


class PsycopgShared(SharedPart):
    """One shared transaction. One thread at a time may use it; `break_off` is for any other."""

    def __init__(
        self, conninfo: str, idle: IdleConnections, sessions: Sessions, *, is_async: bool = False
    ) -> None:
        """Begin it. It blocks.

        Args:
            sessions: makes those of the handlers.
            is_async: handlers get connections that are awaited.

        Raises:
            psycopg.Error: no connection, or no transaction on it.
        """
        super().__init__()
        self._idle = idle
        self._sessions = sessions
        self._held: Any = None
        self.connection: Any = psycopg_session.shared(conninfo, idle, SharedConnection)
        try:
            self._session: PGconn | None = self.connection.pgconn
            # A pooler between has a process id of its own. Some take names for something else.
            is_direct = self._execute(_BEGIN) == b"%d" % self._session.backend_pid
            self._prepare_after = PREPARE_AFTER if is_direct else None
            self.connection.prepare_threshold = self._prepare_after
            self._cancel = self._session.get_cancel()
        except BaseException:
            self.connection.close()
            raise
        self._is_async = is_async
        self._kind: Any = SharedAsyncConnection if is_async else SharedConnection
        self._take(self.connection)
        self._renew(self._kind)

    def _new_session(self) -> HandlerSession:
        kind: Any = LentAsyncConnection if self._is_async else LentConnection
        return self._sessions.open(
            lambda: self._lend(kind), psycopg_session.end_lent, is_async=self._is_async
        )

    def _lend(self, kind: Any) -> Any:
        made = psycopg_session.lent(self.connection, kind, self._prepare_after)
        if self._held:
            made.cursor_factory = self._held
        return made

    def hold(self) -> None:
        """Refuse every statement that would end the transaction: it is of a shadow."""
        from late.outbox.adapters.psycopg_held import HeldAsyncCursor, HeldCursor

        self._held = HeldAsyncCursor if self._is_async else HeldCursor
        self.connection.cursor_factory = self._held
        self.connection.late_held = True

    def next(self) -> None:
        """Keep what the last handler did, and begin the part of the next one.

        Raises:
            psycopg.Error: the last one has spoilt the transaction.
        """
        self._execute(_NEXT)
        self._renew(self._kind)

    async def next_async(self) -> None:
        """Do the same as `next`, on the loop."""
        await self._execute_async(_NEXT)
        self._renew(self._kind)

    def last(self) -> None:
        """Keep what the last handler did; a commit comes next.

        Raises:
            psycopg.Error: it has spoilt the transaction.
        """
        self._execute(_LAST)
        self._renew(SharedConnection)

    def _renew(self, kind: Any) -> None:
        """Take a new object around the session.

        It costs 40 us, so the old one stays if it is as it was and nobody else has it: of its
        references, two are of this look at them.
        """
        if type(self.connection) is kind and sys.getrefcount(self.connection) <= 2:
            self.connection._adapters = None  # Made when they are first asked for.
            if vars(self.connection) == self._as_given:
                self.connection.prepare_threshold = self._prepare_after
                return
        pending_wakeups.end(self.connection)
        self._take(psycopg_session.renewed(self.connection, kind, self._prepare_after))

    def _take(self, connection: Any) -> None:
        self.connection = connection
        self._as_given = {name: _copied(value) for name, value in vars(connection).items()}
        pending_wakeups.begin(connection, self._shards)

    def undo(self) -> bool:
        """Take back what the present handler did; return whether the transaction goes on."""
        try:
            self._execute(_UNDO)
        except psycopg.Error:
            return False
        return True

    async def undo_async(self) -> bool:
        """Do the same as `undo`, on the loop."""
        if self.connection.lock.locked():  # The handler has left a statement running.
            # It waits for a descriptor, which must not be another connection's before it has ended.
            self.break_off()
            async with self.connection.lock:
                return False
        try:
            await self._execute_async(_UNDO)
        except psycopg.Error:
            return False
        return True

    @property
    def error(self) -> BaseException | None:
        """Why what the present handler did cannot be kept, although it has returned; else None."""
        session = self._session
        if session is not None and session.transaction_status == TransactionStatus.INTRANS:
            return None
        return psycopg.errors.InFailedSqlTransaction(
            "a statement of this handler has failed, so nothing of it can be committed: let the"
            " error out of the handler, or use a savepoint (`with ctx.begin() as tx:`)"
        )

    @staticmethod
    def is_of_database(error: BaseException) -> bool:
        """Return whether the database has raised it, maybe wrapped."""
        return _state(error) is not None

    @staticmethod
    def is_transient(error: BaseException) -> bool:
        """Return whether a repeat may do better: a deadlock, a conflict, a lock, a lost server."""
        state = _state(error)
        return state is not None and (not state or state in _TRANSIENT or state.startswith(_GONE))

    def commit(self, settlements: Sequence[Settlement]) -> tuple[Fate, BaseException | None]:
        """Commit with these settlements: see `late.store.postgres.shared_transaction`."""
        return shared_transaction.commit(self.connection, settlements)

    def roll_back(self) -> None:
        """Take back what all handlers did, and keep the connection if it is sound."""
        with suppress(psycopg.Error):
            self._execute(b"rollback")

    def close(self, *, committed: bool = False) -> None:
        """Give the connection back. What was not committed is rolled back. It waits for nobody."""
        pending_wakeups.end(self.connection)
        self._session = None
        psycopg_session.put(self.connection, self._idle)
        if committed and self._shards:
            tell(frozenset(self._shards))

    def break_off(self) -> None:
        """End the connection under a handler that does not come back, from another thread.

        Not by `close`: what libpq has of the connection belongs to the handler's thread. It does
        not block; `cancel` does, and ends the statement that the server is at.
        """
        session = self._session
        if session is None:
            return
        with (
            suppress(OSError, psycopg.Error),
            socket.socket(fileno=os.dup(session.socket)) as wire,
        ):
            wire.shutdown(socket.SHUT_RDWR)

    def cancel(self) -> None:
        """See `break_off`."""
        with suppress(psycopg.Error):
            self._cancel.cancel()

    def _execute(self, statements: bytes) -> bytes | None:
        """Run them in one round trip, and return the one value that the last one has, if any.
        Cheaper than a cursor by some 30 us."""
        result = self.connection.pgconn.exec_(statements)
        if result.status == ExecStatus.TUPLES_OK:
            value: bytes | None = result.get_value(0, 0)
            return value
        if result.status != ExecStatus.COMMAND_OK:
            raise psycopg_session.error_of(result, self.connection)
        return None

    async def _execute_async(self, statements: bytes) -> None:
        session = self.connection.pgconn
        session.send_query(statements)
        for result in await self.connection.wait(generators.execute(session)):
            if result.status != ExecStatus.COMMAND_OK:
                raise psycopg_session.error_of(result, self.connection)


def _copied(value: object) -> object:
    """Return what shows later whether `value` was changed in its place."""
    return type(value)(value) if isinstance(value, list | deque) else value


def _state(error: BaseException) -> str | None:
    """Return the SQLSTATE of an error or of its cause; None: none of them is of psycopg, empty:
    the server has not answered."""
    seen: BaseException | None = error
    for _ in range(5):
        if isinstance(seen, psycopg.Error):
            gone = isinstance(seen, psycopg.OperationalError) and not seen.sqlstate
            return "" if gone else seen.sqlstate or "-----"
        if seen is None:
            return None
        seen = seen.__cause__ or seen.__context__
    return None


class PsycopgSharedTransactions:
    """Makes shared transactions in one database, on connections that are kept in between."""

    one_writer = False

    def __init__(self, conninfo: str, most: int) -> None:
        """
        Args:
            most: the number of connections to keep.
        """
        self._conninfo = conninfo
        self._idle = IdleConnections(most)
        self._sessions = Sessions("postgresql+psycopg")

    def begin(self, is_async: bool = False, /) -> PsycopgShared:
        """Begin one. It blocks. Raises: see `PsycopgShared`."""
        return PsycopgShared(self._conninfo, self._idle, self._sessions, is_async=is_async)

    def close(self) -> None:
        """Close the connections that are idle, and others when they are given back."""
        self._idle.close()
