"""Attempts that the owner of their shard cannot run, offered to other workers.

Phase: pre. Immutable: a change of the schema is a new revision.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    is_sqlite = op.get_context().dialect.name == "sqlite"
    task_id: Any = sa.Text() if is_sqlite else postgresql.UUID(as_uuid=False)
    op.create_table(
        "late_offer",
        sa.Column("consumer_group", sa.Text, primary_key=True),
        sa.Column("shard_id", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("task_id", task_id, primary_key=True),
        sa.Column("epoch", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("attempt", sa.Text, nullable=False),
        sa.Column("offered_at_us", sa.BigInteger, nullable=False),
        sa.Column("refused_by", sa.Text, nullable=False),
        sa.Column("runner", sa.Text),
        sa.Column("answer", sa.Text),
    )
    op.execute("update late_meta set value = '0008' where key = 'schema_version'")


def downgrade() -> None:
    # An offer is an attempt that its owner makes anew: the task is in the log.
    op.drop_table("late_offer")
    op.execute("update late_meta set value = '0007' where key = 'schema_version'")
