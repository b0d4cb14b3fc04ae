"""Alembic's entry: run by `late.schema.migrate`, which owns the connection and the lock."""

from __future__ import annotations

from alembic import context

from late.schema.version import OLDEST_KEY, OLDEST_SCHEMA

attributes = context.config.attributes

if context.is_offline_mode():
    context.configure(
        url=attributes["url"],
        literal_binds=True,
        version_table=attributes["version_table"],
        transactional_ddl=True,
    )
else:
    context.configure(
        connection=attributes["connection"],
        version_table=attributes["version_table"],
        transactional_ddl=True,
    )

with context.begin_transaction():
    context.run_migrations()
    # After a way back it is higher than it need be, which refuses more than it must.
    context.execute(
        f"insert into late_meta (key, value) values ('{OLDEST_KEY}', '{OLDEST_SCHEMA}')"
        " on conflict (key) do update set value = excluded.value"
    )
