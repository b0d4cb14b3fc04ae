"""Open and end PostgreSQL transactions for handlers (`ctx.begin()`), on kept connections.

What is kept is the session with the server (psycopg's `PGconn`). Each transaction gets a new object
of psycopg around it, so row factories, adapters and similar settings of a handler end with its
block. The settings of the session itself (SET, temporary tables, advisory locks, LISTEN) end by
DISCARD ALL. It is sent when the block has ended, and its answer is read before the next block: so
it costs nobody a round trip.

Source: Npgsql resets the connections of its pool in the same way, with the next use.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar, cast

import psycopg
from psycopg import generators
from psycopg.abc import PQGen
from psycopg.pq import ConnStatus, ExecStatus, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult

from late.outbox.adapters.psycopg_tags import tagged
from late.outbox.conflict_errors import note
from late.outbox.idle_connections import IdleConnections

C = TypeVar("C", bound=psycopg.Connection[Any])
A = TypeVar("A", bound=psycopg.AsyncConnection[Any])
K = TypeVar("K", psycopg.Connection[Any], psycopg.AsyncConnection[Any])
_OPTIONS: dict[str, Any] = {"prepare_threshold": None}
"""A PgBouncer that pools transactions gives a session, with what was prepared in it, to others."""


class _Ended:
    """In place of the session in a connection whose block has ended: it may serve another one."""

    status = ConnStatus.BAD
    transaction_status = TransactionStatus.UNKNOWN
    pipeline_status = PipelineStatus.OFF

    def __getattr__(self, name: str) -> Any:
        raise psycopg.OperationalError("the connection is closed: its block has ended")


_ENDED = cast("PGconn", _Ended())


@contextmanager
def connect(
    conninfo: str,
    idle: IdleConnections | None = None,
    first: Callable[[Any], object] | None = None,
    tag: str = "",
) -> Iterator[psycopg.Connection[Any]]:
    """Open a transaction. It is committed at the end, and rolled back if the block raises.

    Args:
        idle: where the connection comes from and goes to; None for a new one that is closed.
        first: runs in the transaction before the block. If a kept connection breaks in it, it runs
            once more in a new one, because nothing has been committed.
        tag: whose transaction it is; see `late.observability.conflicts`.

    Raises:
        psycopg.errors.InFailedSqlTransaction: the block has swallowed an error of the database.
    """
    tx = kept(idle, psycopg.Connection)
    is_kept = tx is not None
    if tx is None:
        tx = new(conninfo, psycopg.Connection)
    begun = tagged(tx, tag)
    try:
        if first is not None:
            try:
                first(tx)
            except psycopg.OperationalError:
                if not is_kept or not tx.closed:
                    raise
                tx = new(conninfo, psycopg.Connection)
                tagged(tx, tag)
                first(tx)
        yield tx
        check(tx)
        if tx.broken or not tx.closed:  # Broken unseen, it must not look committed.
            tx.commit()
    except Exception as error:
        note(error, tag, begun)
        if not tx.closed:
            with suppress(psycopg.Error):  # The caller must see the first error.
                tx.rollback()
        raise
    finally:
        put(tx, idle)


@asynccontextmanager
async def connect_async(
    conninfo: str,
    idle: IdleConnections | None = None,
    first: Callable[[Any], Awaitable[object]] | None = None,
    tag: str = "",
) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Open an async transaction; see `connect`. A cancellation closes its connection."""
    tx = await kept_async(idle, psycopg.AsyncConnection)
    is_kept = tx is not None
    if tx is None:
        tx = await new_async(conninfo, psycopg.AsyncConnection)
    begun = tagged(tx, tag)
    try:
        if first is not None:
            try:
                await first(tx)
            except psycopg.OperationalError:
                if not is_kept or not tx.closed:
                    raise
                tx = await new_async(conninfo, psycopg.AsyncConnection)
                tagged(tx, tag)
                await first(tx)
        yield tx
        check(tx)
        if tx.broken or not tx.closed:
            await tx.commit()
    except Exception as error:
        note(error, tag, begun)
        if not tx.closed:
            with suppress(psycopg.Error):
                await tx.rollback()
        raise
    finally:
        put(tx, idle)


