"""Lanes that can be resized: versions, and those that are closed and not drained.

Phase: pre. Immutable: a change of the schema is a new revision.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    op.add_column(
        "late_lane",
        sa.Column("version", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    )
    op.create_table(
        "late_extent",
        sa.Column("lane", sa.Text, primary_key=True),
        sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("shards", sa.SmallInteger, nullable=False),
        sa.Column("closed_at_us", sa.BigInteger, nullable=False),
        sa.Column("waits_for", sa.Text),
        sa.Column("closings", sa.Text),
    )
    if op.get_context().dialect.name == "postgresql":
        functions = Path(__file__).parents[1] / "0006_functions.sql"
        op.execute(sa.text(functions.read_text().replace(":", r"\:")))
    op.execute("update late_meta set value = '0006' where key = 'schema_version'")
