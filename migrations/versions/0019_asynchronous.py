"""Tasks whose transaction did not wait for the disk, so that others can start at once (PostgreSQL).

Phase: pre. Immutable: a change of the schema is a new revision.
"""

from __future__ import annotations

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None
phase = "pre"

_ADD = """
alter table late_task add column asynchronous boolean
  default case when current_setting('synchronous_commit') = 'off' then true end
"""


def upgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        # What is in the table then counts as synchronous: this commit puts it on disk.
        op.execute("set local synchronous_commit = on")
        op.execute(_ADD)
    op.execute("update late_meta set value = '0019' where key = 'schema_version'")


def downgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        op.execute("alter table late_task drop column asynchronous")
    op.execute("update late_meta set value = '0018' where key = 'schema_version'")
