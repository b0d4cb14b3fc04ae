"""The workflow of a task: all its stages, by the index of their tasks."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import Connection, select

from late.control.views import StageView, TaskInGroup
from late.model.task import DEFAULT_GROUP, Final
from late.model.workflow import WAITING
from late.schema.tables import stage

_numbers = msgspec.json.Decoder(tuple[int, ...]).decode
# Not the result, which may be confidential, and no right of a viewer.
_SHOWN = (stage.c.stage, stage.c.task_id, stage.c.name, stage.c.queue, stage.c.state,
          stage.c.after, stage.c.ended_at_us, stage.c.on_failure)  # fmt: skip


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
    return tuple(
        StageView(
            stage=row.stage,
            task_id=str(row.task_id),
            name=row.name,
            queue=row.queue,
            state=row.state,
            after=_numbers(row.after),
            ended_at_us=row.ended_at_us,
            on_failure=any(each.on_failure == row.stage for each in rows),
        )
        for row in rows
    )


def state_of(connection: Connection, task_id: str) -> str | None:
    """Return the state in the row of a stage; None if the task is no stage, or its row is gone."""
    found: str | None = connection.execute(
        select(stage.c.state).where(stage.c.task_id == task_id)
    ).scalar()
    return found


def in_default_group(view: TaskInGroup, own: StageView | None) -> TaskInGroup:
    """Add what only the stage knows: that its task waits for others, or how it ended."""
    if own is None or view.group != DEFAULT_GROUP or view.state not in ("unknown", "settled"):
        return view
    if own.state == WAITING:
        return msgspec.structs.replace(view, state="waiting")
    if own.ended_at_us is None:
        return view
    outcome: Final | Any = own.state
    return msgspec.structs.replace(view, state="settled", outcome=view.outcome or outcome)
