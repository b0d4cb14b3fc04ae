"""late_enqueue says which transactions had committed when it inserted a task with an ordering key.

Phase: pre. Immutable: a change of the schema is a new revision.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        functions = Path(__file__).parents[1] / "0007_functions.sql"
        op.execute(sa.text(functions.read_text().replace(":", r"\:")))
    op.execute("update late_meta set value = '0007' where key = 'schema_version'")


def downgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        functions = Path(__file__).parents[1] / "0007_functions_down.sql"
        op.execute(sa.text(functions.read_text().replace(":", r"\:")))
    op.execute("update late_meta set value = '0006' where key = 'schema_version'")