def check(tx: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Refuse to end a block whose transaction has failed: the server answers COMMIT with ROLLBACK,
    and neither it nor psycopg calls that an error."""
    if tx.pgconn.transaction_status == TransactionStatus.INERROR:
        raise psycopg.errors.InFailedSqlTransaction(
            "a statement of this transaction has failed, so nothing of it can be committed: let the"
            " error out of the block, or use a savepoint (`with tx.transaction():`)"
        )


def shared(conninfo: str, idle: IdleConnections, kind: type[C]) -> C:
    """Return a connection of `kind`, a kept one or a new one, without a transaction."""
    tx = kept(idle, kind)
    return new(conninfo, kind) if tx is None else tx


def new(conninfo: str, kind: type[C]) -> C:
    """Open a connection of `kind`."""
    return kind.connect(conninfo, **_OPTIONS)


async def new_async(conninfo: str, kind: type[A]) -> A:
    """Open an async connection of `kind`."""
    return await kind.connect(conninfo, **_OPTIONS)


def renewed(tx: Any, kind: type[K], prepare_after: int | None = None) -> K:
    """Return a new connection with the session of `tx` and its transaction; `tx` has neither then.

    What was set on the object ends with it. The session keeps its prepared statements, so the new
    object knows their names.

    Args:
        kind: of the new one, sync or async.
        prepare_after: psycopg's `prepare_threshold`.
    """
    session, prepared = tx.pgconn, tx._prepared
    tx.pgconn = _ENDED
    new = kind(session)
    new._prepared = prepared
    new.prepare_threshold = prepare_after
    return new


def lent(tx: Any, kind: type[K], prepare_after: int | None = None) -> K:
    """Return another object around the session of `tx`; `end_lent` takes it back."""
    new = kind(tx.pgconn)
    new._prepared = tx._prepared
    new.prepare_threshold = prepare_after
    return new


def end_lent(tx: Any) -> None:
    """Take the session from an object."""
    tx.pgconn = _ENDED


def error_of(
    result: PGresult, tx: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]
) -> psycopg.Error:
    """Return the error that the server has answered, or that there was no answer."""
    if tx.pgconn.status == ConnStatus.BAD:
        return psycopg.OperationalError("the connection is lost")
    return psycopg.errors.error_from_result(result, encoding=tx.info.encoding)


def kept(idle: IdleConnections | None, kind: type[C]) -> C | None:
    """Return a kept connection of `kind` that is usable; None if there is none."""
    while idle is not None and (session := idle.take()) is not None:
        tx = kind(session)
        tx.prepare_threshold = None
        usable = False
        try:
            with suppress(psycopg.OperationalError):
                usable = tx.wait(_is_usable(session))
        finally:
            if not usable:
                tx.close()
        if usable:
            return tx
    return None


async def kept_async(idle: IdleConnections | None, kind: type[A]) -> A | None:
    """Return a kept async connection of `kind` that is usable; None if there is none."""
    while idle is not None and (session := idle.take()) is not None:
        tx = kind(session)
        tx.prepare_threshold = None
        usable = False
        try:
            with suppress(psycopg.OperationalError):
                usable = await tx.wait(_is_usable(session))
        finally:
            if not usable:
                session.finish()
        if usable:
            return tx
    return None


def _is_usable(session: PGconn) -> PQGen[bool]:
    """Read the answer of the reset, which has arrived as a rule. Nothing is sent.

    Raises:
        OperationalError: the server has closed the connection.
    """
    answers = yield from generators.fetch_many(session)
    # The first call may read the server's reason, the second reads the end.
    session.consume_input()
    session.consume_input()
    return session.transaction_status == TransactionStatus.IDLE and all(
        answer.status == ExecStatus.COMMAND_OK for answer in answers
    )


def put(
    tx: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], idle: IdleConnections | None
) -> None:
    """Keep the session of `tx`, with its reset sent, or close it with the transaction.

    This never waits, so a handler that is cancelled twice leaves no transaction either.
    """
    session = tx.pgconn
    if idle is not None and session.transaction_status == TransactionStatus.IDLE:
        tx.pgconn = _ENDED
        with suppress(psycopg.OperationalError):
            session.send_query(b"DISCARD ALL")
            if session.flush() == 0:
                idle.put(session, session.finish)
                return
    session.finish()
