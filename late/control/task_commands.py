"""Operators' commands about tasks: a record in the log of the task's shard, and an audit row."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, select

from late import outbox
from late.control import audit
from late.control.database import Part, on_engine
from late.control.past import task as past
from late.control.past.moment import moment_of
from late.control.sql.rows import object_of
from late.control.status import results, task
from late.control.status.workflow import PARKED
from late.control.task_list import commands, pages
from late.control.views import TaskView
from late.errors import ConfigError, Conflict, InvalidPayload, InvalidSchedule
from late.model.ids import shard_of
from late.model.task import TaskId
from late.model.validation import is_name, is_too_far_ahead
from late.model.workflow import STARTED, WAITING
from late.outbox.cancels import insert_cancel
from late.outbox.execute import run
from late.payload.command import Command
from late.schema.engine import write
from late.schema.tables import dead


def send(engine: Engine, command: Command) -> TaskId:
    """Append one command to the log, and return its id.

    Raises:
        InvalidName: the text is not a task id.
        ConfigError: the group's name is not valid.
        InvalidSchedule: the new due time is more than 366 days ahead.
    """
    if command.at_us is not None and is_too_far_ahead(command.at_us):
        raise InvalidSchedule("the new due time is more than 366 days ahead")
    if command.group is not None and not is_name(command.group):
        raise ConfigError(f"group {command.group[:64]!r}: not a name")
    shard_of(command.task_id)
    return write(engine, partial(_append, command))


def _append(command: Command, connection: Connection) -> TaskId:
    if command.kind == "cancel" and connection.dialect.name != "cockroachdb":
        command_id = run(connection, partial(insert_cancel, command))[0]
    else:
        [command_id] = outbox.insert(connection, [command.row()])
    said = {"command": command_id, "group": command.group, "at_us": command.at_us}
    if command.payload is not None:
        said["payload_bytes"] = len(command.payload)
    audit.record(
        connection,
        action=f"task.{command.kind}",
        subject=f"task:{command.task_id}",
        after={key: value for key, value in said.items() if value is not None},
    )
    return command_id


def why_useless(found: TaskView, *, cancels: bool = False) -> str | None:
    """Return why to cancel or reschedule this task changes nothing, as far as that is known."""
    states = {group.state for group in found.groups}
    if cancels and any(stage.state in (WAITING, STARTED, PARKED) for stage in found.workflow):
        return None  # It takes the rest of the workflow.
    if states == {WAITING}:
        return "it waits for other tasks of its workflow, and has no due time"
    if states <= {"unknown", "settled"}:
        if "settled" in states:
            return (
                "it has ended, or its group began or was reset behind it, so this will change "
                "nothing"
            )
        return (
            "it is not where its id says (see `late show --everywhere`): if it has ended, or its "
            "group began or was reset behind it, or it never was, this will change nothing"
        )
    if states == {"dead"}:
        return "it is a dead letter: `late dead redrive` and `late dead edit` are for it"
    return None


class TaskControl(Part):
    """One task: its state, and commands about it. See `Control` for what all methods raise."""

    def show(
        self,
        task_id: str,
        *,
        payload: bool = False,
        group: str | None = None,
        everywhere: bool = False,
        as_of: str | None = None,
    ) -> TaskView:
        """Read what is known of a task; see `late.control.status.task.show`.

        Args:
            as_of: a past moment, as a time or an age; see `moment_of` for what it raises.
        """
        engine = self._database.engine
        asked: Any = {"payload": payload, "group": group, "everywhere": everywhere}
        if as_of is None:
            return task.show(engine, task_id, **asked)
        moment = moment_of(engine, as_of)
        if not moment.versions:
            return past.show(moment, task_id, **asked)
        found = task.show(moment.engine, task_id, **asked)
        return msgspec.structs.replace(found, as_of=moment.as_of())

    state = on_engine(task.state)
    failure = on_engine(task.failure)
    result = on_engine(results.result)
    results = on_engine(results.results)
    holder = on_engine(task.holder)
    find = on_engine(pages.read_page)
    cancel_all = on_engine(commands.cancel_all)
    reschedule_all = on_engine(commands.reschedule_all)

    def cancel(self, task_id: str, *, group: str | None = None) -> TaskId:
        """Ask that no attempt of a task starts any more, and return the command's id.

        This is `late.App.cancel` in its own transaction.
        """
        return send(self._database.engine, Command("cancel", TaskId(task_id), group))

    def reschedule(self, task_id: str, due_at_us: int, *, group: str | None = None) -> TaskId:
        """Give a task another due time, by the database's clock, and return the command's id.

        This is `late.App.reschedule` in its own transaction.
        """
        command = Command("reschedule", TaskId(task_id), group, at_us=due_at_us)
        return send(self._database.engine, command)

    def edit(self, task_id: str, payload: bytes, *, group: str | None = None) -> list[TaskId]:
        """Send a dead letter back with another payload, which must be a JSON object.

        It writes one command for each group in which the task is dead, and returns their ids.

        Raises:
            ConfigError: the task is not a dead letter, or its old payload is not plain JSON.
            InvalidPayload: the new payload is not a JSON object.
        """
        try:
            given = msgspec.json.decode(payload)
        except msgspec.DecodeError as error:
            raise InvalidPayload(f"the payload is not JSON: {error}") from None
        except RecursionError:
            raise InvalidPayload("the payload is nested too deeply") from None
        if not isinstance(given, dict):
            raise InvalidPayload("the payload must be a JSON object: arguments by name")
        shard_id = shard_of(task_id)

        def work(connection: Connection) -> list[TaskId]:
            found = connection.execute(
                select(dead.c.consumer_group, dead.c.options).where(
                    dead.c.shard_id == shard_id,
                    dead.c.task_id == task_id,
                    *([] if group is None else [dead.c.consumer_group == group]),
                )
            ).all()
            if not found:
                raise Conflict(f"no dead letter {task_id}" + (f" in {group}" if group else ""))
            if any((object_of(row.options) or {}).get("codec") for row in found):
                raise Conflict(
                    f"the payload of {task_id} is not plain JSON: redrive it from the "
                    "application, by app.redrive(tx, task_id, call=...)"
                )
            return [
                _append(
                    Command("redrive", TaskId(task_id), row.consumer_group, payload=payload),
                    connection,
                )
                for row in found
            ]

        return write(self._database.engine, work)
