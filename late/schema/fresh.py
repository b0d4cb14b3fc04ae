"""Create the whole schema at once from `tables.py`, for tests and in-memory databases.

The result is the same as that of `late migrate` on an empty database, but Alembic is not loaded. A
test compares the two.
"""

from __future__ import annotations

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    PrimaryKeyConstraint,
    String,
    Table,
    insert,
    literal_column,
    text,
)

from late.model.task import DEFAULT_GROUP
from late.schema.tables import NOW_US, SHARDS_DEFAULT, all_tables
from late.schema.version import OLDEST_KEY, OLDEST_SCHEMA, SCHEMA_VERSION

RANDOM = {
    "postgresql": "gen_random_uuid()::text",
    "cockroachdb": "gen_random_uuid()::text",
    "sqlite": "lower(hex(randomblob(16)))",
}
"""SQL that makes a new name of a deployment, by dialect."""

KEY = {
    "postgresql": "replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', '')",
    "cockroachdb": "replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', '')",
    "sqlite": "lower(hex(randomblob(32)))",
}
"""SQL that makes a new key of 32 bytes, by dialect."""

FIRST_PARTITIONS = """
do $$ declare low bigint; high bigint; units bigint; begin
  low := pg_current_xact_id()::text::bigint;
  insert into late_meta (key, value) values ('xid_sample',
    low || ',' || (extract(epoch from clock_timestamp()) * 1000000)::bigint);
  foreach units in array array[1, 1, 1, 16, 256] loop
    high := low + units * 8192;
    execute 'create table late_task_' || low || '_' || high || ' partition of late_task for values'
      || ' from (' || quote_literal(low) || ') to (' || quote_literal(high) || ')';
    low := high;
  end loop;
end $$
"""
"""The first ranges of the log on PostgreSQL, as `store/postgres/partitions.py` lays them out. Rows
leave by TRUNCATE from the first task on, which may come before the first maintenance."""


def create(connection: Connection) -> None:
    """Create every table, the first partitions and the first rows, in the caller's transaction.

    Raises:
        sqlalchemy.exc.DBAPIError: the tables exist already, or the database refuses.
    """
    dialect = connection.dialect.name
    tables = all_tables(dialect)
    revision = Table(
        "late_revision",
        tables,
        Column("version_num", String(32), nullable=False),
        PrimaryKeyConstraint("version_num", name="late_revision_pkc"),
    )
    tables.create_all(connection, checkfirst=False)
    if dialect == "postgresql":
        connection.execute(text("create table late_task_default partition of late_task default"))
        connection.exec_driver_sql(FIRST_PARTITIONS)
    connection.execute(insert(revision).values(version_num=SCHEMA_VERSION))
    connection.execute(
        insert(tables.tables["late_lane"]).values(
            name="default", first_shard=0, shards=SHARDS_DEFAULT
        )
    )
    connection.execute(
        insert(tables.tables["late_group"]).values(
            name=DEFAULT_GROUP, created_at_us=literal_column(NOW_US[dialect])
        )
    )
    meta = tables.tables["late_meta"]
    connection.execute(insert(meta).values(key="schema_version", value=SCHEMA_VERSION))
    connection.execute(insert(meta).values(key=OLDEST_KEY, value=OLDEST_SCHEMA))
    connection.execute(insert(meta).values(key="deployment", value=literal_column(RANDOM[dialect])))
    key: ColumnElement[str] = literal_column(KEY[dialect])
    connection.execute(
        insert(tables.tables["late_secret"]).values(name="1", peer_key=key, form_key=key)
    )
