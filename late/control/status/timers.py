"""Parked tasks, the next to come due first: delays, retries, and those behind an ordering key."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, Row, Select, select

from late.control.sql.per_shard import LEGS, Value, first_rows
from late.control.sql.shards import named, parked
from late.control.views import TimerView
from late.errors import ConfigError
from late.schema.engine import reading
from late.schema.tables import timer

LIMIT = 100
_COLUMNS = (
    timer.c.task_id,
    timer.c.consumer_group,
    timer.c.shard_id,
    timer.c.due_at_us,
    timer.c.reason,
    timer.c.held_key,
    timer.c.queue,
    timer.c.name,
    timer.c.attempts,
)


def listed(
    engine: Engine, *, group: str | None = None, from_us: int = 0, limit: int = LIMIT
) -> list[TimerView]:
    """Up to `limit` of all shards, ascending by due time and id.

    One range of the primary key for each (group, shard) that can have one of the first `limit`:
    there is no index over all shards, for every parked task would pay for it.

    Args:
        group: only of this one.
        from_us: none that is due before, microseconds.
    """
    if limit < 1:
        raise ConfigError(f"limit {limit}: at least 1")

    def leg(name: Value, shard_id: Value, most: int) -> Select[Any]:
        return (
            select(*_COLUMNS)
            .where(
                timer.c.consumer_group == name,
                timer.c.shard_id == shard_id,
                timer.c.due_at_us >= from_us,
            )
            .order_by(timer.c.due_at_us, timer.c.task_id)
            .limit(most)
        )

    found: list[TimerView] = []
    with reading(engine) as connection:
        known = named(connection).known
        pairs = sorted(
            (due, key)
            for key, due in parked(connection, timer.c.due_at_us, known)
            if group in (None, key[0])
        )
        # By what each has first: where the list is full, a shard that begins behind its end, and
        # all that follow, have nothing for it.
        for start in range(0, len(pairs), LEGS):
            some = pairs[start : start + LEGS]
            if len(found) == limit and some[0][0] > found[-1].due_at_us:
                break
            rows = first_rows(connection, leg, [key for _, key in some], limit, _by_due)
            found += [TimerView(str(row.task_id), *row[2:]) for _, row in rows]
            found = sorted(found, key=_order)[:limit]
    return found


def _by_due(row: Row[Any]) -> tuple[int, str]:
    return row.due_at_us, str(row.task_id)


def _order(view: TimerView) -> tuple[int, str]:
    return view.due_at_us, view.task_id
