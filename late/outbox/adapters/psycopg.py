"""psycopg 3: `Connection` and `AsyncConnection`, as they come from `connect` or from a pool,
to PostgreSQL or to CockroachDB, which says so when it is connected to.

A connection in autocommit mode with no transaction block open commits the task by itself.

In pipeline mode an answer is there after the next synchronisation only, and the steps of an insert
decide by answers: a pipeline inside the caller's synchronises where it ends.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import psycopg
from psycopg.adapt import PyFormat
from psycopg.pq import Format, TransactionStatus
from psycopg.rows import tuple_row

from late.outbox.adapters.psycopg_arrays import Packed, pack
from late.outbox.base import Answer, Statement
from late.outbox.statements import COCKROACH, Dialect, Postgres

_AT_ONCE = nullcontext()


class _Native(Postgres):
    """The statements for our own cursors. SQLAlchemy's do not know `Packed`: they get lists."""

    def array(self, kind: str, values: list[Any]) -> Packed:
        return pack(kind, values)


NATIVE = _Native("psycopg")


class _PackedDumper(psycopg.adapt.Dumper):
    """One for each type of array: psycopg asks for the key first."""

    format = Format.BINARY

    def get_key(self, obj: Packed, format: PyFormat) -> Any:
        return (Packed, obj.oid)

    def upgrade(self, obj: Packed, format: PyFormat) -> _PackedDumper:
        dumper = _PackedDumper(Packed)
        dumper.oid = obj.oid
        return dumper

    def dump(self, obj: Packed) -> bytes:
        return obj.data


class _Connection:
    __slots__ = ("_cursor", "dialect")
    snapshot = False

    def __init__(self, tx: psycopg.Connection[Any]) -> None:
        # A cursor of our own: the caller's factories may bind on the client side or return rows
        # as dicts.
        self._cursor = psycopg.Cursor(tx, row_factory=tuple_row)
        self.dialect = _dialect(tx)

    @property
    def autocommit(self) -> bool:
        return _autocommits(self._cursor.connection)

    def execute(self, statement: Statement) -> Answer:
        cursor, text = self._cursor, statement.sql.encode()
        if Packed in map(type, statement.params):
            _adapt(cursor)
        if cursor.connection.pgconn.pipeline_status:
            with cursor.connection.pipeline():  # at whose end it has been answered
                cursor.execute(text, statement.params)
        else:
            cursor.execute(text, statement.params)
        rows = cursor.fetchall() if statement.fetch else ()
        return Answer(cursor.rowcount, rows)


class _AsyncConnection:
    __slots__ = ("_cursor", "dialect")
    snapshot = False

    def __init__(self, tx: psycopg.AsyncConnection[Any]) -> None:
        self._cursor = psycopg.AsyncCursor(tx, row_factory=tuple_row)
        self.dialect = _dialect(tx)

    @property
    def autocommit(self) -> bool:
        return _autocommits(self._cursor.connection)

    async def execute(self, statement: Statement) -> Answer:
        if Packed in map(type, statement.params):
            _adapt(self._cursor)
        async with _answering(self._cursor.connection):
            await self._cursor.execute(statement.sql.encode(), statement.params)
        rows = await self._cursor.fetchall() if statement.fetch else ()
        return Answer(self._cursor.rowcount, rows)


def _adapt(cursor: Any) -> None:
    """Let our cursor know `Packed`, and not the caller's connection; one task has no arrays."""
    cursor.adapters.register_dumper(Packed, _PackedDumper)


def _dialect(tx: Any) -> Dialect:
    return COCKROACH if tx.pgconn.parameter_status(b"crdb_version") else NATIVE


def _answering(tx: Any) -> Any:
    """At whose end the statements inside have been answered."""
    return tx.pipeline() if tx.pgconn.pipeline_status else _AT_ONCE


def _autocommits(tx: Any) -> bool:
    return bool(tx.autocommit) and tx.info.transaction_status == TransactionStatus.IDLE


def connection(tx: psycopg.Connection[Any]) -> _Connection:
    """The adapter of a `psycopg.Connection`."""
    if tx.autocommit:
        with _answering(tx):
            pass  # only after it is known whether a transaction block is open
    return _Connection(tx)


async def async_connection(tx: psycopg.AsyncConnection[Any]) -> _AsyncConnection:
    """The adapter of a `psycopg.AsyncConnection`."""
    if tx.autocommit:
        async with _answering(tx):
            pass
    return _AsyncConnection(tx)
