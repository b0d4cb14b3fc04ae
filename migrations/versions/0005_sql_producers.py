"""Producers in SQL are refused what all others are, and see how much a bounded queue holds.

Phase: pre. Immutable: a change of the schema is a new revision.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    op.add_column("late_queue", sa.Column("held", sa.BigInteger))
    op.add_column("late_queue", sa.Column("held_at_us", sa.BigInteger))
    if op.get_context().dialect.name == "postgresql":
        functions = Path(__file__).parents[1] / "0005_functions.sql"
        # Its text holds no percent sign, which a printed script would show twice.
        op.execute(sa.text(functions.read_text().replace(":", r"\:")))
    op.execute("update late_meta set value = '0005' where key = 'schema_version'")
