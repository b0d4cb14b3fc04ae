"""The tasks that each worker handles, declared once when it joins.

Phase: pre. Immutable: a change of the schema is a new revision.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    op.add_column("late_worker", sa.Column("handlers", sa.Text))
    op.execute("update late_meta set value = '0010' where key = 'schema_version'")


def downgrade() -> None:
    op.drop_column("late_worker", "handlers")
    op.execute("update late_meta set value = '0009' where key = 'schema_version'")
