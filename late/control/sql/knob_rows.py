"""The rows of knobs: of queues and of targets."""

from __future__ import annotations

from sqlalchemy import Connection, Table, select

from late.control.sql.rows import locking
from late.model import queue_settings
from late.model.queue_settings import Kind, QueueSettings
from late.schema.tables import queue, target

TABLES: dict[Kind, Table] = {"queue": queue, "target": target}


def of_queues(connection: Connection) -> dict[str, QueueSettings]:
    """Read the settings of the queues that have any, by name.

    Raises:
        InvalidPolicy: this version cannot read a row.
    """
    rows = connection.execute(select(queue.c.name, queue.c.knobs))
    return {row.name: queue_settings.decode(row.knobs) for row in rows}


def locked(connection: Connection, kind: Kind, name: str) -> QueueSettings:
    """Read and lock the present settings, so that two changes are made one after the other."""
    table = TABLES[kind]
    query = select(table.c.knobs).where(table.c.name == name)
    text = connection.execute(locking(connection, query)).scalar()
    return QueueSettings() if text is None else queue_settings.decode(text)
