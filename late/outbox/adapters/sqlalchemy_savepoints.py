"""Savepoints of SQLAlchemy on SQLite that are no part of a transaction.

Python's drivers of SQLite begin a transaction before a statement that writes, and not before a
savepoint. One that comes first is SQLite's whole transaction: its release commits, and a rollback
of SQLAlchemy's transaction around it takes nothing back. So a task of it would run although its
transaction was rolled back. SQLite does not tell such a savepoint from another one. So each is
looked at when it begins, and nothing is changed about it: engines of the service are not ours.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from late.errors import InvalidTask

if TYPE_CHECKING:
    from sqlalchemy import Connection

_FIRST = "late_savepoint_first"
REFUSED = (
    "this savepoint came before any write of its transaction, and then SQLite's driver begins none:"
    " the task would stay if your transaction is rolled back. Enqueue before or after the savepoint"
    " (begin_nested()), or let SQLAlchemy begin: see docs/effects.md#savepoints-on-sqlite"
)


def watch() -> None:
    """Look at all savepoints from now on, if SQLAlchemy is in use. It may be called again."""
    sqlalchemy = sys.modules.get("sqlalchemy")
    engine = getattr(sqlalchemy, "Engine", None)  # It may be half imported.
    event = getattr(sqlalchemy, "event", None)
    if engine is None or event is None or event.contains(engine, "savepoint", _begins):
        return
    event.listen(engine, "savepoint", _begins)


def check(tx: Connection) -> None:
    """Refuse a connection of SQLite that is in such a savepoint.

    Raises:
        InvalidTask: see above; or nobody has seen how the savepoint began.
    """
    if not tx.in_nested_transaction():
        return
    driver: Any = tx.connection.driver_connection
    if tx.info.get(_FIRST, driver.isolation_level is not None):
        raise InvalidTask(REFUSED)


def _begins(tx: Connection, name: str) -> None:
    if tx.dialect.name != "sqlite":
        return
    driver: Any = tx.connection.driver_connection
    if not driver.in_transaction:
        tx.info[_FIRST] = True
    elif not tx.in_nested_transaction():
        tx.info[_FIRST] = False
