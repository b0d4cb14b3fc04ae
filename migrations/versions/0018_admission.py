"""Queues and limit keys that take no new tasks; late_enqueue chooses the shard by the limit key.

Phase: pre. Immutable: a change of the schema is a new revision.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None
phase = "pre"

_CLOSED = {
    "postgresql": "(knobs::jsonb ->> 'closed')::boolean",
    "cockroachdb": "(knobs::jsonb ->> 'closed')::boolean",
    "sqlite": "json_extract(knobs, '$.closed')",
}


def upgrade() -> None:
    dialect = op.get_context().dialect.name
    op.create_table(
        "late_full",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("held", sa.BigInteger, nullable=False),
        sa.Column("bound", sa.BigInteger, nullable=False),
        sa.Column("until_us", sa.BigInteger, nullable=False),
    )
    op.execute(
        "insert into late_full (name, held, bound, until_us)"
        f" select name, 0, 0, 4611686018427387904 from late_queue where {_CLOSED[dialect]}"
    )
    if dialect == "postgresql":
        _run("0018_functions.sql")
    op.execute("update late_meta set value = '0018' where key = 'schema_version'")


def downgrade() -> None:
    # Workers write what is full again; closed is a knob of the queue.
    if op.get_context().dialect.name == "postgresql":
        _run("0018_functions_down.sql")
    op.drop_table("late_full")
    op.execute("update late_meta set value = '0017' where key = 'schema_version'")


def _run(name: str) -> None:
    functions = Path(__file__).parents[1] / name
    op.execute(sa.text(functions.read_text().replace(":", r"\:")))
