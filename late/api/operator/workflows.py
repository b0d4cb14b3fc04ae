"""Workflows: a list of them, and one as a whole, by the id of any of its tasks."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from late.api.errors import NotFound
from late.api.operator.operation import Ask, Nothing, Operation, Poll, operation
from late.api.operator.tasks import Commanded
from late.api.operator.values import Listed, Name, TaskIdText, WaitS
from late.control import Filter
from late.control.views import Moved
from late.control.workflows import State, WorkflowPage, WorkflowStages, narrowed
from late.model.access.rules import OPERATE, VIEW, check_workflow
from late.model.task import DEFAULT_GROUP

WORKFLOW = "/v1/workflows/{task_id}"


class ListWorkflows(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Workflows are listed: all, or those in one state or with this first task."""

    state: State | None = None
    name: Name | None = None
    limit: Listed = 50
    after: TaskIdText | None = None


class ShowWorkflow(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A workflow is looked at; with `wait_s` until nothing of it runs any more by itself."""

    wait_s: WaitS = 0.0


class RedriveWorkflow(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The dead letters of a workflow are redriven, so that it goes on."""

    dry_run: bool = False


def _whole(ask: Ask[Any]) -> WorkflowStages:
    """Return the workflow of the task in the path, of which the caller may see something.

    Raises:
        NotFound: there is none that the caller may see.
    """
    found = ask.control.workflows.show(ask.path["task_id"])
    if found is None or _narrowed(ask, found) is None:
        raise NotFound("no workflow has this task: it was removed, rolled back, or never was")
    return found


def _narrowed(ask: Ask[Any], found: WorkflowStages) -> WorkflowStages | None:
    return narrowed(found, partial(ask.caller.may, "view"))


def _changed(ask: Ask[Any]) -> WorkflowStages:
    """Return the workflow of the task in the path, all of whose queues the caller may operate.

    Raises:
        NotFound, Hidden, Denied: see `_whole` and `check_workflow`.
    """
    found = _whole(ask)
    check_workflow(ask.caller, found.stages)
    return found


@operation("GET", "/v1/workflows", VIEW, "workflow list")
def list_workflows(ask: Ask[ListWorkflows]) -> WorkflowPage:
    """List workflows, the newest first, a page at a time."""
    asked, caller = ask.value, ask.caller
    return ask.control.workflows.find(
        asked.state,
        name=asked.name,
        after=asked.after,
        limit=asked.limit,
        sees=None if caller.may_all("view") else partial(caller.may, "view"),
    )


@operation("GET", WORKFLOW, VIEW, "workflow show", "workflow wait")
def show_workflow(ask: Ask[ShowWorkflow]) -> Poll[WorkflowStages]:
    """Show a workflow with the state of each of its tasks."""
    ends = False

    def look() -> WorkflowStages:
        nonlocal ends
        whole = _whole(ask)
        ends = whole.running == 0  # Tasks count that the caller may not see.
        found = _narrowed(ask, whole)
        assert found is not None
        return found

    return Poll(look, lambda _: ends, ask.value.wait_s)


@operation("POST", f"{WORKFLOW}/cancel", OPERATE, "workflow cancel")
def cancel_workflow(ask: Ask[Nothing]) -> Commanded:
    """Ask that no task of a workflow starts any more."""
    found = _changed(ask)
    over = not found.running and not found.waiting
    return Commanded(
        command=ask.control.tasks.cancel(ask.path["task_id"]),
        note="it has ended, so this will change nothing" if over else None,
    )


@operation("POST", f"{WORKFLOW}/redrive", OPERATE, "workflow redrive")
def redrive_workflow(ask: Ask[RedriveWorkflow]) -> Moved:
    """Send all dead letters of a workflow back to run again, so that it goes on."""
    which = Filter(workflow=_changed(ask).workflow_id, group=DEFAULT_GROUP)
    return ask.control.dead_letters.redrive(which, dry_run=ask.value.dry_run)


OPERATIONS: tuple[Operation, ...] = (
    list_workflows, show_workflow, cancel_workflow, redrive_workflow,
)  # fmt: skip
