"""The screen of tasks, and what is done to those selected or to all that match."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, get_args
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from late.concurrency import in_thread
from late.control import Control, Filter
from late.control.dead_letters.dry_run import LOOKED
from late.control.task_list.commands import COMMANDS_MAX
from late.control.task_list.model import STATES, State, TaskFilter, key_of
from late.control.views import Moved
from late.errors import ConfigError, InvalidTask
from late.model.access.rules import check_queue, check_workflow
from late.model.task import Reason, TaskId
from late.web.models import tasks
from late.web.page_context import ROOT, PageContext, Visitor, back
from late.web.queries import groups_of, real_of

Do = Callable[..., Awaitable[Any]]
"""Calls the control plane in the visitor's name: the visitor, the call, its arguments."""
Call = Callable[..., Moved]
REASONS: tuple[str, ...] = get_args(Reason)
TIMES: Mapping[State, str] = {
    "logged": "Enqueued", "open": "Enqueued", "running": "Began", "parked": "Due", "dead": "Died",
    "done": "Ended",
}  # fmt: skip


class TaskScreens:
    """The screen of tasks. It is not live, because each visit asks every shard."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    async def shown(self, request: Request, visitor: Visitor, **more: Any) -> Response:
        """Show the tasks of one state; with an id, redirect to its task.

        `more` is a rehearsal, or the problem of an action.
        """
        asked = request.query_params
        text = asked.get("id", "").strip()
        if text:
            return RedirectResponse(f"{ROOT}tasks/{quote(text[:64], safe='')}", 303)
        model: dict[str, Any] = {"rehearsal": None, "command": "", "sent": None, **more}
        fields = model["sent"] if model["sent"] is not None else asked
        state, which = tasks.state_of(fields), tasks.which(fields)
        seen = await self._context.seen(visitor)
        groups = groups_of(seen)
        model["sent"] = tasks.kept(fields) | {"state": state, "group": which.group}
        page = None
        if model["rehearsal"] is None:
            longer_us = tasks.longer_us(state, fields)
            page = await self._page(visitor, state, which, asked.get("after"), longer_us)
        chosen = {name: fields.get(name, "")[:200] for name in tasks.FIELDS}
        return self._context.page(
            request, visitor, "tasks.html", "Tasks", page=page, state=state, states=STATES,
            groups=sorted({*groups, which.group}), chosen=chosen | {"group": which.group},
            said=tasks.said(state, fields), time_is=TIMES[state], reasons=REASONS,
            looked=LOOKED, most=COMMANDS_MAX,
            may_change=visitor.may_change("operate", which.queue), **model,
        )  # fmt: skip

    async def _page(
        self,
        visitor: Visitor,
        state: State,
        which: TaskFilter,
        after: str | None,
        longer_us: int,
    ) -> tasks.Tasks:
        if which.queue is not None:
            check_queue(visitor.caller, which.queue)
        found = await in_thread(
            self._context.control.tasks.find, state, which, after=key_of(after), limit=tasks.PAGE
        )
        caller = visitor.caller

        def ours(queue: str | None) -> bool:
            return caller.may_all("view") if queue is None else caller.may("view", queue)

        return tasks.tasks(found, ours=ours, longer_us=longer_us)


class TaskActions:
    """Actions on several tasks: a preview, and then the deed."""

    def __init__(self, context: PageContext, screens: TaskScreens, do: Do) -> None:
        self._context = context
        self._screens = screens
        self._do = do

    async def command(
        self, request: Request, visitor: Visitor, fields: Mapping[str, str]
    ) -> Response:
        """Cancel, reschedule or retry."""
        command, control = request.path_params["command"], self._context.control
        sent = tasks.kept(fields)
        try:
            state, which, only = tasks.state_of(fields), tasks.which(fields), tasks.selected(fields)
            tasks.longer_us(state, fields)  # Refused here: a command takes all that match.
            await in_thread(_check, control, visitor, command, which, only)
            if command == "redrive":
                call: Call = partial(_redrive, control, which.group, only)
            else:
                ids = tuple(map(TaskId, only)) or None
                call = await _call_of(control, command, state, which, ids, fields)
            if fields.get("do") == "apply":
                moved: Moved = await self._do(visitor, call)
                return back("tasks", f"{command}_all", count=moved.count)
            rehearsal = await in_thread(call, dry_run=True)
        except (ConfigError, InvalidTask) as error:
            return await self._screens.shown(
                request, visitor, problem=str(error), status=400, sent=sent
            )
        return await self._screens.shown(
            request, visitor, rehearsal=rehearsal, command=command, sent=sent
        )


async def _call_of(
    control: Control, command: str, state: State, which: TaskFilter,
    ids: tuple[TaskId, ...] | None, fields: Mapping[str, str],
) -> Call:  # fmt: skip
    """Return the call of the control plane with its arguments."""
    if command == "cancel":
        return partial(control.tasks.cancel_all, state, which, only=ids)
    wait_us = tasks.span_us(fields.get("at") or "0s", "in")
    due_us = await in_thread(control.now) + wait_us
    rate = real_of(fields, "rate")
    return partial(control.tasks.reschedule_all, state, which, due_us, only=ids, rate=rate)


def _check(
    control: Control, visitor: Visitor, command: str, which: TaskFilter, only: tuple[str, ...]
) -> None:
    """Refuse a visitor that may not do it to each of the tasks; blocks.

    Raises:
        ConfigError: none are selected, where only some can be meant.
        Hidden, Denied: see `check_queue`.
    """
    if command == "redrive" and not only:
        raise ConfigError("select the tasks to retry")
    if visitor.caller.may_all("operate"):
        return
    if not only:
        # The cancel of a stage takes all of its workflow, whichever queues that is in.
        check_queue(visitor.caller, None if command == "cancel" else which.queue, "operate")
    for task_id in only:
        found = control.tasks.show(task_id)
        check_queue(visitor.caller, found.queue, "operate")
        check_workflow(visitor.caller, found.workflow)


def _redrive(
    control: Control, group: str, only: tuple[str, ...], *, dry_run: bool = False
) -> Moved:
    """Retry those of some tasks that are dead letters; blocks."""
    moved: list[str] = []
    for task_id in only:
        which = Filter(task_id=task_id, group=group)
        moved += control.dead_letters.redrive(which, dry_run=dry_run).task_ids
    return Moved(len(moved), dry_run, tuple(moved))
