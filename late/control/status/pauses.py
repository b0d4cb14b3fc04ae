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
ENTRIES = 5_000
"""The latest entries of the audit, in which pauses are looked for."""


def pauses(engine: Engine) -> tuple[Pause, ...]:
    """List what is paused: queues, targets, groups and schedules, each ascending by name."""
    with reading(engine) as connection:
        found = list(paused(connection))
        return tuple(_told(connection, found)) if found else ()


def paused(connection: Connection) -> Iterator[tuple[str, str]]:
    """Yield the kind and the name of each. It is one statement, as each look at the status asks."""
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


def _told(connection: Connection, paused: list[tuple[str, str]]) -> Iterator[Pause]:
    """Find the entry of the audit that paused each; of one without it nobody is known."""
    # The key of the audit ascends with time, and nothing leads to a subject: the walk is bounded.
    latest = select(audit).order_by(audit.c.audit_id.desc()).limit(ENTRIES).subquery()
    subjects = [f"{kind}:{name}" for kind, name in paused]
    query = select(latest).where(latest.c.subject.in_(subjects)).order_by(latest.c.audit_id)
    entries = [Entry(**row._mapping) for row in connection.execute(query)]
    last = {entry.subject: entry for entry in entries if paused_by(entry)}
    for kind, name in paused:
        entry = last.get(f"{kind}:{name}")
        yield Pause(kind, name, entry.actor, entry.at_us) if entry else Pause(kind, name)


def paused_by(entry: Entry) -> bool:
    """Tell whether this action paused its subject. Pure."""
    if entry.action in ("group.pause", "schedule.pause"):
        return True
    return _is_on(entry.after) and not _is_on(entry.before)


def _is_on(knobs: str | None) -> bool:
    found = json.loads(knobs) if knobs else None
    return isinstance(found, dict) and bool(found.get("paused"))
