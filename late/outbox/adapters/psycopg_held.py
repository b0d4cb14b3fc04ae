"""Transactions of PostgreSQL that are rolled back at the end, for shadows.

The transaction has begun before the handler sees it: `with tx.transaction()` makes a savepoint then
and commits nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from late.outbox.adapters.psycopg_session import check, kept, kept_async, new, new_async, put
from late.outbox.adapters.psycopg_statements import RefusingAsyncCursor, RefusingCursor
from late.outbox.idle_connections import IdleConnections

REFUSED = "this is a shadow: its transaction is rolled back, and no statement may end it"
_BEGIN = "select 1"
_CONSTRAINTS = "set constraints all immediate"
"""It checks what a commit would check."""


class HeldCursor(RefusingCursor):
    """A cursor that refuses the end of the transaction."""

    refusals = (REFUSED, REFUSED)


class HeldAsyncCursor(RefusingAsyncCursor):
    """The same for a connection that is awaited."""

    refusals = (REFUSED, REFUSED)


class HeldConnection(psycopg.Connection[Any]):
    """The connection that `def` handlers of a shadow get."""

    late_held = True

    def hold(self, tag: str) -> None:
        """Begin the transaction, and refuse its end from here on."""
        self.late_tag = tag
        self.cursor_factory = HeldCursor
        self.execute(_BEGIN)

    def commit(self) -> None:
        """Do nothing."""

    def rollback(self) -> None:
        """Take back what was done so far. What comes is held as well."""
        super().rollback()
        self.execute(_BEGIN)

    def end(self) -> None:
        """Roll back, for good."""
        super().rollback()

    def __exit__(self, *_: object) -> None:
        """Leave the transaction as it is."""


class HeldAsyncConnection(psycopg.AsyncConnection[Any]):
    """The same for `async def` handlers."""

    late_held = True

    async def hold(self, tag: str) -> None:
        """Begin the transaction, and refuse its end from here on."""
        self.late_tag = tag
        self.cursor_factory = HeldAsyncCursor
        await self.execute(_BEGIN)

    async def commit(self) -> None:
        """Do nothing."""

    async def rollback(self) -> None:
        """Take back what was done so far. What comes is held as well."""
        await super().rollback()
        await self.execute(_BEGIN)

    async def end(self) -> None:
        """Roll back, for good."""
        await super().rollback()

    async def __aexit__(self, *_: object) -> None:
        """Leave the transaction as it is."""


@contextmanager
def begin(
    conninfo: str,
    idle: IdleConnections | None,
    first: Callable[[Any], object],
    tag: str,
) -> Iterator[HeldConnection]:
    """Open a transaction; see `psycopg_session.connect`. It is rolled back at the end."""
    tx = kept(idle, HeldConnection) or new(conninfo, HeldConnection)
    try:
        try:
            tx.hold(tag)
        except psycopg.OperationalError:  # A kept connection may have ended meanwhile.
            put(tx, None)
            tx = new(conninfo, HeldConnection)
            tx.hold(tag)
        first(tx)
        yield tx
        _check(tx)
        if not tx.closed:
            tx.execute(_CONSTRAINTS)
    finally:
        if not tx.closed:
            with suppress(psycopg.Error):
                tx.end()
        put(tx, idle)


@asynccontextmanager
async def begin_async(
    conninfo: str,
    idle: IdleConnections | None,
    first: Callable[[Any], Awaitable[object]],
    tag: str,
) -> AsyncIterator[HeldAsyncConnection]:
    """Open an async transaction; see `begin`."""
    tx = await kept_async(idle, HeldAsyncConnection) or await new_async(
        conninfo, HeldAsyncConnection
    )
    try:
        try:
            await tx.hold(tag)
        except psycopg.OperationalError:
            put(tx, None)
            tx = await new_async(conninfo, HeldAsyncConnection)
            await tx.hold(tag)
        await first(tx)
        yield tx
        _check(tx)
        if not tx.closed:
            await tx.execute(_CONSTRAINTS)
    finally:
        if not tx.closed:
            with suppress(psycopg.Error):
                await tx.end()
        put(tx, idle)


def _check(tx: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Refuse a block whose transaction has failed, or has ended although nothing may end it."""
    check(tx)
    if not tx.closed and tx.pgconn.transaction_status == TransactionStatus.IDLE:
        raise psycopg.ProgrammingError(REFUSED)
