"""A connection of SQLite that commits nothing, for shadows."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, NoReturn

REFUSED = "this is a shadow: its transaction is rolled back, and no statement may end it"


def authorizer(connection: sqlite3.Connection) -> Callable[..., int]:
    """Return what refuses every statement that would commit: the end of the transaction, and all
    that comes when it has ended by an error."""

    def may(action: int, *_: object) -> int:
        ends = action == sqlite3.SQLITE_TRANSACTION or not connection.in_transaction
        return sqlite3.SQLITE_DENY if ends else sqlite3.SQLITE_OK

    return may


class HeldSqlite(sqlite3.Connection):
    """The connection that handlers of a shadow get. Closing it rolls back."""

    late_held = True

    def hold(self) -> None:
        """Begin the transaction, and refuse its end from here on.

        Raises:
            sqlite3.OperationalError: another one has the write lock for too long.
        """
        self.execute("begin immediate")
        self.set_authorizer(authorizer(self))

    def commit(self) -> None:
        """Do nothing."""

    def rollback(self) -> None:
        """Take back what was done so far. What comes is held as well."""
        self.set_authorizer(None)
        super().rollback()
        self.hold()

    def executescript(self, *_: Any) -> NoReturn:
        raise sqlite3.ProgrammingError(f"executescript() would commit: {REFUSED}")

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("isolation_level", "autocommit"):  # The driver commits when they are set.
            raise sqlite3.ProgrammingError(REFUSED)
        super().__setattr__(name, value)

    def __exit__(self, *_: object) -> None:  # type: ignore[override]
        """Leave the transaction as it is."""
