"""The stages of workflows on SQLite, in the transaction of a settlement."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from late.model.ids import id_before
from late.model.task import NewTask, TaskId
from late.model.workflow import StageEnd, changes
from late.payload.command import Command
from late.store.common.stages import CHANGING, COLUMNS, StageRows, changing_of
from late.store.sqlite.write_lock import clock, transaction

_SELECT = f"select {', '.join(COLUMNS)} from late_stage"
_BY_TASK = f"{_SELECT} where task_id = ?"
_BY_WORKFLOW = f"{_SELECT} where workflow_id = ? order by stage"
_BY_KEY = f"{_SELECT} where workflow_id = ? and stage in (select value from json_each(?))"
_CHANGE = (
    f"update late_stage set {', '.join(f'{column} = ?' for column in CHANGING)}"
    " where workflow_id = ? and stage = ?"
)
# A dead letter that went back is in the timer table: its stage may end once more.
REVIVED = (
    "update late_stage set state = 'started', ended_at_us = null where task_id = :task"
    " and state = 'dead' and exists (select 1 from late_timer where consumer_group = :group"
    " and shard_id = :shard and due_at_us = :due and task_id = :task)"
)
# A workflow may go if none of its tasks can end any more. Dead letters may be redriven.
PRUNE = """
delete from late_stage where workflow_id in (
  select s.workflow_id from late_stage s where s.stage = 0 and s.workflow_id < ?
     and not exists (
       select 1 from late_stage o where o.workflow_id = s.workflow_id and (
         o.state in ('started', 'stopping') or (o.state = 'dead' and exists (
           select 1 from late_dead d where d.consumer_group = 'default'
              and d.shard_id = o.shard_id and d.task_id = o.task_id))))
   order by s.workflow_id limit 100)
"""


def end(
    connection: sqlite3.Connection,
    ends: Sequence[StageEnd],
    insert: Callable[[sqlite3.Connection, NewTask, int], None],
    now_us: int,
) -> None:
    """Record the ends of stages, and start what waits for nothing else."""

    def by_task(task_id: TaskId) -> list[Any]:
        return connection.execute(_BY_TASK, (task_id,)).fetchall()

    def by_key(workflow_id: TaskId, stages: Sequence[int] | None) -> list[Any]:
        if stages is None:
            return connection.execute(_BY_WORKFLOW, (workflow_id,)).fetchall()
        text = msgspec.json.encode(stages).decode()
        return connection.execute(_BY_KEY, (workflow_id, text)).fetchall()

    found = changes(ends, StageRows(by_task, by_key), now_us)
    connection.executemany(_CHANGE, [(*changing_of(s), *key) for key, s in found.rows.items()])
    for task in (*found.started, *[Command("cancel", each).row() for each in found.stopping]):
        insert(connection, task, now_us)


def prune(connection: sqlite3.Connection, keep_s: float) -> int:
    """Delete old workflows of which no task can end any more; return the number of rows."""
    before = id_before(clock(connection) - round(keep_s * 1_000_000))
    with transaction(connection, durable=False):
        return connection.execute(PRUNE, (before,)).rowcount
