"""Reports of workers: the state of what they call, and what of their work stands still.

Phase: pre. Immutable: a change of the schema is a new revision.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    op.create_table(
        "late_worker_report",
        sa.Column("worker_id", sa.Text, primary_key=True),
        sa.Column("at_us", sa.BigInteger, nullable=False),
        sa.Column("report", sa.Text, nullable=False),
    )
    op.execute("update late_meta set value = '0017' where key = 'schema_version'")


def downgrade() -> None:
    # Workers write them again.
    op.drop_table("late_worker_report")
    op.execute("update late_meta set value = '0016' where key = 'schema_version'")
