"""The age of each key of `late_secret`, so that a new one can be used while the old one is valid.

Phase: pre. Immutable: a change of the schema is a new revision.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    op.add_column("late_secret", sa.Column("created_at_us", sa.BigInteger))
    op.execute("update late_meta set value = '0014' where key = 'schema_version'")


def downgrade() -> None:
    # The version before reads one row. A newer key may replace one that somebody has.
    newest = "select name from late_secret order by length(name) desc, name desc limit 1"
    op.execute(f"delete from late_secret where name not in ({newest})")
    op.drop_column("late_secret", "created_at_us")
    op.execute("update late_meta set value = '0013' where key = 'schema_version'")
