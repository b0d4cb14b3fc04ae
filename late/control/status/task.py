"""One task, in every place where it can be: found by the shard and the moment in its id.

No statement here reads a whole table: rows of the timers, the dead letters and the results are
asked for by their keys, the journal for its last row alone. What that row covers, and no place
holds, is settled; so no other row of the journal is read. A row of the log is looked for near the
moment in its id (`finding`), so an id whose row is gone costs a look through some minutes of its
shard.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec
from sqlalchemy import Connection, Engine, select

from late.control.sql import beyond_cursor, log_lookup
from late.control.sql.last_settlement import Journal, journal
from late.control.sql.positions import registered, taken
from late.control.sql.rows import errors_of, log_of, object_of, open_of, payload_of
from late.control.sql.shards import groups_of
from late.control.status.results import kept
from late.control.status.workflow import in_default_group, stages_of
from late.control.views import StepView, TaskInGroup, TaskView
from late.model.ids import made_at_us, shard_of
from late.model.task import DEFAULT_GROUP, HELD_US, Final, StepDetail, TaskId
from late.schema.engine import reading
from late.schema.tables import dead, history, lease, timer, unique
from late.store.common.suspects import suspects_of

_detail = msgspec.json.Decoder(StepDetail).decode


class _Ended(msgspec.Struct):
    """The part of a kept result that is read: never the value, which may be confidential."""

    outcome: str


_ended = msgspec.json.Decoder(_Ended).decode


def show(
    engine: Engine,
    task_id: str,
    *,
    payload: bool = False,
    group: str | None = None,
    everywhere: bool = False,
) -> TaskView:
    """Read what is known of a task, by keys and the time in its id.

    A task that is not where its id says has the state `unknown`.

    Args:
        payload: include the payload, which may hold what not everyone should read.
        group: only how it stands there: `unknown`, if there is no such group.
        everywhere: look through all of its shard's log for a row that is not where its id says.

    Raises:
        InvalidName: not a task id.
    """
    shard_id = shard_of(task_id)
    with reading(engine) as connection:
        row = logged = log_lookup.find_in_log(connection, task_id, everywhere=everywhere)
        groups = []
        workflow = stages_of(connection, task_id)
        own_stage = next((each for each in workflow if each.task_id == task_id), None)
        for name in groups_of(connection) if group is None else (group,):
            last = journal(connection, name, shard_id)
            view, found = _in_group(connection, name, shard_id, task_id, last, logged)
            view = _with_traces(connection, _with_marks(view, last, task_id), task_id)
            view = in_default_group(view, own_stage)
            row = row or found
            if payload and row and found and found["payload"] != row["payload"]:
                own = payload_of(found["payload"], object_of(found["options"]))
                view = msgspec.structs.replace(view, payload=own)
            groups.append(view)
    found_view = _view(task_id, shard_id, tuple(groups), row, payload)
    if own_stage is None:
        return found_view
    name, queue = found_view.name or own_stage.name, found_view.queue or own_stage.queue
    return msgspec.structs.replace(found_view, name=name, queue=queue, workflow=workflow)


def state(engine: Engine, task_id: str, group: str) -> str:
    """Read where a task stands in a group: the state of `show`, without reading payload or headers.

    Raises:
        InvalidName: not a task id.
    """
    shard_id = shard_of(task_id)
    with reading(engine) as connection:
        logged = log_lookup.find_in_log(connection, task_id, bare=True)
        stages = stages_of(connection, task_id)
        own_stage = next((each for each in stages if each.task_id == task_id), None)
        last = journal(connection, group, shard_id)
        view, _ = _in_group(connection, group, shard_id, task_id, last, logged, bare=True)
        view = _with_traces(connection, view, task_id)
    return in_default_group(view, own_stage).state


class Failure(msgspec.Struct, frozen=True):
    """Why a task is a dead letter."""

    task_id: str
    queue: str
    name: str
    reason: str
    """A word that does not change, such as `attempts_exhausted`."""
    attempts: int
    error: str | None
    """The last error, as the dead letter has it: scrubbed; None if no attempt has raised one."""


def failure(engine: Engine, task_id: str, group: str) -> Failure | None:
    """Read why a task is a dead letter of a group; None if it is none.

    Raises:
        InvalidName: not a task id.
    """
    asked = select(dead.c.queue, dead.c.name, dead.c.reason, dead.c.attempts, dead.c.errors).where(
        dead.c.consumer_group == group,
        dead.c.shard_id == shard_of(task_id),
        dead.c.task_id == task_id,
    )
    with reading(engine) as connection:
        row = connection.execute(asked).first()
    if row is None:
        return None
    errors = errors_of(row.errors)
    error = errors[-1].error if errors else None
    return Failure(task_id, row.queue, row.name, row.reason, row.attempts, error)


def _steps(connection: Connection, name: str, task_id: str) -> tuple[StepView, ...]:
    rows = connection.execute(
        select(history)
        .where(history.c.consumer_group == name, history.c.task_id == task_id)
        .order_by(history.c.number)
    )
    return tuple(
        StepView(row.number, row.at_us, row.event, row.worker,
                 _detail(row.detail) if row.detail else StepDetail())
        for row in rows
    )  # fmt: skip


def _with_marks(view: TaskInGroup, last: Journal, task_id: str) -> TaskInGroup:
    """Add the marks in the journal: they tell what ran when a worker died, wherever the task is."""
    marks = {each.task_id: each.deaths for each in suspects_of(last.suspects)}
    deaths = marks.get(TaskId(task_id), 0)
    if not deaths or view.state not in ("logged", "open", "parked"):
        return view
    return msgspec.structs.replace(view, suspect=True, deaths=max(deaths, view.deaths or 0))


def _with_traces(connection: Connection, view: TaskInGroup, task_id: str) -> TaskInGroup:
    """Add history and result, by which a task whose row is gone from the log may still be known."""
    steps = _steps(connection, view.group, task_id)
    if view.state not in ("unknown", "settled"):
        return msgspec.structs.replace(view, history=steps)
    ended = steps[-1].event if steps and steps[-1].event in (*get_args(Final), "purged") else None
    row = kept(connection, [task_id], view.group).get(task_id)
    outcome = ended if row is None else _ended(row).outcome
    state = view.state if outcome is None else "settled"
    return msgspec.structs.replace(view, state=state, outcome=outcome, history=steps)


def holder(engine: Engine, unique_key: str) -> TaskId | None:
    """Read which task holds a unique key; None if none does."""
    with reading(engine) as connection:
        found = connection.execute(
            select(unique.c.task_id).where(unique.c.unique_key == unique_key)
        ).scalar()
    return None if found is None else TaskId(str(found))


def _in_group(
    connection: Connection,
    name: str,
    shard_id: int,
    task_id: str,
    last: Journal,
    logged: log_lookup.Row | None,
    *,
    bare: bool = False,
) -> tuple[TaskInGroup, dict[str, Any] | None]:
    owner = connection.execute(
        select(lease.c.owner).where(lease.c.consumer_group == name, lease.c.shard_id == shard_id)
    ).scalar()
    for table, state in ((dead, "dead"), (timer, "parked")):
        found = connection.execute(
            select(*log_lookup.without_body(table) if bare else table.c).where(
                table.c.consumer_group == name,
                table.c.shard_id == shard_id,
                table.c.task_id == task_id,
            )
        ).first()
        if found is not None:
            row = dict(found._mapping)
            due = row.get("due_at_us")
            return (
                TaskInGroup(
                    group=name,
                    state="dead" if state == "dead" else "parked",
                    reason=row["reason"],
                    due_at_us=None if due == HELD_US else due,
                    dead_at_us=row.get("dead_at_us"),
                    held_key=row.get("held_key"),
                    attempts=row["attempts"],
                    deaths=row["deaths"],
                    errors=errors_of(row["errors"]),
                    owner=owner,
                ),
                row,
            )
    if any(key.task_id == task_id for key in open_of(last.open)):
        return TaskInGroup(name, "open", owner=owner), None
    if logged is None:
        return TaskInGroup(name, "unknown", owner=owner), None
    this = select(log_of(connection).c.task_id).where(log_lookup.key_of(connection, logged))
    reads = registered(connection, name).get(name)
    if reads is None and not _is_there(connection, name):
        return TaskInGroup(name, "unknown"), None
    if reads is not None and not connection.execute(this.where(*taken(connection, reads))).first():
        return TaskInGroup(name, "passed", owner=owner), None
    beyond = beyond_cursor.beyond(connection, shard_id, last.cursor)
    waits = connection.execute(this.where(beyond)).first()
    return TaskInGroup(name, "settled" if waits is None else "logged", owner=owner), None


def _is_there(connection: Connection, name: str) -> bool:
    """Return True if a group without a row of its own exists: its workers have, or had, a shard.

    The default group exists before that.
    """
    leased = select(lease.c.shard_id).where(lease.c.consumer_group == name).limit(1)
    return name == DEFAULT_GROUP or connection.execute(leased).first() is not None


def _view(
    task_id: str,
    shard_id: int,
    groups: tuple[TaskInGroup, ...],
    row: dict[str, Any] | None,
    payload: bool,
) -> TaskView:
    view = TaskView(task_id, shard_id, made_at_us(task_id), groups)
    if row is None:
        return view
    options = object_of(row["options"])
    position = row.get("position", row.get("xid", row.get("seq")))
    return msgspec.structs.replace(
        view,
        queue=row["queue"],
        name=row["name"],
        position=position,
        created_at_us=row["created_at_us"],
        payload_bytes=len(row["payload"]),
        payload=payload_of(row["payload"], options) if payload else None,
        headers=object_of(row["headers"]),
        options=options,
    )
