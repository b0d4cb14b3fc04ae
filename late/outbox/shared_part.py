"""The part of a shared transaction that is the same on all stores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from late.outbox import pending_wakeups

if TYPE_CHECKING:
    from late.outbox.adapters.shared_session import Engines, HandlerSession


class Sessions:
    """Makes the SQLAlchemy sessions of handlers. Nothing is imported before the first.

    Args:
        dialect: SQLAlchemy's name of the database and its driver.
    """

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect

    @cached_property
    def _engines(self) -> Engines:
        from late.outbox.adapters.shared_session import Engines

        return Engines(self._dialect)

    def open(
        self, lend: Callable[[], Any], end: Callable[[Any], None], *, is_async: bool
    ) -> HandlerSession:
        """See `shared_session.HandlerSession`."""
        from late.outbox.adapters.shared_session import HandlerSession

        return HandlerSession(self._engines, lend, end, is_async=is_async)


class SharedPart(ABC):
    """The part of a shared transaction that has the SQLAlchemy session of the present handler."""

    connection: Any
    _open: HandlerSession | None = None

    def __init__(self) -> None:
        self._shards: set[int] = set()
        """Those of the tasks that its handlers have enqueued."""

    @abstractmethod
    def _new_session(self) -> HandlerSession:
        """Make the session of the present handler."""

    def session(self) -> Any:
        """Return the session, made when it is first asked for.

        Raises:
            ConfigError: there can be none.
        """
        if self._open is None:
            self._open = self._new_session()
            pending_wakeups.begin(self._open.given, self._shards)
        return self._open.given

    def is_own(self, tx: object) -> bool:
        """Return whether `tx` is this transaction, or the session in it."""
        return tx is self.connection or (self._open is not None and tx is self._open.given)

    def flush(self) -> None:
        """Write what the handler has left pending in its session."""
        if self._open is not None:
            self._open.flush()

    async def flush_async(self) -> None:
        if self._open is not None:
            await self._open.flush_async()

    def end_session(self) -> None:
        """Put the session away, whatever the handler has left."""
        if (ended := self._taken_session()) is not None:
            ended.close()

    async def end_session_async(self) -> None:
        if (ended := self._taken_session()) is not None:
            await ended.close_async()

    def _taken_session(self) -> HandlerSession | None:
        ended, self._open = self._open, None
        if ended is not None:
            pending_wakeups.end(ended.given)
        return ended
