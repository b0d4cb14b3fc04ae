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

from late.errors import ConfigError, SchemaMismatch, StoreRefused
from late.schema import version
from late.store.cockroach import statements as sql
from late.store.postgres import connection as postgres_link
from late.store.postgres.connection import Connection, Links

T = TypeVar("T")

NAME = "CockroachDB"
SCHEMES = ("cockroachdb", "cockroachdb+psycopg")
VERSION_MIN = 23_01_00
"""The first with DELETE ... USING, as psycopg counts: v23.1.0."""
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


class CockroachLinks(Links):
    """See `Links`: here every connection is SERIALIZABLE."""

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


class Guard:
    """Checks every new connection of one store, and adopts a database that nobody ran on yet.

    Timestamps of a restored copy are above every cursor, so that nothing could be lost in it; but
    a copy must not do the original's work. So a database belongs to the cluster that it was first
    opened on, until an operator says `late rebase`.

    Args:
        deployment: see `postgres_guard.Guard`.
    """

    def __init__(self, deployment: str | None = None) -> None:
        self._deployment = deployment

    async def __call__(self, connection: Connection) -> None:
        """Raises:
        SchemaMismatch: no schema, or one of another version.
        StoreRefused: not CockroachDB, too old, or a copy.
        """
        meta = await checked(connection)
        name = f"database {connection.info.dbname!r}"
        found = meta.get("deployment")
        if self._deployment is None:
            self._deployment = found
        if self._deployment != found:
            raise StoreRefused(
                f"{name} is deployment {found!r} and not {self._deployment!r}: another database "
                "answers at this address"
            )
        cluster = await cluster_of(connection)
        if cluster is None:
            return
        identity = meta.get("identity")
        if identity is None:
            await connection.execute(sql.ADOPT, ("identity", cluster))
        elif identity != cluster:
            raise StoreRefused(
                f"{name} was adopted on cluster {identity} and is now on {cluster}: if this copy "
                "is to be worked on, run `late rebase URL`"
            )


async def checked(connection: Connection) -> dict[str, str]:
    """`late_meta`, once server and schema are what this code was written for."""
    if not crdb.AsyncCrdbConnection.is_crdb(connection.pgconn):
        raise StoreRefused("this server is not CockroachDB: use a postgresql:// URL for PostgreSQL")
    if connection.info.server_version < VERSION_MIN:
        raise StoreRefused("CockroachDB is too old: late needs v23.1 or newer")
    name = f"database {connection.info.dbname!r}"
    try:
        meta = dict(await rows_of(connection, sql.META))
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        raise SchemaMismatch(f"{name} has no schema of late: run `late migrate URL`") from None
    version.check(meta.get("schema_version"), where=name)
    return meta


async def cluster_of(connection: Connection) -> str | None:
    """The cluster's id; None where the role may not ask for it: then there is no guard on copies
    but the name of the deployment."""
    try:
        ((cluster,),) = await rows_of(connection, sql.CLUSTER)
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedFunction):
        return None
    return str(cluster)
