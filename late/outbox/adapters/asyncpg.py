"""The adapter for asyncpg, to PostgreSQL.

It takes an `asyncpg.Connection`, or a connection of a pool. asyncpg begins no transaction by
itself: the caller opens one with `connection.transaction()`. Without one the insert of a task would
commit by itself.
"""

from __future__ import annotations

from typing import Any

from late.errors import InvalidTask
from late.outbox.base import Answer, Statement
from late.outbox.statements import ASYNCPG


class _Connection:
    __slots__ = ("_tx",)
    dialect = ASYNCPG
    snapshot = False

    def __init__(self, tx: Any) -> None:
        self._tx = tx

    @property
    def autocommit(self) -> bool:
        return not self._tx.is_in_transaction()

    async def execute(self, statement: Statement) -> Answer:
        if statement.fetch:
            rows = [tuple(row) for row in await self._tx.fetch(statement.sql, *statement.params)]
            return Answer(len(rows), rows)
        # The server's word for it, such as `INSERT 0 3`.
        status: str = await self._tx.execute(statement.sql, *statement.params)
        return Answer(int(status.rpartition(" ")[2]))


async def async_connection(tx: Any) -> _Connection:
    """Return the adapter of an `asyncpg.Connection`, also of one that a pool has lent.

    Raises:
        InvalidTask: the server is CockroachDB, whose statements are others.
    """
    if hasattr(tx.get_settings(), "crdb_version"):
        raise InvalidTask("cannot enqueue through asyncpg on CockroachDB: use psycopg there")
    return _Connection(tx)
