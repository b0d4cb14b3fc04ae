"""The first schema: the task log, the settlement journal, and the small tables around them.

Phase: pre. Immutable: a change of the schema is a new revision.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql
from sqlalchemy.types import UserDefinedType

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None
phase = "pre"

SHARD_CHECK = "shard_id between 0 and 4095"
NOW_POSTGRESQL = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"
NOW_SQLITE = "(cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000)"


class Xid8(UserDefinedType[int]):
    """PostgreSQL's 64-bit transaction id."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "xid8"


def upgrade() -> None:
    dialect = op.get_context().dialect.name
    is_postgresql = dialect in ("postgresql", "cockroachdb")
    task_id: Any = postgresql.UUID(as_uuid=False) if is_postgresql else sa.Text()
    if dialect == "cockroachdb":
        _task_log_cockroach(task_id)
    elif is_postgresql:
        _task_log_postgresql(task_id)
    else:
        _task_log_sqlite(task_id)
    _ownership()
    _parked_and_dead(task_id)
    _schedules(task_id)
    _small_tables(task_id)
    _seeds(is_postgresql)


def _task_log_postgresql(task_id: Any) -> None:
    op.create_table(
        "late_task",
        sa.Column("shard_id", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("xid", Xid8, primary_key=True, server_default=sa.text("pg_current_xact_id()")),
        sa.Column("task_id", task_id, primary_key=True),
        *_task_body(NOW_POSTGRESQL),
        sa.CheckConstraint(SHARD_CHECK, name="late_task_shard"),
        postgresql_partition_by="RANGE (xid)",
    )
    op.execute("CREATE TABLE late_task_default PARTITION OF late_task DEFAULT")


def _task_log_cockroach(task_id: Any) -> None:
    # No position: every version of a row has the timestamp of its commit beside its columns.
    op.create_table(
        "late_task",
        sa.Column("shard_id", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("task_id", task_id, primary_key=True),
        *_task_body(NOW_POSTGRESQL),
        sa.CheckConstraint(SHARD_CHECK, name="late_task_shard"),
    )


def _task_log_sqlite(task_id: Any) -> None:
    op.create_table(
        "late_task",
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("shard_id", sa.Integer, nullable=False),
        sa.Column("task_id", task_id, nullable=False),
        *_task_body(NOW_SQLITE),
        sa.CheckConstraint("seq between 1 and 4611686018427387904", name="late_task_seq"),
        sa.CheckConstraint(SHARD_CHECK, name="late_task_shard"),
        sqlite_autoincrement=True,
    )
    op.create_index("late_task_shard_seq", "late_task", ["shard_id", "seq"])


def _task_body(now: str) -> list[sa.Column[Any]]:
    return [
        sa.Column("queue", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("payload", sa.LargeBinary, nullable=False),
        sa.Column("headers", sa.Text),
        sa.Column("options", sa.Text),
        sa.Column("created_at_us", sa.BigInteger, nullable=False, server_default=sa.text(now)),
    ]


def _ownership() -> None:
    op.create_table(
        "late_settlement",
        sa.Column("consumer_group", sa.Text, primary_key=True),
        sa.Column("shard_id", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("settlement_id", sa.Text, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("cursor", sa.Text, nullable=False),
        sa.Column("open", sa.Text, nullable=False),
        sa.Column("usage", sa.Text),
        sa.Column("settled_at_us", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "late_lease",
        sa.Column("consumer_group", sa.Text, primary_key=True),
        sa.Column("shard_id", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("owner", sa.Text),
        sa.Column("epoch", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "late_worker",
        sa.Column("worker_id", sa.Text, primary_key=True),
        sa.Column("expires_at_us", sa.BigInteger, nullable=False),
        sa.Column("started_at_us", sa.BigInteger, nullable=False),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("consumer_groups", sa.Text, nullable=False),
        sa.Column("capacity", sa.Float, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
    )


def _record_columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("queue", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("payload", sa.LargeBinary, nullable=False),
        sa.Column("headers", sa.Text),
        sa.Column("options", sa.Text),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("deaths", sa.Integer, nullable=False),
        sa.Column("errors", sa.Text),
    ]


def _parked_and_dead(task_id: Any) -> None:
    op.create_table(
        "late_timer",
        sa.Column("consumer_group", sa.Text, primary_key=True),
        sa.Column("shard_id", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("due_at_us", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("task_id", task_id, primary_key=True),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("held_key", sa.Text),
        *_record_columns(),
    )
    op.create_index(
        "late_timer_held",
        "late_timer",
        ["consumer_group", "shard_id", "held_key", "sequence"],
        postgresql_where=sa.text("held_key IS NOT NULL"),
        sqlite_where=sa.text("held_key IS NOT NULL"),
    )
    op.create_table(
        "late_dead",
        sa.Column("consumer_group", sa.Text, primary_key=True),
        sa.Column("shard_id", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("dead_at_us", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("task_id", task_id, primary_key=True),
        sa.Column("reason", sa.Text, nullable=False),
        *_record_columns(),
    )


def _schedules(task_id: Any) -> None:
    op.create_table(
        "late_schedule",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("shard_id", sa.SmallInteger, nullable=False),
        sa.Column("rule", sa.Text, nullable=False),
        sa.Column("zone", sa.Text, nullable=False),
        sa.Column("catch_up", sa.Text, nullable=False),
        sa.Column("catch_up_max", sa.Integer, nullable=False),
        sa.Column("overlap", sa.Text, nullable=False),
        sa.Column("queue", sa.Text, nullable=False),
        sa.Column("task_name", sa.Text, nullable=False),
        sa.Column("payload", sa.LargeBinary, nullable=False),
        sa.Column("options", sa.Text),
        sa.Column("anchor_us", sa.BigInteger, nullable=False),
        sa.Column("next_due_at_us", sa.BigInteger),
        sa.Column("paused", sa.SmallInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("open_task_id", task_id),
        sa.Column("updated_at_us", sa.BigInteger, nullable=False),
    )


def _small_tables(task_id: Any) -> None:
    op.create_table(
        "late_unique",
        sa.Column("unique_key", sa.Text, primary_key=True),
        sa.Column("task_id", task_id, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "late_lane",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("first_shard", sa.SmallInteger, nullable=False),
        sa.Column("shards", sa.SmallInteger, nullable=False),
    )
    op.create_table(
        "late_group",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "late_meta",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )


def _seeds(is_postgresql: bool) -> None:
    # The deployment's name is drawn by the database, so that a printed script makes a new one
    # wherever it is run.
    now = NOW_POSTGRESQL if is_postgresql else NOW_SQLITE
    name = "gen_random_uuid()::text" if is_postgresql else "lower(hex(randomblob(16)))"
    op.execute("INSERT INTO late_lane (name, first_shard, shards) VALUES ('default', 0, 8)")
    op.execute(f"INSERT INTO late_group (name, created_at_us) VALUES ('default', {now})")
    op.execute(f"INSERT INTO late_meta (key, value) VALUES ('deployment', {name})")
    op.execute("INSERT INTO late_meta (key, value) VALUES ('schema_version', '0001')")
