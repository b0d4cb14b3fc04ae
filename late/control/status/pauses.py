"""The things that are paused, by whom and since when, as the audit tells it."""

from __future__ import annotations

import json
from collections.abc import Iterator

from sqlalchemy import Connection, Engine, select

from late.control.audit import Entry
from late.control.status_views import Pause
from late.errors import InvalidPolicy
from late.model import queue_settings
from late.schema.engine import reading
from late.schema.tables import audit, group, queue, schedule, target
from late.store.common.groups import PAUSED, is_shadow

ENTRIES = 200
"""The latest entries of one thing in which its pause is looked for."""


def pauses(engine: Engine) -> tuple[Pause, ...]:
    """List what is paused: queues, targets, groups and schedules, each ascending by name."""
    with reading(engine) as connection:
        return tuple(_of(connection, kind, name) for kind, name in _paused(connection))


def _paused(connection: Connection) -> Iterator[tuple[str, str]]:
    for kind, table in (("queue", queue), ("target", target)):
        query = select(table.c.name, table.c.knobs).order_by(table.c.name)
        for row in connection.execute(query).all():
            try:
                if queue_settings.decode(row.knobs).paused:
                    yield kind, row.name
            except InvalidPolicy:  # a row of a later version
                continue
    for row in connection.execute(
        select(group.c.name, group.c.paused).order_by(group.c.name)
    ).all():
        if row.paused & PAUSED and not is_shadow(row.paused):
            yield "group", row.name
    query = select(schedule.c.name).where(schedule.c.paused != 0).order_by(schedule.c.name)
    for row in connection.execute(query).all():
        yield "schedule", row.name


def _of(connection: Connection, kind: str, name: str) -> Pause:
    """Find the entry of the audit that paused it; without one it is not known by whom."""
    # The key of the audit ascends with time.
    query = (
        select(audit)
        .where(audit.c.subject == f"{kind}:{name}")
        .order_by(audit.c.audit_id.desc())
        .limit(ENTRIES)
    )
    for row in connection.execute(query):
        entry = Entry(**row._mapping)
        if paused_by(entry):
            return Pause(kind, name, entry.actor, entry.at_us)
    return Pause(kind, name)


def paused_by(entry: Entry) -> bool:
    """Tell whether this action paused its subject. Pure."""
    if entry.action in ("group.pause", "schedule.pause"):
        return True
    return _is_on(entry.after) and not _is_on(entry.before)


def _is_on(knobs: str | None) -> bool:
    found = json.loads(knobs) if knobs else None
    return isinstance(found, dict) and bool(found.get("paused"))
