"""SQLAlchemy sessions in a transaction that handlers share (`ctx.session`).

A session is of one handler. It works on a driver's connection that is lent to it: what would end
the transaction is refused while the handler runs, and has no effect when the session is put away.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from sqlalchemy import Connection, create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool
from sqlalchemy.util import greenlet_spawn


class Lent(Protocol):
    """A driver's connection whose `commit`, `rollback` and `close` are not for its user."""

    quiet: bool
    """True: they do nothing, for SQLAlchemy's own use of them; else they raise."""


class Engines:
    """The engines of one database, made when the first session needs one.

    Args:
        dialect: SQLAlchemy's name of the database and its driver.
    """

    def __init__(self, dialect: str) -> None:
        self._url = f"{dialect}://"
        self._lock = threading.Lock()
        self._made: dict[bool, Any] = {}
        self._lending = threading.local()

    def connect(self, lent: Lent, *, is_async: bool) -> Connection:
        """Return SQLAlchemy's connection around `lent`; for async ones inside of a greenlet."""
        with self._lock:
            if is_async not in self._made:
                self._made[is_async] = self._make(is_async)
        self._lending.connection = lent
        made: Connection = self._made[is_async].connect()
        lent.quiet = False
        return made

    def _make(self, is_async: bool) -> Any:
        settings: dict[str, Any] = {"poolclass": NullPool}
        if not is_async:
            return create_engine(self._url, creator=lambda: self._lending.connection, **settings)

        def create() -> Any:
            lent = self._lending.connection

            async def give() -> Any:
                return lent

            return engine.dialect.dbapi.connect(async_creator_fn=give)

        engine: Any = create_async_engine(self._url, creator=create, **settings).sync_engine
        return engine


class _Session(Session):
    """A session that takes its connection when it first needs one."""

    def __init__(self, *given: Any, connect: Callable[[], Connection], **named: Any) -> None:
        super().__init__(*given, **named)
        self._connect = connect
        self.taken: Connection | None = None

    def get_bind(self, *_: Any, **__: Any) -> Connection:
        if self.taken is None:
            self.taken = self._connect()
        return self.taken


class HandlerSession:
    """The session of one handler.

    Args:
        lend: makes the driver's connection.
        end: takes it back.
    """

    def __init__(
        self,
        engines: Engines,
        lend: Callable[[], Lent],
        end: Callable[[Any], None],
        *,
        is_async: bool,
    ) -> None:
        self._engines = engines
        self._lend = lend
        self._end = end
        self._is_async = is_async
        self._lent: Lent | None = None
        self._session: _Session
        self.given: Session | AsyncSession
        """The session as the handler has it."""
        if is_async:
            self.given = AsyncSession(sync_session_class=_Session, connect=self._connect)
            self._session = self.given.sync_session  # type: ignore[assignment]
        else:
            self.given = self._session = _Session(connect=self._connect)

    def flush(self) -> None:
        """Write what is pending. Raises what the database raises."""
        self._session.flush()

    def close(self) -> None:
        """Put it away; the transaction goes on. Its objects are detached."""
        if self._lent is not None:
            self._lent.quiet = True
        with suppress(Exception):  # Of a lost connection, or of an event of SQLAlchemy.
            self._session.close()
        if self._session.taken is not None:
            with suppress(Exception):
                self._session.taken.close()
        if self._lent is not None:
            self._end(self._lent)

    async def flush_async(self) -> None:
        await greenlet_spawn(self.flush)

    async def close_async(self) -> None:
        await greenlet_spawn(self.close)

    def _connect(self) -> Connection:
        self._lent = self._lend()
        return self._engines.connect(self._lent, is_async=self._is_async)
