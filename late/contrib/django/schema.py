"""Run the migrations of `late` from those of Django."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from sqlalchemy import Connection, StaticPool, create_engine, update

from late.contrib.django.application import setting
from late.contrib.django.connections import IN_MEMORY, database_url
from late.schema import fresh, migrate, tables
from late.schema.engine import make_engine, write


def upgrade(_: Any, editor: Any) -> None:
    """Make or upgrade the tables, if this is the database that `LATE["DATABASE"]` names.

    It may be repeated, and may run beside `late migrate`.

    Raises:
        LateError: see `late.schema.migrate.upgrade`.
    """
    alias = editor.connection.alias
    if alias != setting("DATABASE"):
        return
    url = database_url(alias)
    if url != IN_MEMORY:
        if migrate.revisions()[0] in migrate.upgrade(url):
            engine = make_engine(url)
            write(engine, _set_shards)
            engine.dispose()
    elif "late_meta" not in editor.connection.introspection.table_names():
        _create_in_memory(editor.connection)


def _create_in_memory(wrapper: Any) -> None:
    """Create the tables through Django's own connection: no other one sees them (in tests)."""
    engine = create_engine("sqlite://", creator=lambda: wrapper.connection, poolclass=StaticPool)
    with transaction.atomic(using=wrapper.alias), engine.connect() as connection:
        fresh.create(connection)
        _set_shards(connection)


def _set_shards(connection: Connection) -> None:
    """Give the lane of a new database the width that `LATE["SHARDS"]` says. It has no tasks yet, so
    that it may also be narrower than it was made."""
    width = {"shards": setting("SHARDS")}
    connection.execute(update(tables.lane).where(tables.lane.c.name == "default").values(**width))
