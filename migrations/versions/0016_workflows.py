"""Workflows: tasks that wait for the ends of others.

Phase: pre. Immutable: a change of the schema is a new revision.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import context, op
from sqlalchemy.dialects import postgresql

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    is_sqlite = op.get_context().dialect.name == "sqlite"
    task_id: Any = sa.Text() if is_sqlite else postgresql.UUID(as_uuid=False)
    op.create_table(
        "late_stage",
        sa.Column("workflow_id", task_id, primary_key=True),
        sa.Column("stage", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("task_id", task_id, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("missing", sa.Integer, nullable=False),
        sa.Column("after", sa.Text, nullable=False),
        sa.Column("next", sa.Text, nullable=False),
        sa.Column("collects", sa.SmallInteger, nullable=False),
        sa.Column("on_failure", sa.Integer),
        sa.Column("mark", sa.Text),
        sa.Column("shard_id", sa.SmallInteger, nullable=False),
        sa.Column("queue", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("payload", sa.LargeBinary, nullable=False),
        sa.Column("headers", sa.Text),
        sa.Column("options", sa.Text),
        sa.Column("result", sa.LargeBinary),
        sa.Column("ended_at_us", sa.BigInteger),
    )
    op.create_index("late_stage_task", "late_stage", ["task_id"], unique=True)
    op.execute("update late_meta set value = '0016' where key = 'schema_version'")


def downgrade() -> None:
    # The table is the only copy of the tasks that wait in it.
    kept = "select count(*) from late_stage where state in ('waiting', 'started', 'stopping')"
    if not context.is_offline_mode() and op.get_bind().execute(sa.text(kept)).scalar():
        raise RuntimeError("late_stage has workflows that have not ended: wait, or cancel them")
    op.drop_table("late_stage")
    op.execute("update late_meta set value = '0015' where key = 'schema_version'")
