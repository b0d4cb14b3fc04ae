"""The workflow of a task: all its stages, by the index of their tasks.

Three states are only shown, as no row says them. A stage that has started may be `parked`. A dead
letter that was removed is `purged`. A stage that waits for one that can no longer be done is
`skipped`: it never starts. So is `on_failure`, once no other stage can fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import BigInteger, Connection, Row, Select, Table, Text, select

from late.control.sql.per_shard import lateral_rows
from late.control.views import StageView, TaskInGroup
from late.model.task import DEFAULT_GROUP, Final
from late.model.workflow import STARTED, STOPPING, WAITING
from late.schema.column_types import TaskIdType
from late.schema.tables import dead, stage, timer

PARKED, PURGED, SKIPPED = "parked", "purged", "skipped"
GOING_ON = (WAITING, STARTED, PARKED, STOPPING)
"""The shown states of a stage that may still run."""
_NEVER_DONE = ("expired", "discarded", "cancelled", PURGED, SKIPPED)
_numbers = msgspec.json.Decoder(tuple[int, ...]).decode
# Not the result, which may be confidential, and no right of a viewer.
_SHOWN = (stage.c.stage, stage.c.task_id, stage.c.shard_id, stage.c.name, stage.c.queue,
          stage.c.state, stage.c.after, stage.c.ended_at_us, stage.c.on_failure)  # fmt: skip


def stages_of(connection: Connection, task_id: str) -> tuple[StageView, ...]:
    """Return the stages of the workflow that the task belongs to; empty without one."""
    workflow_id = connection.execute(
        select(stage.c.workflow_id).where(stage.c.task_id == task_id)
    ).scalar()
    if workflow_id is None:
        return ()
    rows = connection.execute(
        select(*_SHOWN).where(stage.c.workflow_id == workflow_id).order_by(stage.c.stage)
    ).all()
    states = _states(connection, rows)
    return tuple(
        StageView(
            stage=row.stage,
            task_id=str(row.task_id),
            name=row.name,
            queue=row.queue,
            state=states[row.stage],
            after=_numbers(row.after),
            ended_at_us=row.ended_at_us,
            on_failure=any(each.on_failure == row.stage for each in rows),
        )
        for row in rows
    )


def _states(connection: Connection, rows: Sequence[Row[Any]]) -> dict[int, str]:
    """Return what to show of each stage. Those before a stage have lower numbers than it has."""
    started = in_group(connection, timer, [row for row in rows if row.state in (STARTED, "dead")])
    letters = in_group(connection, dead, [row for row in rows if row.state == "dead"])
    shown: dict[int, str] = {}
    for row in rows:
        state = row.state
        if state in (STARTED, "dead") and row.task_id in started:
            state = PARKED
        elif state == "dead" and row.task_id not in letters:
            state = PURGED
        elif state == WAITING and any(shown[each] in _NEVER_DONE for each in _numbers(row.after)):
            state = SKIPPED
        shown[row.stage] = state
    for number in {row.on_failure for row in rows} - {None}:
        others = [state for other, state in shown.items() if other != number]
        if shown[number] == WAITING and not any(state in GOING_ON for state in others):
            shown[number] = SKIPPED
    return shown


def in_group(connection: Connection, table: Table, rows: Iterable[Row[Any]]) -> set[Any]:
    """Return the ids of the tasks that the default group has in `table`."""

    def leg(name: Any, shard_id: Any, task_id: Any) -> Select[Any]:
        return select(table.c.task_id).where(
            table.c.consumer_group == name,
            table.c.shard_id == shard_id,
            table.c.task_id == task_id,
        )

    asked = [(DEFAULT_GROUP, row.shard_id, row.task_id) for row in rows]
    types = (Text(), BigInteger(), TaskIdType())
    return {row.task_id for row in lateral_rows(connection, leg, asked, types=types)}


def in_default_group(view: TaskInGroup, own: StageView | None) -> TaskInGroup:
    """Add what only the stage knows: that its task waits for others, or how it ended."""
    if own is None or view.group != DEFAULT_GROUP or view.state not in ("unknown", "settled"):
        return view
    if own.state == WAITING:
        return msgspec.structs.replace(view, state="waiting")
    if own.state in (SKIPPED, PURGED):
        return msgspec.structs.replace(view, state="settled", outcome=view.outcome or own.state)
    if own.ended_at_us is None:
        return view
    outcome: Final | Any = own.state
    return msgspec.structs.replace(view, state="settled", outcome=view.outcome or outcome)
