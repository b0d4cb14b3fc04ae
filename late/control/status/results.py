"""Kept results of tasks, several in one read: `late_result`, and the states of stages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

import msgspec
from sqlalchemy import Connection, Engine, select

from late.control.sql.rows import now_us
from late.model.ids import shard_of
from late.model.task import DEFAULT_GROUP, Final
from late.schema.engine import reading
from late.schema.tables import result as result_table
from late.schema.tables import stage

_AT_ONCE = 500
"""The most ids of one statement. Spanner takes 950 parameters."""


def results(engine: Engine, task_ids: Iterable[str], group: str) -> dict[str, bytes]:
    """Read outcomes and return values of tasks, encoded as in `late.app.results`.

    A task is left out if it has not ended, or if its result is not kept (any more). Of a stage its
    workflow knows that it ended without one: it may have been cancelled before it was in the log.

    Raises:
        InvalidName: a text is no id.
    """
    ids = list(task_ids)
    for task_id in ids:
        shard_of(task_id)
    found: dict[str, bytes] = {}
    with reading(engine) as connection:
        for start in range(0, len(ids), _AT_ONCE):
            part = ids[start : start + _AT_ONCE]
            found |= kept(connection, part, group)
            if group == DEFAULT_GROUP and (others := [each for each in part if each not in found]):
                found |= _ended_stages(connection, others)
    return found


def result(engine: Engine, task_id: str, group: str) -> bytes | None:
    """Read one of them; None if there is none. See `results`."""
    return results(engine, [task_id], group).get(task_id)


def kept(connection: Connection, task_ids: list[str], group: str) -> dict[str, bytes]:
    """Read the rows of `late_result` whose time is not over."""
    rows = connection.execute(
        select(result_table.c.task_id, result_table.c.value, result_table.c.expires_at_us).where(
            result_table.c.consumer_group == group, result_table.c.task_id.in_(task_ids)
        )
    ).all()
    # Rows are swept away later than they end.
    now = now_us(connection) if rows else 0
    return {str(row.task_id): bytes(row.value) for row in rows if row.expires_at_us > now}


def _ended_stages(connection: Connection, task_ids: list[str]) -> dict[str, bytes]:
    ends = [state for state in get_args(Final) if state != "done"]
    rows = connection.execute(
        select(stage.c.task_id, stage.c.state).where(
            stage.c.task_id.in_(task_ids), stage.c.state.in_(ends)
        )
    ).all()
    return {
        str(row.task_id): msgspec.json.encode({"outcome": row.state, "value": None}) for row in rows
    }
