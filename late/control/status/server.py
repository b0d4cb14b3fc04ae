"""Figures that the database server gives of itself: the other half of what the work costs.

PostgreSQL's statistics are its own counters since they were last reset, of this database only; they
are some hundred milliseconds behind. SQLite has a size. Spanner tells Cloud Monitoring and not SQL
(`late.autoscaler.metrics.google_metrics`), CockroachDB whoever asks its nodes (`cockroach_nodes`).
"""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection, Engine, text

from late.control.sql.rows import now_us
from late.schema.engine import reading
from late.schema.notices import LOG_SCHEMA

# Replicas and sessions of others show their times to members of pg_monitor only: what is hidden is
# null, and so it is not known here either.
_POSTGRES = text(f"""
select current_database() as name, pg_database_size(current_database()) as size_bytes,
       d.numbackends as connections, current_setting('max_connections')::int as connections_max,
       d.xact_commit as commits, d.xact_rollback as rollbacks, d.tup_fetched as rows_read,
       d.tup_inserted as rows_inserted, d.tup_updated as rows_updated,
       d.tup_deleted as rows_deleted, d.blks_hit as blocks_cached, d.blks_read as blocks_read,
       d.temp_bytes, d.deadlocks,
       case when pg_is_in_recovery() then null
            else pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint end as wal_bytes,
       (select extract(epoch from max(clock_timestamp() - xact_start))::float8
          from pg_stat_activity where datname = current_database()
           and pid <> pg_backend_pid()) as oldest_transaction_s,
       (select extract(epoch from max(replay_lag))::float8
          from pg_stat_replication) as replica_lag_s,
       (select sum(n_dead_tup)::bigint from pg_stat_user_tables
         where relname like 'late\\_%' and schemaname = {LOG_SCHEMA}) as dead_rows
  from pg_stat_database d where d.datname = current_database()
""")


class Server(msgspec.Struct, frozen=True):
    """One look. None: this database does not say."""

    at_us: int
    name: str = ""
    """The name of the database."""
    size_bytes: int | None = None
    connections: int | None = None
    connections_max: int | None = None
    """The limit of the whole server."""
    commits: int | None = None
    """Like everything in the plural from here on: since the statistics were reset."""
    rollbacks: int | None = None
    rows_read: int | None = None
    rows_inserted: int | None = None
    rows_updated: int | None = None
    rows_deleted: int | None = None
    blocks_cached: int | None = None
    blocks_read: int | None = None
    temp_bytes: int | None = None
    deadlocks: int | None = None
    wal_bytes: int | None = None
    """Bytes of the whole server, since it was made."""
    oldest_transaction_s: float | None = None
    """The transaction that has been open for longest."""
    replica_lag_s: float | None = None
    """The lag of the slowest replica."""
    dead_rows: int | None = None
    """Waiting for vacuum in the tables of `late`, as the server estimates."""
    disk_free_bytes: int | None = None
    disk_bytes: int | None = None
    """The disk of a database in a file; a server does not say."""


def look(engine: Engine) -> Server:
    """Read what the server says now."""
    with reading(engine) as connection:
        return _look(connection)


def _look(connection: Connection) -> Server:
    at_us = now_us(connection)
    match connection.dialect.name:
        case "postgresql":
            row = connection.execute(_POSTGRES).one()
            return Server(at_us, **row._mapping)
        case "sqlite":
            pages, size = (
                connection.execute(text(f"pragma {name}")).scalar_one()
                for name in ("page_count", "page_size")
            )
            return Server(at_us, size_bytes=pages * size)
        case _:
            return Server(at_us)
