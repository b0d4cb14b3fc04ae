"""The adapter for aiosqlite, whose connection is a `sqlite3.Connection` in a thread of its own.

Each statement is one call in that thread. As with `sqlite3` itself, the driver begins a transaction
before the INSERT unless it is in autocommit mode; see `sqlite.py`.
"""

from __future__ import annotations

from typing import Any

from late.outbox.adapters.sqlite import autocommits, connection
from late.outbox.base import Answer, Statement
from late.outbox.statements import SQLITE


class _Connection:
    __slots__ = ("_tx", "autocommit")
    dialect = SQLITE
    snapshot = False

    def __init__(self, tx: Any, autocommit: bool) -> None:
        self._tx = tx
        self.autocommit = autocommit

    async def execute(self, statement: Statement) -> Answer:
        answer: Answer = await self._tx._execute(
            lambda: connection(self._tx._conn).execute(statement)
        )
        return answer


async def async_connection(tx: Any) -> _Connection:
    """Return the adapter of an `aiosqlite.Connection`."""
    # Since Python 3.12 the mode is readable only in the connection's thread.
    return _Connection(tx, await tx._execute(lambda: autocommits(tx._conn)))
