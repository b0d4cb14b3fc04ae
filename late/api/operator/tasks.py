"""Tasks: where one stands, its result, and commands about it."""

from __future__ import annotations

from typing import Any

import msgspec

from late.api import limits
from late.api.errors import NotFound
from late.api.operator.operation import Ask, Operation, Poll, operation
from late.api.operator.values import AsOf, Moment, Name, WaitS, check_group, known, moment_us
from late.app import results
from late.control.task_commands import why_useless
from late.control.views import TaskView
from late.errors import ConfigError
from late.model import validation as validate
from late.model.access.rights import Role
from late.model.access.rules import OPERATE, VIEW, check_queue, check_workflow, seen_by

GOING_ON = ("waiting", "logged", "open", "parked")
"""The states of a task that has not ended."""


class ShowTask(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A task is looked at; with `wait_s` until it has ended in each group, with `as_of` as it stood
    then (a time, or an age such as `2h`)."""

    group: Name | None = None
    wait_s: WaitS = 0.0
    payload: bool = False
    everywhere: bool = False
    as_of: AsOf | None = None


class AskResult(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A result is asked for."""

    group: Name | None = None
    wait_s: WaitS = 0.0


class TaskResult(msgspec.Struct, kw_only=True):
    """The end of a task; without an outcome it has not ended, or nothing is kept of it."""

    task_id: str
    group: str
    outcome: str | None = None
    value: Any = None


class Cancel(msgspec.Struct, forbid_unknown_fields=True):
    """A task is cancelled: in one group, or in all."""

    group: Name | None = None


class Reschedule(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A task gets another due time: one of `at` and `delay_s`."""

    at: Moment | None = None
    delay_s: float | None = None
    group: Name | None = None


class Commanded(msgspec.Struct, kw_only=True):
    """The owner of the task's shard was asked."""

    command: str
    note: str | None = None
    """The reason for which this will change nothing, as far as that is known."""
    due_at_us: int | None = None


class Edit(msgspec.Struct, forbid_unknown_fields=True):
    """A dead letter is redriven with other arguments."""

    payload: msgspec.Raw
    group: Name | None = None


class Edited(msgspec.Struct):
    """One command for each group in which the task was dead."""

    commands: list[str]


def _found(ask: Ask[Any], role: Role, group: str | None, *, everywhere: bool = False) -> TaskView:
    """Return the task in the path, whose queue the caller has the role for.

    Raises:
        Hidden, Denied: see `check_queue`. Of a task whose row is gone nobody knows the queue.
        NotFound: there is no such group.
    """
    if group is not None:
        check_group(ask, group)
    found = ask.control.tasks.show(ask.path["task_id"], group=group, everywhere=everywhere)
    check_queue(ask.caller, found.queue, role)
    return found


@operation("GET", "/v1/tasks/{task_id}", VIEW, "show")
def show_task(ask: Ask[ShowTask]) -> Poll[TaskView]:
    """Tell where a task stands in each group."""
    asked = ask.value
    if asked.as_of is not None and asked.wait_s:
        raise ConfigError("a past moment does not change: leave wait_s out")
    role: Role = "operate" if asked.payload or asked.everywhere else "view"
    found = _found(ask, role, asked.group, everywhere=asked.everywhere)
    if all(each.state == "unknown" for each in found.groups):
        raise NotFound("nothing is known of this task: it ended long ago, or it never was")

    def look() -> TaskView:
        view = ask.control.tasks.show(
            found.task_id,
            group=asked.group,
            payload=asked.payload,
            everywhere=asked.everywhere,
            as_of=asked.as_of,
        )
        return known(seen_by(ask.caller, view))

    def over(view: TaskView) -> bool:
        return not any(each.state in GOING_ON for each in view.groups)

    return Poll(look, over, asked.wait_s) if asked.as_of is None else Poll(look, bool, 0.0)


@operation("GET", "/v1/tasks/{task_id}/result", OPERATE)
def task_result(ask: Ask[AskResult]) -> Poll[TaskResult]:
    """Tell how a task ended and what its handler returned, where results are kept."""
    task_id, group = ask.path["task_id"], ask.value.group or ask.group
    _found(ask, "operate", group)

    def look() -> TaskResult:
        row = ask.control.tasks.result(task_id, group=group)
        if row is None:
            return TaskResult(task_id=task_id, group=group)
        kept = results.decode(row)
        value = msgspec.json.decode(kept.value)
        return TaskResult(task_id=task_id, group=group, outcome=kept.outcome, value=value)

    return Poll(look, lambda found: found.outcome is not None, ask.value.wait_s)


@operation("POST", "/v1/tasks/{task_id}/cancel", OPERATE, "cancel")
def cancel_task(ask: Ask[Cancel]) -> Commanded:
    """Ask that no attempt of a task starts any more."""
    group = ask.value.group
    found = _found(ask, "operate", group)
    check_workflow(ask.caller, found.workflow)
    useless = why_useless(found, cancels=True)
    return Commanded(
        command=ask.control.tasks.cancel(ask.path["task_id"], group=group), note=useless
    )


@operation("POST", "/v1/tasks/{task_id}/reschedule", OPERATE, "reschedule")
def reschedule_task(ask: Ask[Reschedule]) -> Commanded:
    """Ask that a task gets another due time."""
    at, delay_s, group = ask.value.at, ask.value.delay_s, ask.value.group
    if (at is None) == (delay_s is None):
        raise ConfigError("give one of at and delay_s")
    wait_us = 0 if delay_s is None else validate.delay_us(delay_s, "delay_s")
    useless = why_useless(_found(ask, "operate", group))
    due_us = ask.control.now() + wait_us if at is None else moment_us(at)
    command = ask.control.tasks.reschedule(ask.path["task_id"], due_us, group=group)
    return Commanded(command=command, note=useless, due_at_us=due_us)


@operation("POST", "/v1/tasks/{task_id}/edit", OPERATE, "dead edit", most=limits.BODY_BYTES)
def edit_task(ask: Ask[Edit]) -> Edited:
    """Send a dead letter back with other arguments."""
    group = ask.value.group
    _found(ask, "operate", group)
    payload = bytes(ask.value.payload)
    return Edited([*ask.control.tasks.edit(ask.path["task_id"], payload, group=group)])


OPERATIONS: tuple[Operation, ...] = (
    show_task, task_result, cancel_task, reschedule_task, edit_task,
)  # fmt: skip
