"""Parked tasks, the next to come due first: delays, retries, and those behind an ordering key."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Engine, Select, select
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from late.control.shards import named, parked
from late.control.shardwise import LEGS, foremost
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
            legs = [_leg(*key, from_us, limit) for _, key in some]
            for rows in foremost(connection, legs, limit, _by_due):
                found += [TimerView(str(row.task_id), *row[2:]) for row in rows]
            found = sorted(found, key=_order)[:limit]
    return found


def _leg(name: str, shard_id: int, from_us: int, limit: int) -> Select[Any]:
    return (
        select(*_COLUMNS)
        .where(
            timer.c.consumer_group == name,
            timer.c.shard_id == shard_id,
            timer.c.due_at_us >= from_us,
        )
        .order_by(*_by_due(timer.c))
        .limit(limit)
    )


def _by_due(of: ReadOnlyColumnCollection[str, Any]) -> tuple[ColumnElement[Any], ...]:
    return of.due_at_us, of.task_id


def _order(view: TimerView) -> tuple[int, str]:
    return view.due_at_us, view.task_id
