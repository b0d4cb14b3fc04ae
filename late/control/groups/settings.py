"""The settings of groups in `late_meta`: read them, and change them with a row in the audit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import (
    Connection,
    Engine,
    Select,
    delete,
    insert,
    literal_column,
    select,
    union_all,
)

from late.control import audit
from late.control.groups import groups
from late.errors import Conflict
from late.model import group_settings
from late.model.group_settings import KEY, GroupSettings
from late.schema.engine import write
from late.schema.tables import group, meta
from late.store.common.groups import is_shadow, reads_of


def all_of(connection: Connection) -> dict[str, GroupSettings]:
    """Read the settings of the groups that have any, by name.

    Raises:
        InvalidPolicy: this version cannot read a row.
    """
    return group_settings.of_meta({row.key: row.value for row in connection.execute(_kept())})


def with_queues(
    connection: Connection,
) -> tuple[dict[str, GroupSettings], dict[str, frozenset[str]]]:
    """Read, by one statement, what `all_of` reads, and the queues of each group that does not read
    all.

    Raises:
        InvalidPolicy: this version cannot read a row.
    """
    some = select(group.c.name, group.c.queues, literal_column("1"))
    kept = _kept().add_columns(literal_column("0"))
    facts, reads = {}, {}
    for name, text, is_group in connection.execute(
        union_all(kept, some.where(group.c.queues.is_not(None)))
    ):
        if is_group:
            reads[name] = reads_of(text, None, None).queues or frozenset()
        else:
            facts[name] = text
    return group_settings.of_meta(facts), reads


def _kept() -> Select[tuple[str, str]]:
    end = KEY[:-1] + chr(ord(KEY[-1]) + 1)
    return select(meta.c.key, meta.c.value).where(meta.c.key >= KEY, meta.c.key < end)


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
