"""The things that are paused, by whom and since when, as the audit tells it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Row, literal_column, select, union_all

from late.control.audit import Entry
from late.control.status_views import Pause
from late.errors import InvalidPolicy
from late.model import queue_settings
from late.schema.engine import reading
from late.schema.tables import audit, group, queue, schedule, target
from late.store.common.groups import PAUSED, is_shadow

KINDS = ("queue", "target", "group", "schedule")
ENTRIES = 200
"""The latest entries of one thing in which its pause is looked for."""


def pauses(engine: Engine) -> tuple[Pause, ...]:
    """List what is paused: queues, targets, groups and schedules, each ascending by name."""
    with reading(engine) as connection:
        return tuple(_of(connection, kind, name) for kind, name in _paused(connection))


def _paused(connection: Connection) -> Iterator[tuple[str, str]]:
    """In one statement: it is asked with each look at the status."""
    none: ColumnElement[str] = literal_column("''")
    zero: ColumnElement[int] = literal_column("0")
    parts = [
        select(queue.c.name, queue.c.knobs, zero.label("paused"), zero.label("kind")),
        select(target.c.name, target.c.knobs, zero, literal_column("1")),
        select(group.c.name, none, group.c.paused, literal_column("2")),
        select(schedule.c.name, none, schedule.c.paused, literal_column("3")),
    ]
    rows = connection.execute(union_all(*parts)).all()
    for row in sorted(rows, key=lambda row: (row.kind, row.name)):
        if _is_paused(row):
            yield KINDS[row.kind], row.name


def _is_paused(row: Row[Any]) -> bool:
    if row.knobs:
        try:
            return bool(queue_settings.decode(row.knobs).paused)
        except InvalidPolicy:  # a row of a later version
            return False
    if KINDS[row.kind] == "group":
        return bool(row.paused & PAUSED) and not is_shadow(row.paused)
    return bool(row.paused)


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
