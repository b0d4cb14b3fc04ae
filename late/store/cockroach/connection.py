"""Connections of the CockroachDB store: PostgreSQL's, but SERIALIZABLE, and the retries.

SERIALIZABLE has a price that the client must pay: the server may tell a transaction to start again
(40001), whatever it did, and it may answer a commit with "result is ambiguous" (40003). Therefore
every transaction of this store is a function that can run again from its beginning and finds out
what it did before.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import psycopg
from psycopg import IsolationLevel, crdb

from late.errors import ConfigError
from late.model.backoff import Backoff
from late.store.postgres import connection as postgres
from late.store.postgres.connection import Connection, make

T = TypeVar("T")

NAME = "CockroachDB"
SCHEMES = ("cockroachdb", "cockroachdb+psycopg")
REPEATED = frozenset({"40001", "40003"})
"""The states after which a transaction is run again; it begins by looking for its own rows."""
TRIES = 6
PAUSE_S = 0.020
"""The longest pause before the second try; it doubles with each."""


def is_repeated(error: BaseException) -> bool:
    """Return True if the transaction that failed with it must run again from its beginning."""
    return isinstance(error, psycopg.Error) and error.sqlstate in REPEATED


async def repeated(
    work: Callable[[], Awaitable[T]],
    *,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> T:
    """Run a transaction until it is told neither 40001 nor 40003, at most `TRIES` times.

    Pauses have full jitter, so that two transactions that met once do not meet again.

    Raises:
        psycopg.Error: another error, or the last of these: `translate` makes a transient error of
            it, and the caller above the seam decides.
    """
    backoff = Backoff(random.Random(), base_s=PAUSE_S)
    for _ in range(1, TRIES):
        try:
            return await work()
        except psycopg.Error as error:
            if not is_repeated(error):
                raise
        await pause(backoff.next_s())
    return await work()


def conninfo_of(url: str) -> dict[str, object]:
    """Read connection parameters from a URL.

    Raises:
        ConfigError: not such a URL. The message does not repeat it, it may hold a password.
    """
    scheme, mark, rest = url.partition("://")
    if not mark or scheme not in SCHEMES:
        raise ConfigError("a CockroachDB URL is needed: cockroachdb://user@host:26257/database")
    try:
        return postgres.conninfo_of(f"postgresql://{rest}")
    except ConfigError:
        raise ConfigError(
            "not a valid CockroachDB URL (is every special character of the password %-encoded?)"
        ) from None


async def connect(conninfo: dict[str, object]) -> Connection:
    """Make one new connection, not guarded.

    Raises:
        psycopg.Error: it could not be made.
    """
    # Whatever the cluster's default is: the fence and the takeover need SERIALIZABLE.
    return await make(crdb.AsyncCrdbConnection, IsolationLevel.SERIALIZABLE, **conninfo)
