"""The keys of receipts, peers and forms leave `late_meta`, which viewers read, for a table.

They are made anew. The old one, which any reader of the database may have seen, opens nothing.

Phase: post. Processes of the version before hold the old key until they end: stop them first.
Immutable: a change of the schema is a new revision.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None
phase = "post"

_RANDOM = {
    "postgresql": "replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', '')",
    "cockroachdb": "replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', '')",
    "sqlite": "lower(hex(randomblob(32)))",
}


def upgrade() -> None:
    op.create_table(
        "late_secret",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("peer_key", sa.Text, nullable=False),
        sa.Column("form_key", sa.Text, nullable=False),
    )
    made = _RANDOM[op.get_context().dialect.name]
    op.execute(f"insert into late_secret (name, peer_key, form_key) values ('1', {made}, {made})")
    op.execute("delete from late_meta where key = 'receipt_key'")
    op.execute("update late_meta set value = '0013' where key = 'schema_version'")


def downgrade() -> None:
    op.drop_table("late_secret")
    op.execute("update late_meta set value = '0012' where key = 'schema_version'")
