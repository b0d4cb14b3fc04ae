"""Guards of the CockroachDB store: they refuse unsafe databases, on every new connection."""

from __future__ import annotations

import psycopg
from psycopg import crdb

from late.errors import SchemaMismatch, StoreRefused
from late.schema import version
from late.store.cockroach import statements as sql
from late.store.postgres.connection import Connection, rows_of

VERSION_MIN = 23_01_00
"""The first version with DELETE ... USING, as psycopg writes it: v23.1.0."""


class CockroachGuard:
    """Check every new connection of one store, and adopt a database that nobody ran on yet.

    The timestamps of a restored copy are above every cursor, so nothing could be lost in it; but a
    copy must not do the original's work. So a database belongs to the cluster on which it was first
    opened, until an operator runs `late rebase`.

    Args:
        deployment: as of `PostgresGuard`.
    """

    def __init__(self, deployment: str | None = None) -> None:
        self._deployment = deployment

    async def __call__(self, connection: Connection) -> None:
        """Check one connection.

        Raises:
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
    """Read `late_meta`, once server and schema are those that this code was written for."""
    if not crdb.AsyncCrdbConnection.is_crdb(connection.pgconn):
        raise StoreRefused("this server is not CockroachDB: use a postgresql:// URL for PostgreSQL")
    if connection.info.server_version < VERSION_MIN:
        raise StoreRefused("CockroachDB is too old: late needs v23.1 or newer")
    name = f"database {connection.info.dbname!r}"
    try:
        meta = dict(await rows_of(connection, sql.META))
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        raise SchemaMismatch(f"{name} has no schema of late: run `late migrate URL`") from None
    oldest = meta.get(version.OLDEST_KEY)
    version.check(meta.get("schema_version"), oldest=oldest, where=name)
    return meta


async def cluster_of(connection: Connection) -> str | None:
    """Read the cluster's id; None if the role may not ask for it: then only the name of the
    deployment tells copies apart."""
    try:
        ((cluster,),) = await rows_of(connection, sql.CLUSTER)
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedFunction):
        return None
    return str(cluster)
