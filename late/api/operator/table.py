"""The list of operations. An operation that is not here is not served."""

from __future__ import annotations

from late.api.operator import (
    dead_letters,
    deployment,
    groups,
    knobs,
    schedules,
    task_lists,
    tasks,
    workflows,
)
from late.api.operator.operation import Operation

OPERATIONS: tuple[Operation, ...] = (
    *tasks.OPERATIONS,
    *task_lists.OPERATIONS,
    *workflows.OPERATIONS,
    *dead_letters.OPERATIONS,
    *knobs.OPERATIONS,
    *groups.OPERATIONS,
    *schedules.OPERATIONS,
    *deployment.OPERATIONS,
)
