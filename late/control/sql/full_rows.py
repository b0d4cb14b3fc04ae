"""The rows of `late_full`: queues and limit keys that take no new tasks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from sqlalchemy import Connection, delete, func, insert, select

from late.control.sql.knob_rows import locked
from late.control.sql.rows import now_us
from late.model.admission import CLOSED_US, RENEW_US, VALID_US, Full
from late.model.queue_settings import QueueSettings
from late.schema.tables import full

NAMES_MAX = 1_000
"""The most rows that a worker writes; those that hold most come first."""


def read(connection: Connection) -> list[Full]:
    """Return what takes no tasks now, ascending by name."""
    query = select(full.c.name, full.c.held, full.c.bound).where(
        full.c.until_us > now_us(connection)
    )
    return [Full(*row) for row in connection.execute(query.order_by(full.c.name))]


def follow(connection: Connection, name: str, knobs: QueueSettings) -> None:
    """Write what a change of the knobs of a queue says of it, in the transaction of the change.

    Where the bound has changed, the next count of a worker says again what is full.
    """
    row = connection.execute(select(full.c.bound).where(full.c.name == name)).first()
    if knobs.closed:
        _put(connection, Full(name, 0, 0), CLOSED_US)
    elif row is not None and row.bound != knobs.max_backlog:
        connection.execute(delete(full).where(full.c.name == name))
    if knobs.key_backlog is None:
        keys = func.substr(full.c.name, 1, len(name) + 1) == f"{name} "
        connection.execute(delete(full).where(keys))


class Changes(NamedTuple):
    """The rows that a count writes."""

    unclear: list[str]
    """Queues that are closed by the knobs and not here, or here and not by the knobs: code for an
    older schema has changed the knob, or the knobs of the counting worker are old."""
    put: list[Full]
    removed: list[str]


def changes(
    connection: Connection, found: Mapping[str, Full], closed: Iterable[str], here: int
) -> Changes:
    """Compare the rows with what a worker has counted. While nothing changes there is nothing.

    Args:
        found: what has reached its bound, by name.
        closed: the queues that the knobs close, as the worker knows them.
    """
    rows = {row.name: row for row in connection.execute(select(full))}
    shut = {name for name, row in rows.items() if not row.bound}
    kept = sorted(found.values(), key=lambda each: -each.held)[:NAMES_MAX]
    full_now = {each.name: each for each in kept if each.name not in shut}
    put = [
        each
        for name, each in sorted(full_now.items())
        if (row := rows.get(name)) is None
        or row.bound != each.bound
        or row.until_us < here + RENEW_US
    ]
    unclear = sorted(shut.symmetric_difference(closed))
    return Changes(unclear, put, sorted(rows.keys() - full_now.keys() - shut))


def publish(connection: Connection, found: Mapping[str, Full], closed: Collection[str]) -> None:
    """Write what is full, and remove what is no longer. For the arguments see `changes`."""
    here = now_us(connection)
    asked = changes(connection, found, closed, here)
    for name in asked.unclear:
        follow(connection, name, locked(connection, "queue", name))
    for each in asked.put:
        _put(connection, each, here + VALID_US)
    for name in asked.removed:
        connection.execute(delete(full).where(full.c.name == name))


def _put(connection: Connection, each: Full, until_us: int) -> None:
    connection.execute(delete(full).where(full.c.name == each.name))
    connection.execute(insert(full).values(**each._asdict(), until_us=until_us))
