"""The stages of workflows on Spanner, in the transaction of a settlement."""

from __future__ import annotations

import base64
from collections.abc import Collection, Sequence
from typing import Any

from google.cloud.spanner_v1 import KeyRange, KeySet

from late.model.task import NewTask, TaskId
from late.model.workflow import StageEnd, changes
from late.payload.command import Command
from late.store.common.stages import CHANGING, COLUMNS, StageRows, changing_of
from late.store.spanner.row_codec import bytes_in

_INDEX = ("workflow_id", "stage")
_PAYLOAD, _RESULT = COLUMNS.index("payload"), COLUMNS.index("result")

# Dead letters may be redriven.
_OVER = """
SELECT s.workflow_id FROM late_stage s WHERE s.stage = 0 AND s.workflow_id < @before
   AND NOT EXISTS (
     SELECT 1 FROM late_stage o WHERE o.workflow_id = s.workflow_id AND (
       o.state IN ('started', 'stopping') OR (o.state = 'dead' AND EXISTS (
         SELECT 1 FROM late_dead@{FORCE_INDEX=late_dead_task} d
          WHERE d.consumer_group = 'default' AND d.shard_id = o.shard_id
            AND d.task_id = o.task_id))))
 ORDER BY s.workflow_id LIMIT 20
"""


def read(
    transaction: Any, ends: Sequence[StageEnd], now_us: int
) -> tuple[list[Any], list[NewTask]]:
    """Read what the ends of stages change.

    Returns:
        Rows of `late_stage` to update (see `KEYS`), and rows of the log to insert.
    """

    def by_task(task_id: TaskId) -> list[Any]:
        keys = KeySet(keys=[[task_id]])
        index = transaction.read("late_stage", _INDEX, keys, index="late_stage_task")
        found = [list(key) for key in index]
        return _rows(transaction, KeySet(keys=found)) if found else []

    def by_key(workflow_id: TaskId, stages: Sequence[int] | None) -> list[Any]:
        if stages is None:
            whole = KeyRange(start_closed=[workflow_id], end_closed=[workflow_id])
            return _rows(transaction, KeySet(ranges=[whole]))
        return _rows(transaction, KeySet(keys=[[workflow_id, stage] for stage in stages]))

    found = changes(ends, StageRows(by_task, by_key), now_us)
    rows = []
    for key, stage in found.rows.items():
        state, missing, result, ended_at_us = changing_of(stage)
        rows.append(
            (*key, state, missing, None if result is None else bytes_in(result), ended_at_us)
        )
    commands = [Command("cancel", each).row() for each in found.stopping]
    return rows, [*found.started, *commands]


def revived(transaction: Any, task_ids: Collection[TaskId]) -> None:
    """Note that dead letters went back: their stages may end once more."""
    keys = KeySet(keys=[[task_id] for task_id in task_ids])
    index = transaction.read("late_stage", _INDEX, keys, index="late_stage_task")
    found = [list(key) for key in index]
    columns = ("workflow_id", "stage", "state")
    rows = transaction.read("late_stage", columns, KeySet(keys=found)) if found else ()
    dead = [(workflow_id, stage, "started", None) for workflow_id, stage, state in rows
            if state == "dead"]  # fmt: skip
    if dead:
        transaction.update("late_stage", (*columns, "ended_at_us"), dead)


def over(database: Any, before: TaskId) -> list[TaskId]:
    """Find workflows from before an id of which no task can end any more."""
    with database.snapshot() as snapshot:
        rows = snapshot.execute_sql(_OVER, {"before": before})
        return [workflow_id for (workflow_id,) in rows]


def delete(transaction: Any, workflow_ids: Sequence[TaskId]) -> None:
    """Delete workflows that are over."""
    ranges = [KeyRange(start_closed=[each], end_closed=[each]) for each in workflow_ids]
    transaction.delete("late_stage", KeySet(ranges=ranges))


KEYS = ("workflow_id", "stage", *CHANGING)
"""The columns of the rows that `read` returns."""


def _rows(transaction: Any, keys: KeySet) -> list[Any]:
    found = []
    for row in transaction.read("late_stage", COLUMNS, keys):
        values = list(row)
        values[_PAYLOAD] = base64.b64decode(values[_PAYLOAD])
        if values[_RESULT] is not None:
            values[_RESULT] = base64.b64decode(values[_RESULT])
        found.append(values)
    return found
