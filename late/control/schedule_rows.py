"""Rows of recurring tasks, shared by the commands about them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, RowMapping, delete, insert, select

from late.control.sql.rows import locking
from late.errors import ConfigError
from late.model.task import Schedule
from late.schema.tables import meta, schedule

JITTER_KEY = "jitter/"
"""The beginning of the keys in `late_meta` under which jitters are kept."""
DECLARED = (
    "rule", "zone", "catch_up", "catch_up_max", "overlap", "queue", "task_name", "payload",
    "options",
)  # fmt: skip


def stored(
    connection: Connection, names: Sequence[str], *, lock: bool = False
) -> dict[str, RowMapping]:
    """Read these schedules, by name. With `lock`, lock their rows."""
    statement = select(schedule).where(schedule.c.name.in_(names)).order_by(schedule.c.name)
    rows = connection.execute(locking(connection, statement) if lock else statement)
    return {row.name: row._mapping for row in rows}


def one(connection: Connection, name: str, *, lock: bool = True) -> RowMapping:
    """Read one schedule. With `lock`, lock its row.

    Raises:
        ConfigError: there is no such schedule.
    """
    row = stored(connection, [name], lock=lock).get(name)
    if row is None:
        known = connection.execute(select(schedule.c.name).order_by(schedule.c.name).limit(10))
        names = ", ".join(known.scalars()) or "none"
        raise ConfigError(f"no schedule {name[:128]!r}; known: {names}")
    return row


def jitters(connection: Connection) -> dict[str, int]:
    """Read the jitter of each schedule that has one, in microseconds, by name."""
    end = JITTER_KEY[:-1] + chr(ord(JITTER_KEY[-1]) + 1)
    kept = select(meta.c.key, meta.c.value).where(meta.c.key >= JITTER_KEY, meta.c.key < end)
    return {row.key.removeprefix(JITTER_KEY): int(row.value) for row in connection.execute(kept)}


def put_jitter(connection: Connection, name: str, jitter_us: int) -> None:
    """Write the jitter of a schedule; 0 removes it."""
    connection.execute(delete(meta).where(meta.c.key == JITTER_KEY + name))
    if jitter_us:
        connection.execute(insert(meta).values(key=JITTER_KEY + name, value=str(jitter_us)))


def schedule_of(row: RowMapping, jitter_us: int = 0) -> Schedule:
    """Return the schedule in a row of its table, with its jitter."""
    return Schedule(
        **{field: row[field] for field in DECLARED},
        name=row["name"],
        shard_id=row["shard_id"],
        anchor_us=row["anchor_us"],
        next_due_at_us=row["next_due_at_us"],
        paused=bool(row["paused"]),
        open_task_id=row["open_task_id"],
        jitter_us=jitter_us,
    )
