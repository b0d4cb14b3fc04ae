"""Alembic's entry: run by `late.schema.migrate`, which owns the connection and the lock."""

from __future__ import annotations

from alembic import context

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
