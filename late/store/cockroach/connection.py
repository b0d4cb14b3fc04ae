"""Connections of the CockroachDB store: those of PostgreSQL's, with its own guard and its retries.

SERIALIZABLE is CockroachDB's word for "correct", and it has a price that the client must pay: a
transaction may be told to start again (40001), whatever it did. And a commit may be told that
nobody knows whether it happened (40003, "result is ambiguous"). Every transaction of this store
is a function that can be run again from its beginning, finds what it did before, and is.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

import psycopg
from psycopg import IsolationLevel, crdb

from late.errors import ConfigError
from late.store.postgres import connection as postgres_link
from late.store.postgres.connection import Connection, ConnectionPool

T = TypeVar("T")

NAME = "CockroachDB"
SCHEMES = ("cockroachdb", "cockroachdb+psycopg")
REPEATED = frozenset({"40001", "40003"})
"""Start again; and: look what became of it, which is how every transaction here begins."""
TRIES = 6
PAUSE_S = 0.010
"""The longest pause before the second try; it doubles with each."""


def is_repeated(error: BaseException) -> bool:
    """Whether the transaction that failed with it is to be run again from its beginning."""
    return isinstance(error, psycopg.Error) and error.sqlstate in REPEATED


async def repeated(
    work: Callable[[], Awaitable[T]],
    *,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> T:
    """Run a transaction until it is told neither 40001 nor 40003, at most `TRIES` times.

    Pauses have full jitter: two transactions that met once must not meet again in step.

    Raises:
        psycopg.Error: another one, or the last of these: `translate` makes a transient
            `TransactionAborted` of it, and the caller above the seam goes on from there.
    """
    for number in range(1, TRIES):
        try:
            return await work()
        except psycopg.Error as error:
            if not is_repeated(error):
                raise
        await pause(random.uniform(0.0, PAUSE_S * 2.0**number))
    return await work()


def conninfo_of(url: str) -> dict[str, object]:
    """Connection parameters from a URL.

    Raises:
        ConfigError: not such a URL. The message does not repeat it, it may hold a password.
    """
    scheme, mark, rest = url.partition("://")
    if not mark or scheme not in SCHEMES:
        raise ConfigError("a CockroachDB URL is needed: cockroachdb://user@host:26257/database")
    try:
        return postgres_link.conninfo_of(f"postgresql://{rest}")
    except ConfigError:
        raise ConfigError(
            "not a valid CockroachDB URL (is every special character of the password %-encoded?)"
        ) from None


class CockroachPool(ConnectionPool):
    """See `ConnectionPool`: here every connection is SERIALIZABLE."""

    name = NAME

    async def _connected(self) -> Connection:
        return await connect(self._conninfo)


async def connect(conninfo: dict[str, object]) -> Connection:
    """One new connection, not guarded.

    Raises:
        psycopg.Error: it could not be made.
    """
    connection = await crdb.AsyncCrdbConnection.connect(
        autocommit=True,
        prepare_threshold=None,
        **conninfo,  # type: ignore[arg-type]
    )
    try:
        # Whatever the cluster's default is: the fence and the takeover are argued for SERIALIZABLE.
        await connection.set_isolation_level(IsolationLevel.SERIALIZABLE)
    except BaseException:  # whoever connects may be cancelled here, and nobody else knows of it
        await connection.close()
        raise
    return cast(Connection, connection)


async def rows_of(connection: Connection, statement: str, values: Any = None) -> list[Any]:
    """All rows of one statement."""
    cursor = await connection.execute(statement, values)
    return await cursor.fetchall()
