"""Live knobs and their audit, consumer groups that can be paused and reset, effects, results,
histories and tokens.

Phase: pre. Immutable: a change of the schema is a new revision.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    op.add_column("late_group", sa.Column("queues", sa.Text))
    op.add_column(
        "late_group",
        sa.Column("paused", sa.SmallInteger, nullable=False, server_default=sa.text("0")),
    )
    op.add_column("late_group", sa.Column("from_us", sa.BigInteger))
    op.add_column("late_group", sa.Column("replay_us", sa.BigInteger))
    op.add_column("late_unique", sa.Column("expires_at_us", sa.BigInteger))
    op.add_column("late_worker", sa.Column("endpoint", sa.Text))
    _knobs()
    _per_task()
    for name in ("timer", "dead"):
        columns = ["consumer_group", "shard_id", "task_id"]
        op.create_index(f"late_{name}_task", f"late_{name}", columns)
    op.create_table(
        "late_audit",
        sa.Column("audit_id", sa.Text, primary_key=True),
        sa.Column("at_us", sa.BigInteger, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("before", sa.Text),
        sa.Column("after", sa.Text),
    )
    op.create_table(
        "late_token",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("scopes", sa.Text, nullable=False),
        sa.Column("queues", sa.Text, nullable=False),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
        sa.Column("expires_at_us", sa.BigInteger),
        sa.Column("revoked_at_us", sa.BigInteger),
    )
    if op.get_context().dialect.name == "postgresql":
        functions = Path(__file__).parents[1] / "0003_functions.sql"
        # Its text holds no percent sign, which a printed script would show twice.
        op.execute(sa.text(functions.read_text().replace(":", r"\:")))
    op.execute("update late_meta set value = '0003' where key = 'schema_version'")


def _knobs() -> None:
    for name in ("late_queue", "late_target"):
        op.create_table(
            name,
            sa.Column("name", sa.Text, primary_key=True),
            sa.Column("knobs", sa.Text, nullable=False),
            sa.Column("version", sa.BigInteger, nullable=False),
            sa.Column("updated_at_us", sa.BigInteger, nullable=False),
        )


def _key() -> list[Any]:
    is_sqlite = op.get_context().dialect.name == "sqlite"
    task_id: Any = sa.Text() if is_sqlite else postgresql.UUID(as_uuid=False)
    return [
        sa.Column("consumer_group", sa.Text, primary_key=True),
        sa.Column("task_id", task_id, primary_key=True),
    ]


def _per_task() -> None:
    op.create_table("late_inbox", *_key(), sa.Column("done_at_us", sa.BigInteger, nullable=False))
    op.create_table(
        "late_result",
        *_key(),
        sa.Column("value", sa.LargeBinary, nullable=False),
        sa.Column("expires_at_us", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "late_history",
        *_key(),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at_us", sa.BigInteger, nullable=False),
        sa.Column("event", sa.Text, nullable=False),
        sa.Column("worker", sa.Text, nullable=False),
        sa.Column("detail", sa.Text),
    )
