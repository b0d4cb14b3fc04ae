"""`late show` of a past moment: where a task stood by the journal, its history and its errors."""

from __future__ import annotations

from typing import get_args

import msgspec
from sqlalchemy import Connection, select

from late.control.past.as_of import NotKnown
from late.control.past.journal import Past, Stood, past_of
from late.control.past.moment import Moment
from late.control.sql.beyond_cursor import beyond
from late.control.sql.log_lookup import Row, find_in_log, key_of
from late.control.sql.rows import log_of, open_of
from late.control.status import task
from late.control.views import State, StepView, TaskInGroup, TaskView
from late.model.task import Final, TaskId
from late.schema.engine import reading
from late.store.common.open_tasks import outline_of
from late.store.common.suspects import suspects_of

_ENDS = (*get_args(Final), "purged")
_ENDED = "it has ended, and only a kept history says when"
_LEFT = "its record has left the log, and nothing says whether it had been read"
_SHORT = "the journal has only the number of the tasks that were open"
_BACK = "dead letters or records were redriven, purged or read again since"
_PRESENT = "only its present is kept"


def show(
    moment: Moment, task_id: str, *, payload: bool, group: str | None, everywhere: bool
) -> TaskView:
    """Return a task as it stood at a moment of which the journal tells.

    Raises:
        ConfigError: the detail of the journal does not reach back so far.
        InvalidName: not a task id.
    """
    now = task.show(moment.engine, task_id, payload=payload, group=group, everywhere=everywhere)
    not_known: list[NotKnown] = []
    if now.workflow:
        not_known.append(NotKnown("workflow", _PRESENT))
    groups = []
    with reading(moment.engine) as connection:
        row = find_in_log(connection, task_id, everywhere=everywhere)
        for each in now.groups:
            past = past_of(connection, moment.at_us, (each.group, now.shard_id))
            view, missing = _in_group(connection, past, now, each, row)
            path = f"groups[{each.group}]"
            not_known += [NotKnown(f"{path}.{field}", why) for field, why in missing.items()]
            groups.append(view)
    as_of = moment.as_of(*not_known)
    return msgspec.structs.replace(now, groups=tuple(groups), workflow=(), as_of=as_of)


def _in_group(
    connection: Connection, past: Past, now: TaskView, group: TaskInGroup, row: Row | None
) -> tuple[TaskInGroup, dict[str, str]]:
    """Return how the task stood in a group, and what is not known of that, with the reasons."""
    at_us = past.at_us
    stood = past.stood.get((group.group, now.shard_id))
    steps = tuple(step for step in group.history if step.at_us <= at_us)
    if now.created_at_us is not None and now.created_at_us > at_us:
        return TaskInGroup(group.group, "unknown"), {}
    errors = tuple(error for error in group.errors if error.at_us <= at_us)
    view = TaskInGroup(
        group=group.group,
        state="unknown",
        errors=errors,
        owner=stood.owner if stood else None,
        history=steps,
        attempts=max((step.detail.attempt or 0 for step in steps), default=None),
    )
    if stood is None:
        return view, {"state": "the group began later in this shard"}
    marks = {each.task_id: each.deaths for each in suspects_of(stood.then.suspects)}
    if deaths := marks.get(TaskId(now.task_id), 0):
        view = msgspec.structs.replace(view, suspect=True, deaths=deaths)
    covered = bool(steps or errors)
    if row is not None:
        this = select(log_of(connection).c.task_id).where(key_of(connection, row))
        waits = this.where(beyond(connection, now.shard_id, stood.then.cursor))
        if connection.execute(waits).first() is not None:
            return msgspec.structs.replace(view, state="logged"), {}
        covered = True
    back = past.letters_moved or stood.since.redriven or stood.since.anew
    state, why = _state(now.task_id, group, stood, steps, at_us, covered=covered, back=back)
    if state is None:
        return view, {"state": why}
    missing = {} if steps else {"attempts": _PRESENT}
    if state == "dead":
        if steps and steps[-1].event == "dead":
            died_us, reason = steps[-1].at_us, steps[-1].detail.reason
        else:
            died_us, reason = group.dead_at_us or 0, group.reason
        view = msgspec.structs.replace(view, state=state, dead_at_us=died_us, reason=reason)
        return view, missing
    if state == "settled":
        return msgspec.structs.replace(view, state=state, outcome=why), {}
    if state == "parked":
        missing |= dict.fromkeys(("due_at_us", "reason", "held_key"), _PRESENT)
    return msgspec.structs.replace(view, state=state), missing


def _state(
    task_id: str,
    group: TaskInGroup,
    stood: Stood,
    steps: tuple[StepView, ...],
    at_us: int,
    *,
    covered: bool,
    back: bool,
) -> tuple[State | None, str]:
    """Return the state of a task that is not in the log beyond the cursor, with its outcome if it
    had ended; or None, and why that is not known. Pure.

    Args:
        covered: the cursor of then covers it.
        back: what has left a place since may have come back to it.
    """
    opened = open_of(stood.then.open)
    if any(each.task_id == task_id for each in opened):
        return "open", ""
    if group.dead_at_us is not None and group.dead_at_us <= at_us:
        return "dead", ""
    last = steps[-1].event if steps else None
    if last == "dead":
        return "dead", ""
    if last in _ENDS:
        return "settled", last or ""
    if not covered:
        return None, _LEFT
    if last is None and group.state in ("settled", "unknown", "passed"):
        return ("passed", "") if group.state == "passed" else (None, _ENDED)
    if last is None and back:
        return None, _BACK
    if len(opened) != outline_of(stood.then.open).count:
        return None, _SHORT
    return "parked", ""
