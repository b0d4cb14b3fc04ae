"""Write a workflow: the rows of all its stages, and the tasks of those that wait for nothing."""

from __future__ import annotations

from collections.abc import Sequence

from late.errors import InvalidTask
from late.model.task import TaskId
from late.model.workflow import STARTED, Stage
from late.outbox.admission import Asked
from late.outbox.base import Steps
from late.outbox.insert import Target, written
from late.outbox.statements import STAGES_AT_ONCE


def insert_stages(
    rows: Sequence[Stage], into: Target, asked: Asked | None = None
) -> Steps[list[TaskId]]:
    """Insert `rows`, and return the ids of their tasks in order.

    Args:
        asked: what must be open: the queues of all stages, also of those that start later.

    Raises:
        QueueFull: something of `asked` takes no tasks; nothing was written.
        InvalidTask: each statement would commit by itself, so that half a workflow might remain.
    """
    if into.autocommit:
        raise InvalidTask("a workflow needs a transaction: begin one before the enqueue")
    started = [row.task() for row in rows if row.state == STARTED]
    yield from written(started, None, into.dialect, asked)
    for start in range(0, len(rows), STAGES_AT_ONCE):
        yield into.dialect.stages(rows[start : start + STAGES_AT_ONCE])
    return [row.task_id for row in rows]
