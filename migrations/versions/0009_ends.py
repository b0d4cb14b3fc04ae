"""How the last tasks of a failing name ended in each worker, told with its heartbeat.

Phase: pre. Immutable: a change of the schema is a new revision.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    op.add_column("late_worker", sa.Column("ends", sa.Text))
    op.execute("update late_meta set value = '0009' where key = 'schema_version'")


def downgrade() -> None:
    op.drop_column("late_worker", "ends")
    op.execute("update late_meta set value = '0008' where key = 'schema_version'")
