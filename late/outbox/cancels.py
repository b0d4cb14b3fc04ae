"""Write a cancel, and one for each other task of the same workflow that is in the log.

The command lies in the shard of its task. Owners of other shards hear of it only when this one has
recorded it, and may have started tasks of the workflow by then. A command in their own shards,
which commits with the first one, is as fast as their tasks.

A role that may only enqueue cannot read which tasks these are. Then there is only the one command.
"""

from __future__ import annotations

from late.model.task import DEFAULT_GROUP, TaskId
from late.outbox.base import Steps
from late.outbox.insert import Target, written
from late.payload.command import Command

_READ = (
    "select o.task_id from late_stage s join late_stage o on o.workflow_id = s.workflow_id"
    " where s.task_id = {task_id} and o.state = 'started'"
)
# PostgreSQL asks for the right to read a table before it looks at any condition, and a refusal ends
# the caller's transaction. It does not look into the text of a query that was not run.
_READ_IF_ALLOWED = (
    "select m[1] from regexp_matches(case when"
    " has_column_privilege(to_regclass('late_stage'), 'workflow_id', 'select')"
    " and has_column_privilege(to_regclass('late_stage'), 'task_id', 'select')"
    " and has_column_privilege(to_regclass('late_stage'), 'state', 'select')"
    " then query_to_xml('select o.task_id from late_stage s join late_stage o"
    " on o.workflow_id = s.workflow_id where o.state = ''started'' and s.task_id = '''"
    " || {task_id} || '''', true, false, '')::text else '' end, '<task_id>([^<]+)<', 'g') m"
)


def insert_cancel(command: Command, into: Target) -> Steps[list[TaskId]]:
    """Insert `command`, then those for the other tasks; return the ids of all, its own first."""
    dialect = into.dialect
    rows = [command.row()]
    # First, as SQLite may refuse the first write of a transaction that has read.
    yield from written(rows, None, dialect)
    if command.group in (None, DEFAULT_GROUP):
        text = _READ_IF_ALLOWED if dialect.checks_rights else _READ
        answer = yield dialect.bind(text, fetch=True, task_id=command.task_id)
        others = [TaskId(str(task_id)) for (task_id,) in answer.rows]
        more = [Command("cancel", each, command.group).row()
                for each in sorted(others) if each != command.task_id]  # fmt: skip
        yield from written(more, None, dialect)
        rows += more
    return [row.task_id for row in rows]
