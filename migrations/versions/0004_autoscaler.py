"""The autoscaler: who controls, and what was decided.

Phase: pre. Immutable: a change of the schema is a new revision.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    op.create_table(
        "late_controller",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("owner", sa.Text),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("expires_at_us", sa.BigInteger, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("up_us", sa.BigInteger),
        sa.Column("down_us", sa.BigInteger),
        sa.Column("looked_at_us", sa.BigInteger, nullable=False),
        sa.Column("last", sa.Text),
    )
    op.create_table(
        "late_decision",
        sa.Column("controller", sa.Text, primary_key=True),
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("at_us", sa.BigInteger, nullable=False),
        sa.Column("rule", sa.Text, nullable=False),
        sa.Column("from_size", sa.BigInteger, nullable=False),
        sa.Column("to_size", sa.BigInteger, nullable=False),
        sa.Column("wanted", sa.BigInteger, nullable=False),
        sa.Column("inputs", sa.Text, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("result", sa.Text, nullable=False),
    )
    op.execute("update late_meta set value = '0004' where key = 'schema_version'")
