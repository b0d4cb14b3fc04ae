"""Workflows in memory, for tests without a database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from late.model.task import TaskId
from late.model.workflow import Stage


class StagesInMemory:
    """Rows of `late_stage`. It satisfies `late.model.workflow.Rows`."""

    def __init__(self) -> None:
        self.rows: dict[tuple[TaskId, int], Stage] = {}
        self._tasks: dict[TaskId, Stage] = {}

    def add(self, stages: Iterable[Stage]) -> None:
        """Take in the rows of a workflow."""
        for row in stages:
            self.rows[row.workflow_id, row.stage] = self._tasks[row.task_id] = row

    def of_task(self, task_id: TaskId) -> Stage | None:
        """Return the row of a task, if it is a stage."""
        return self._tasks.get(task_id)

    def of_workflow(self, workflow_id: TaskId, stages: Sequence[int] | None = None) -> list[Stage]:
        """Return these stages in order; None: all."""
        if stages is None:
            return [row for (each, _), row in self.rows.items() if each == workflow_id]
        return [self.rows[workflow_id, stage] for stage in stages]
