"""Marks that tell which task may have killed its worker, and when a shard was last taken over.

Phase: pre. Immutable: a change of the schema is a new revision.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    # Nullable and without a default: no row is rewritten, on any database.
    op.add_column("late_settlement", sa.Column("suspects", sa.Text))
    op.add_column("late_lease", sa.Column("taken_at_us", sa.BigInteger))
    op.execute("update late_meta set value = '0002' where key = 'schema_version'")
