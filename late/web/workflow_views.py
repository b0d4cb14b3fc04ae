"""The screens of workflows, and the cancel of one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response

from late.concurrency import in_thread
from late.control import Filter
from late.control.workflows import STATES, State, WorkflowStages, narrowed
from late.model.access.rights import Role
from late.model.access.rules import Denied, Hidden, check_queue, check_workflow
from late.model.task import DEFAULT_GROUP
from late.web.models import workflows
from late.web.page_context import PageContext, Visitor, back

Do = Callable[..., Awaitable[Any]]
"""Calls the control plane in the visitor's name: the visitor, the call, its arguments."""
NONE = "No workflow that you may see has this task: it was removed, rolled back, or never was."


class WorkflowScreens:
    """The list, which is not live because each visit reads for itself, and one workflow."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    async def shown(self, request: Request, visitor: Visitor) -> Response:
        """List the newest ones, or those of one state or with one first task."""
        asked, caller = request.query_params, visitor.caller
        chosen = {name: asked.get(name, "")[:200] for name in ("state", "name")}
        found = await in_thread(
            self._context.control.workflows.find,
            cast("State | None", chosen["state"] or None),
            name=chosen["name"] or None,
            after=asked.get("after") or None,
            limit=workflows.PAGE,
            sees=None if caller.may_all("view") else partial(caller.may, "view"),
        )
        return self._context.page(
            request, visitor, "workflows.html", "Workflows", page=workflows.workflows(found),
            states=STATES, chosen=chosen,
        )  # fmt: skip

    async def one(self, request: Request, visitor: Visitor) -> Response:
        """Show the workflow of a task, as far as it is of the visitor's queues."""
        whole = await known(self._context, request.path_params["task_id"])
        found = narrowed(whole, partial(visitor.caller.may, "view"))
        if found is None:
            raise Hidden(NONE)
        now_us = await in_thread(self._context.control.now)
        return self._context.page(
            request, visitor, "workflow.html", f"Workflow {found.name or found.workflow_id}",
            live=True, row=workflows.row(found, now_us), levels=workflows.levels(found.stages),
            group=DEFAULT_GROUP, may_change=visitor.changes and _may_change(visitor, whole),
        )  # fmt: skip


class WorkflowActions:
    """The action on a whole workflow. Its dead letters are retried where those of all are."""

    def __init__(self, context: PageContext, do: Do) -> None:
        self._context = context
        self._do = do

    async def cancel(
        self, request: Request, visitor: Visitor, fields: Mapping[str, str]
    ) -> Response:
        task_id = request.path_params["task_id"]
        await _check(self._context, visitor, task_id, "operate")
        await self._do(visitor, self._context.control.tasks.cancel, task_id)
        return back(f"workflows/{task_id}", "workflow_cancelled")


async def check_letters(context: PageContext, visitor: Visitor, which: Filter, role: Role) -> None:
    """Refuse to move dead letters of queues for which the visitor lacks the role.

    Raises:
        Hidden, Denied: see `check_queue`.
    """
    if which.workflow is None or which.queue is not None or visitor.caller.may_all(role):
        check_queue(visitor.caller, which.queue, role)
    else:
        await _check(context, visitor, which.workflow, role)


async def known(context: PageContext, task_id: str) -> WorkflowStages:
    """Return the workflow of a task.

    Raises:
        Hidden: it is in none. The same is said of one that the visitor may not see.
    """
    found = await in_thread(context.control.workflows.show, task_id)
    if found is None:
        raise Hidden(NONE)
    return found


async def _check(context: PageContext, visitor: Visitor, task_id: str, role: Role) -> None:
    """Refuse what is done to a workflow that the visitor lacks the role for.

    Raises:
        Hidden, Denied: see `check_workflow`; hidden too if it is unknown.
    """
    check_workflow(visitor.caller, (await known(context, task_id)).stages, role)


def _may_change(visitor: Visitor, whole: WorkflowStages) -> bool:
    try:
        check_workflow(visitor.caller, whole.stages)
    except (Hidden, Denied):
        return False
    return True
