"""The adapter for psycopg 3, to PostgreSQL or CockroachDB.

It takes a `Connection` or an `AsyncConnection`, from `connect` or from a pool. CockroachDB is
recognised by a parameter that it sends when it is connected to.

In autocommit mode, without an open transaction block, the insert of a task would commit by itself.
Without autocommit mode psycopg begins a transaction before the insert, if none is open.

In pipeline mode an answer arrives only after the next synchronisation, and the steps of an insert
need answers. So they run in a pipeline inside the caller's, which synchronises at its end.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import psycopg
from psycopg import generators
from psycopg.abc import PQGen
from psycopg.adapt import PyFormat
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.rows import tuple_row

from late.observability.conflicts import comment
from late.outbox.adapters.psycopg_arrays import Packed, pack
from late.outbox.base import Answer, Statement
from late.outbox.statements import COCKROACH, Dialect, Postgres

_AT_ONCE = nullcontext()
_PLAIN = (str, int)
"""Values that are as short in the text of a statement as beside it."""


class _Native(Postgres):
    """The statements for the cursors of this module. SQLAlchemy's do not know `Packed`."""

    def array(self, kind: str, values: list[Any]) -> Packed:
        return pack(kind, values)


NATIVE = _Native("psycopg")


class _PackedDumper(psycopg.adapt.Dumper):
    """The dumper of `Packed`. psycopg makes one per key, so there is one per type of array."""

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
        # A new plain cursor: one of the caller's factories may bind parameters in the client, or
        # return rows as dicts.
        self._cursor = psycopg.Cursor(tx, row_factory=tuple_row)
        self.dialect = _dialect(tx)

    @property
    def autocommit(self) -> bool:
        return _autocommits(self._cursor.connection)

    def execute(self, statement: Statement) -> Answer:
        cursor, text = self._cursor, _text(self._cursor, statement)
        tx = cursor.connection
        if hasattr(tx, "late_tag") and _begins(tx, statement):
            with tx.lock:
                return tx.wait(_begin_with(tx, text, psycopg.ClientCursor(tx), statement.params))
        if Packed in map(type, statement.params):
            _adapt(cursor)
        if cursor.connection.pgconn.pipeline_status:
            with cursor.connection.pipeline():  # At its end the answer has arrived.
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
        tx = self._cursor.connection
        if hasattr(tx, "late_tag") and _begins(tx, statement):
            text, binder = _text(self._cursor, statement), psycopg.AsyncClientCursor(tx)
            async with tx.lock:
                return await tx.wait(_begin_with(tx, text, binder, statement.params))
        if Packed in map(type, statement.params):
            _adapt(self._cursor)
        async with _answering(self._cursor.connection):
            await self._cursor.execute(_text(self._cursor, statement), statement.params)
        rows = await self._cursor.fetchall() if statement.fetch else ()
        return Answer(self._cursor.rowcount, rows)


def _text(cursor: Any, statement: Statement) -> bytes:
    """Return the statement, with the tag of a connection that `late` has opened."""
    tag = getattr(cursor.connection, "late_tag", "")
    return (comment(tag) + statement.sql if tag else statement.sql).encode()


def _begins(tx: Any, statement: Statement) -> bool:
    """Return whether a statement can begin the transaction of a connection that `late` has opened:
    a service's own may have factories or settings for its first statement."""
    return (
        not statement.fetch
        and tx.pgconn.transaction_status == TransactionStatus.IDLE
        and not (tx.autocommit or tx.pgconn.pipeline_status)
        and all(type(value) in _PLAIN for value in statement.params)
    )


def _begin_with(tx: Any, text: bytes, binder: Any, params: Any) -> PQGen[Answer]:
    """Begin a transaction with its first statement: one round trip, where psycopg takes two.

    The parameters are bound here, as several statements in one message can have none.
    """
    bound = binder.mogrify(text, params).encode(tx.info.encoding)
    tx.pgconn.send_query(tx._get_tx_start_command() + b";" + bound)
    results = yield from generators.execute(tx.pgconn)
    for result in results:
        if result.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
            raise psycopg.errors.error_from_result(result, encoding=tx.info.encoding)
    return Answer(results[-1].command_tuples or 0)


def _adapt(cursor: Any) -> None:
    """Register `Packed` with this cursor only, and not with the caller's connection.

    It is not done at once because the insert of a single task has no arrays.
    """
    cursor.adapters.register_dumper(Packed, _PackedDumper)


def _dialect(tx: Any) -> Dialect:
    return COCKROACH if tx.pgconn.parameter_status(b"crdb_version") else NATIVE


def _answering(tx: Any) -> Any:
    """Return a context, at whose end the statements inside have their answers."""
    return tx.pipeline() if tx.pgconn.pipeline_status else _AT_ONCE


def _autocommits(tx: Any) -> bool:
    return bool(tx.autocommit) and tx.info.transaction_status == TransactionStatus.IDLE


def connection(tx: psycopg.Connection[Any]) -> _Connection:
    """Return the adapter of a `psycopg.Connection`."""
    if tx.autocommit:
        with _answering(tx):
            pass  # After this it is known whether a transaction block is open.
    return _Connection(tx)


async def async_connection(tx: psycopg.AsyncConnection[Any]) -> _AsyncConnection:
    """Return the adapter of a `psycopg.AsyncConnection`."""
    if tx.autocommit:
        async with _answering(tx):
            pass
    return _AsyncConnection(tx)
