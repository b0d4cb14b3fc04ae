"""Workers that sleep are told of commits, where they have announced that they sleep.

Phase: pre. Immutable: a change of the schema is a new revision.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        functions = Path(__file__).parents[1] / "0012_functions.sql"
        op.execute(sa.text(functions.read_text().replace(":", r"\:")))
    op.execute("update late_meta set value = '0012' where key = 'schema_version'")


def downgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        op.execute("drop trigger late_wake on late_task")
        op.execute("drop function late_wake()")
        op.execute("drop sequence late_waiting")
    op.execute("update late_meta set value = '0011' where key = 'schema_version'")
