"""The settings of groups in `late_meta`: read them, and change them with a row in the audit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, delete, insert, select

from late.control import audit
from late.control.groups import groups
from late.errors import Conflict
from late.model import group_settings
from late.model.group_settings import KEY, GroupSettings
from late.schema.engine import write
from late.schema.tables import meta
from late.store.common.groups import is_shadow


def all_of(connection: Connection) -> dict[str, GroupSettings]:
    """Read the settings of the groups that have any, by name.

    Raises:
        InvalidPolicy: this version cannot read a row.
    """
    end = KEY[:-1] + chr(ord(KEY[-1]) + 1)
    kept = select(meta.c.key, meta.c.value).where(meta.c.key >= KEY, meta.c.key < end)
    return group_settings.of_meta({row.key: row.value for row in connection.execute(kept)})


def change(engine: Engine, name: str, changes: Mapping[str, Any]) -> None:
    """Change some settings of a group.

    Args:
        changes: setting -> value; None takes it back.

    Raises:
        ConfigError: there is no such group or setting, or a value is out of bounds.
        Conflict: it is a shadow.
    """

    def work(connection: Connection) -> None:
        if is_shadow(groups.known(connection, name).paused):
            raise Conflict(f"group {name!r} is a shadow: it has no settings")
        before = all_of(connection).get(name, GroupSettings())
        after = group_settings.changed(before, changes)
        if after != before:
            put(connection, name, after)
            audit.record(
                connection, action="group.set", subject=f"group:{name}", before=before, after=after
            )

    write(engine, work)


def checked(values: Mapping[str, Any]) -> GroupSettings:
    """Return the settings of a new group.

    Raises:
        ConfigError: there is no such setting, or a value is out of bounds.
    """
    return group_settings.changed(GroupSettings(), values)


def put(connection: Connection, name: str, settings: GroupSettings) -> None:
    """Write the settings of a group."""
    connection.execute(delete(meta).where(meta.c.key == KEY + name))
    if settings != GroupSettings():
        value = msgspec.json.encode(settings).decode()
        connection.execute(insert(meta).values(key=KEY + name, value=value))
