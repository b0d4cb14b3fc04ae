"""Transactions of shadows: like those of `connections.py`, and rolled back at the end, always.

The handler gets a connection whose `commit()` does nothing. A statement that would end the
transaction is refused, or never comes to the server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from typing import Any

from late.outbox import connections
from late.outbox.adapters.sqlite import AsyncSqlite
from late.outbox.adapters.sqlite_held import HeldSqlite
from late.outbox.idle_connections import IdleConnections


class _RolledBack(Exception):
    """Ends a block that would commit otherwise."""


def is_held(tx: object) -> bool:
    """Return whether `tx` is a transaction that this module has opened."""
    return bool(getattr(tx, "late_held", False))


@contextmanager
def begin(
    url: str,
    idle: IdleConnections | None = None,
    first: Callable[[Any], object] | None = None,
    tag: str = "",
) -> Iterator[Any]:
    """Open a transaction as `connections.begin` does, and roll it back."""
    first = first or _nothing
    if url.startswith("sqlite"):
        with closing(connections.open_sqlite(url, HeldSqlite, cached_statements=0)) as connection:
            connection.hold()
            first(connection)
            yield connection
    elif url.startswith("spanner"):
        with suppress(_RolledBack), connections.spanner().connect(url, tag) as tx:
            _hold_spanner(tx)
            first(tx)
            yield tx
            raise _RolledBack
    else:
        connections.psycopg()
        from late.outbox.adapters import psycopg_held

        with psycopg_held.begin(connections.conninfo(url), idle, first, tag) as tx:
            yield tx


@asynccontextmanager
async def begin_async(
    url: str,
    idle: IdleConnections | None = None,
    first: Callable[[Any], Awaitable[object]] | None = None,
    tag: str = "",
) -> AsyncIterator[Any]:
    """Open an async transaction as `connections.begin_async` does, and roll it back."""
    first = first or _nothing_async
    if url.startswith("sqlite"):
        connection = AsyncSqlite(
            lambda: connections.open_sqlite(url, HeldSqlite, cached_statements=0)
        )
        try:
            await connection.run(lambda: connection.raw.hold())  # type: ignore[attr-defined]
            connection.late_held = True  # type: ignore[attr-defined]
            await first(connection)
            yield connection
        finally:
            await connection.close()
    elif url.startswith("spanner"):
        with suppress(_RolledBack):
            async with connections.spanner().connect_async(url, tag) as tx:
                _hold_spanner(tx.raw)
                tx.late_held = True
                await first(tx)
                yield tx
                raise _RolledBack
    else:
        connections.psycopg()
        from late.outbox.adapters import psycopg_held

        async with psycopg_held.begin_async(connections.conninfo(url), idle, first, tag) as tx:
            yield tx


def _hold_spanner(tx: Any) -> None:
    """Let `commit` do nothing. Nothing but a call of the client ends a transaction of Spanner."""
    tx.commit = lambda *_, **__: None
    tx.late_held = True


def _nothing(_: object) -> None:
    """Do nothing first."""


async def _nothing_async(_: object) -> None:
    """Do nothing first."""
