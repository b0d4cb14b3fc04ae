"""The keys of subjects: without its key, no payload of a tenant or a person opens.

Phase: pre. Immutable: a change of the schema is a new revision.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    op.create_table(
        "late_subject_key",
        sa.Column("subject", sa.Text, primary_key=True),
        sa.Column("wrapped", sa.Text),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
        sa.Column("dropped_at_us", sa.BigInteger),
    )
    op.execute("update late_meta set value = '0015' where key = 'schema_version'")


def downgrade() -> None:
    # The table is the only copy of the keys.
    kept = "select count(*) from late_subject_key where wrapped is not null"
    if not context.is_offline_mode() and op.get_bind().execute(sa.text(kept)).scalar():
        raise RuntimeError(
            "late_subject_key has keys: without them no task with a subject can ever be read. "
            "End those tasks, and drop each key by `late keys drop SUBJECT`"
        )
    op.drop_table("late_subject_key")
    op.execute("update late_meta set value = '0014' where key = 'schema_version'")
