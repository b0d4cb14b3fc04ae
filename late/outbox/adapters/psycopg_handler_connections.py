"""The objects of psycopg that the handlers of a shared transaction get: they cannot end it."""

from __future__ import annotations

from typing import Any, NoReturn

import psycopg

from late.outbox.adapters.psycopg_statements import RefusingAsyncCursor, RefusingCursor
from late.outbox.base import COMMIT_REFUSED, ROLLBACK_REFUSED


class SharedCursor(RefusingCursor):
    """A cursor that refuses the end of the transaction. Else what other tasks did would commit
    without the record of their ends, and they would run again."""

    refusals = (COMMIT_REFUSED, ROLLBACK_REFUSED)


class SharedAsyncCursor(RefusingAsyncCursor):
    """The same for a connection that is awaited."""

    refusals = (COMMIT_REFUSED, ROLLBACK_REFUSED)


class SharedConnection(psycopg.Connection[Any]):
    """The connection that handlers get: its transaction is not theirs to end."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cursor_factory = SharedCursor

    def commit(self) -> NoReturn:
        raise psycopg.ProgrammingError(COMMIT_REFUSED)

    def rollback(self) -> NoReturn:
        raise psycopg.ProgrammingError(ROLLBACK_REFUSED)

    def __exit__(self, *_: object) -> None:
        """Leave the transaction as it is."""


class SharedAsyncConnection(psycopg.AsyncConnection[Any]):
    """The same for `async def` handlers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cursor_factory = SharedAsyncCursor

    async def commit(self) -> NoReturn:
        raise psycopg.ProgrammingError(COMMIT_REFUSED)

    async def rollback(self) -> NoReturn:
        raise psycopg.ProgrammingError(ROLLBACK_REFUSED)

    async def __aexit__(self, *_: object) -> None:
        """Leave the transaction as it is."""


class LentConnection(psycopg.Connection[Any]):
    """The connection of a handler's SQLAlchemy session; see `shared_session.Lent`."""

    quiet = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cursor_factory = SharedCursor

    def commit(self) -> None:
        if not self.quiet:
            raise psycopg.ProgrammingError(COMMIT_REFUSED)

    def rollback(self) -> None:
        if not self.quiet:
            raise psycopg.ProgrammingError(ROLLBACK_REFUSED)

    def close(self) -> None:
        """Nothing: `end_lent` takes it back."""


class LentAsyncConnection(psycopg.AsyncConnection[Any]):
    """The same for `async def` handlers."""

    quiet = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cursor_factory = SharedAsyncCursor

    async def commit(self) -> None:
        if not self.quiet:
            raise psycopg.ProgrammingError(COMMIT_REFUSED)

    async def rollback(self) -> None:
        if not self.quiet:
            raise psycopg.ProgrammingError(ROLLBACK_REFUSED)

    async def close(self) -> None:
        """Nothing: `end_lent` takes it back."""
