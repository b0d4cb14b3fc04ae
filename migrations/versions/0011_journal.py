"""Compaction of the journal: a row may carry the usage of those before it. The log of a new
database has partitions from its first task on.

Phase: pre. Immutable: a change of the schema is a new revision.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None
phase = "pre"

# Only where nothing has been inserted yet: elsewhere maintenance has made partitions long ago, and
# making one would wait for every producer. Three ranges of the least width, then two much wider.
FIRST_PARTITIONS = """
do $$ declare low bigint; high bigint; units bigint; begin
  if exists (select from late_task) or (
    select count(*) from pg_inherits where inhparent = 'late_task'::regclass) > 1 then return;
  end if;
  low := pg_current_xact_id()::text::bigint;
  insert into late_meta (key, value) values ('xid_sample',
    low || ',' || (extract(epoch from clock_timestamp()) * 1000000)::bigint)
    on conflict (key) do nothing;
  foreach units in array array[1, 1, 1, 16, 256] loop
    high := low + units * 8192;
    execute 'create table late_task_' || low || '_' || high || ' partition of late_task for values'
      || ' from (' || quote_literal(low) || ') to (' || quote_literal(high) || ')';
    low := high;
  end loop;
end $$
"""


def upgrade() -> None:
    op.add_column("late_settlement", sa.Column("first_seq", sa.BigInteger))
    if op.get_context().dialect.name == "postgresql":
        op.execute(FIRST_PARTITIONS)
    op.execute("update late_meta set value = '0011' where key = 'schema_version'")


def downgrade() -> None:
    # Sums stay. The older version counts them right, and calls a compacted stretch a hole.
    op.drop_column("late_settlement", "first_seq")
    op.execute("update late_meta set value = '0010' where key = 'schema_version'")
