"""The rows of `late_stage`, as the stores read and write them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from late.model.task import TaskId
from late.model.workflow import Stage

COLUMNS = Stage.__struct_fields__
CHANGING = ("state", "missing", "result", "ended_at_us")
"""The columns that the end of a task may change."""
_numbers = msgspec.json.Decoder(tuple[int, ...]).decode


def stage_of(row: Sequence[Any]) -> Stage:
    """Make a stage from the values of `COLUMNS`."""
    values = dict(zip(COLUMNS, row, strict=True))
    values["task_id"], values["workflow_id"] = str(values["task_id"]), str(values["workflow_id"])
    values["after"], values["next"] = _numbers(values["after"]), _numbers(values["next"])
    values["collects"] = bool(values["collects"])
    return Stage(**values)


def changing_of(stage: Stage) -> tuple[Any, ...]:
    """Return the values of `CHANGING`."""
    return (stage.state, stage.missing, stage.result, stage.ended_at_us)


class StageRows:
    """Rows that were read in one transaction, each as one object. It satisfies `workflow.Rows`.

    Args:
        by_task: reads the row of a task.
        by_key: reads these stages of a workflow, or all.
    """

    def __init__(
        self,
        by_task: Callable[[TaskId], Iterable[Sequence[Any]]],
        by_key: Callable[[TaskId, Sequence[int] | None], Iterable[Sequence[Any]]],
    ) -> None:
        self._by_task = by_task
        self._by_key = by_key
        self._known: dict[tuple[TaskId, int], Stage] = {}

    def of_task(self, task_id: TaskId) -> Stage | None:
        """Read the row of a task, if it is a stage."""
        return next((self._kept(row) for row in self._by_task(task_id)), None)

    def of_workflow(self, workflow_id: TaskId, stages: Sequence[int] | None = None) -> list[Stage]:
        """Read these stages of a workflow in order; None: all."""
        if stages is None:
            return [self._kept(row) for row in self._by_key(workflow_id, None)]
        unread = [stage for stage in stages if (workflow_id, stage) not in self._known]
        for row in self._by_key(workflow_id, unread) if unread else ():
            self._kept(row)
        return [self._known[workflow_id, stage] for stage in stages]

    def _kept(self, row: Sequence[Any]) -> Stage:
        stage = stage_of(row)
        return self._known.setdefault((stage.workflow_id, stage.stage), stage)
