"""The actions of the page.

An action on many tasks shows a preview that says what it does to how many, and is done on a second
press; so is the retry of a task that has killed workers. An action that cannot be undone needs a
name to be typed. No other action asks. A form that was made before something changed is refused,
with a message.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from late.concurrency import in_thread
from late.control import Filter, audit
from late.control.queue_settings import SettingsChange
from late.control.views import Count
from late.errors import ConfigError, Conflict, InvalidTask
from late.model.access.rights import Role
from late.model.access.rules import check_queue, check_workflow
from late.model.queue_settings import Kind, encode
from late.web.access.csrf import Stale
from late.web.formats import when
from late.web.models import dead_letters as dead
from late.web.models import queues, shards
from late.web.page_context import PageContext, Visitor, back
from late.web.queries import real_of, whole_of
from late.web.task_views import TaskActions, TaskScreens
from late.web.views import Screens
from late.web.workflow_views import WorkflowActions, check_letters

T = TypeVar("T")
Fields = Mapping[str, str]
Action = Callable[[Request, Visitor, Fields], Awaitable[Response]]
REPLAY_FIELDS = ("since", "until", "rate")
RESET_FIELDS = ("place", "moment")
KILLED = "killed_worker"
"""The reason of a dead letter under which workers died: a retry may kill others."""
MOVE_FIELDS = (*dead.FIELDS, "before", "limit", "rate")


class Actions:
    """Routes that change something.

    Each gets a form that was checked, from a visitor who may change things.
    """

    def __init__(self, context: PageContext, screens: Screens, lists: TaskScreens) -> None:
        self._context = context
        self._screens = screens
        self._tasks = TaskActions(context, lists, self._do)
        self._workflows = WorkflowActions(context, self._do)

    def routes(self) -> dict[str, Action]:
        """The actions by their path below the page's root."""
        actions: dict[str, Action] = {
            "tasks/{task_id:text}/cancel": self.cancel,
            "tasks/{task_id:text}/redrive": self.redrive_one,
            "tasks/{task_id:text}/edit": self.edit,
            "workflows/{task_id:text}/cancel": self._workflows.cancel,
            "groups/{group:text}/reset": self.reset,
            "groups/{group:text}/replay": self.replay,
            "groups/{group:text}/stop-replay": self.stop_replay,
        }
        for kind in ("queue", "target"):
            actions[f"{kind}s/{{name:text}}/knobs"] = _bound(self.settings, kind)
            actions[f"{kind}s/{{name:text}}/undo"] = _bound(self.undo, kind)
        for command in ("cancel", "reschedule", "redrive"):
            actions[f"tasks/{command}"] = _bound(self._tasks.command, command)
        for command in ("redrive", "purge"):
            actions[f"dead/{command}"] = _bound(self.move, command)
        for command in ("pause", "resume"):
            actions[f"groups/{{group:text}}/{command}"] = _bound(self.group, command)
        for command in ("pause", "resume", "run"):
            actions[f"schedules/{{schedule:text}}/{command}"] = _bound(self.schedule, command)
        return actions

    async def _do(self, visitor: Visitor, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call the control plane in the visitor's name, and make the next page look anew."""
        with audit.acting(visitor.caller.actor):
            result = await in_thread(call, *args, **kwargs)
        self._context.snapshots.forget()
        return result

    # --- queues and targets

    async def settings(self, request: Request, visitor: Visitor, fields: Fields) -> Response:
        name, kind = request.path_params["name"], _kind(request)
        show = self._screens.queue if kind == "queue" else self._screens.target
        turn = self._context.control.queues.change
        sent = {key: text for key, text in fields.items() if key.startswith(queues.PREFIX)}
        now = await in_thread(self._screens.settings, kind, name)
        if fields.get("before") != encode(now):
            raise Stale("the knobs were changed since this page was made: look at them again")
        try:
            changes = queues.changes(now, fields)
            turned = await in_thread(turn, kind, name, changes, dry_run=True)
        except InvalidTask as error:
            return await show(request, visitor, problem=str(error), status=400, sent=sent)
        if fields.get("do") == "apply":
            turned = await self._do(visitor, turn, kind, name, changes)
            return back(f"{kind}s/{quote(name, safe='')}", _word(turned, "turned"))
        effects = await self._effects(name, turned) if kind == "queue" else []
        return await show(
            request, visitor, preview=queues.preview(turned.before, turned.after), sent=sent,
            effects=effects,
        )  # fmt: skip

    async def _effects(self, name: str, turned: SettingsChange) -> list[str]:
        seen = await self._context.snapshots.seen()  # of the queue that is changed
        ours = [queue for queue in seen.status.queues if queue.queue == name]
        paces = [pace for (_, queue), pace in seen.paces.items() if queue == name]
        return queues.effects(turned.before, turned.after, ours, paces)

    async def undo(self, request: Request, visitor: Visitor, fields: Fields) -> Response:
        name, kind = request.path_params["name"], _kind(request)
        asked = fields.get("audit", "")
        known = await in_thread(
            self._context.control.audit.entries, subject=f"{kind}:{name}", limit=1_000
        )
        if asked not in {entry.audit_id for entry in known}:
            raise ConfigError(f"that change was not one of this {kind}")
        turned = await self._do(visitor, self._context.control.queues.rollback, asked)
        return back(f"{kind}s/{quote(name, safe='')}", _word(turned, "undone"))

    # --- dead letters

    async def move(self, request: Request, visitor: Visitor, fields: Fields) -> Response:
        """Send dead letters back, or delete them."""
        command, screen, problem = request.path_params["command"], self._screens.dead, ""
        sent = {name: fields[name] for name in MOVE_FIELDS if fields.get(name)}
        try:
            which, how = dead.which(fields), _how(command, fields)
            role: Role = "admin" if command == "purge" else "operate"
            await check_letters(self._context, visitor, which, role)
            call = (
                self._context.control.dead_letters.purge
                if command == "purge"
                else self._context.control.dead_letters.redrive
            )
            if fields.get("do") == "apply":
                problem = _unsure("purge", fields) if command == "purge" else ""
                if not problem:
                    moved = await self._do(visitor, call, which, **how)
                    screen_of = f"workflows/{which.workflow}" if which.workflow else "dead"
                    if not moved.count:
                        return back(screen_of, "none")
                    rate = how.get("rate")
                    word = "purged" if command == "purge" else "paced" if rate else "redriven"
                    return back(screen_of, word, count=moved.count, rate=rate)
            # Tasks that die while somebody reads the preview are not part of it.
            sent.setdefault("before", str(await in_thread(self._context.control.now)))
            which = dead.which(sent)
            rehearsal = await in_thread(call, which, dry_run=True, **how)
            killers = Count()
            if command == "redrive" and which.reason in (None, KILLED):
                poison = msgspec.structs.replace(which, reason=KILLED)
                killers = (await in_thread(call, poison, dry_run=True, **how)).counted
        except ConfigError as error:
            return await screen(request, visitor, problem=str(error), status=400, sent=sent)
        return await screen(
            request, visitor, rehearsal=rehearsal, command=command, sent=sent, problem=problem,
            killers=killers, status=400 if problem else 200,
        )  # fmt: skip

    # --- tasks

    async def _task(self, request: Request, visitor: Visitor) -> str:
        """The id of the task in the path, whose queue the visitor may operate."""
        task_id: str = request.path_params["task_id"]
        if not visitor.caller.may_all("operate"):
            found = await in_thread(self._context.control.tasks.show, task_id)
            check_queue(visitor.caller, found.queue, "operate")
            check_workflow(visitor.caller, found.workflow)
        return task_id

    async def cancel(self, request: Request, visitor: Visitor, fields: Fields) -> Response:
        task_id = await self._task(request, visitor)
        await self._do(
            visitor, self._context.control.tasks.cancel, task_id, group=fields.get("group")
        )
        return back(f"tasks/{task_id}", "cancelled")

    async def redrive_one(self, request: Request, visitor: Visitor, fields: Fields) -> Response:
        task_id, group = await self._task(request, visitor), fields.get("group") or None
        which = Filter(task_id=task_id, group=group)
        if fields.get("do") != "apply":
            found = await in_thread(self._context.control.tasks.show, task_id)
            for each in found.groups:
                if each.reason == KILLED and each.state == "dead" and group in (None, each.group):
                    return await self._screens.task(request, visitor, ask=each)
        moved = await self._do(visitor, self._context.control.dead_letters.redrive, which)
        if not moved.count:
            raise Stale("it is no dead letter any more")
        return back(f"tasks/{task_id}", "redriven", count=moved.count)

    async def edit(self, request: Request, visitor: Visitor, fields: Fields) -> Response:
        task_id = await self._task(request, visitor)
        text, group = fields.get("payload", ""), fields.get("group") or None
        try:
            await self._do(
                visitor, self._context.control.tasks.edit, task_id, text.encode(), group=group
            )
        except (ConfigError, InvalidTask) as error:
            return await self._screens.task(
                request, visitor, problem=str(error), status=400, payload=text, whole=True
            )
        return back(f"tasks/{task_id}", "edited")

    # --- groups and schedules

    async def group(self, request: Request, visitor: Visitor, fields: Fields) -> Response:
        name, command = request.path_params["group"], request.path_params["command"]
        control = self._context.control
        call = control.groups.pause if command == "pause" else control.groups.resume
        await self._do(visitor, call, name)
        return back(f"groups/{quote(name, safe='')}", f"{command}d")

    async def reset(self, request: Request, visitor: Visitor, fields: Fields) -> Response:
        name, problem = request.path_params["group"], ""
        sent = {field: fields.get(field, "") for field in RESET_FIELDS}
        try:
            to = shards.reset_to(sent["place"], sent["moment"])
            if fields.get("do") == "apply":
                problem = _unsure(name, fields)
                if not problem:
                    await self._do(visitor, self._context.control.groups.reset, name, to)
                    return back(f"groups/{quote(name, safe='')}", "reset")
            found = await in_thread(self._context.control.groups.reset, name, to, dry_run=True)
        except ConfigError as error:
            return await self._screens.group(
                request, visitor, problem=str(error), status=400, sent=sent
            )
        rows = [(s.again, s.skipped, s.unparked, s.dead, s.kept) for s in found.shards]
        shown = (when(to) or str(to)) if isinstance(to, int) else to
        return await self._screens.group(
            request, visitor, reset=found, reset_shown=shown, totals=shards.totals(rows), sent=sent,
            problem=problem, status=400 if problem else 200,
        )  # fmt: skip

    async def replay(self, request: Request, visitor: Visitor, fields: Fields) -> Response:
        """Replay a window: a preview, and then the deed, with which this process carries on."""
        name, groups = request.path_params["group"], self._context.control.groups
        asked = {field: fields.get(field, "") for field in REPLAY_FIELDS}
        try:
            span = shards.moment(asked["since"], "From"), shards.moment(asked["until"], "Until")
            rate = real_of(asked, "rate")
            if rate is None:
                raise ConfigError("a replay has a rate: give the tasks a second")
            last = await in_thread(groups.window_state, name)
            again = last is not None and last.finished_us is not None
            unfinished = None if again else last
            if unfinished and (unfinished.since_us, unfinished.until_us) != span:
                raise ConfigError("a replay of another window is under way: cancel it first")
            found = await in_thread(
                groups.replay_window, name, *span, rate=rate, dry_run=True, again=again
            )
            if fields.get("do") == "apply":
                if fields.get("before") != shards.mark_of(last):
                    raise Stale("a replay has begun or ended since this page was made")
                total = found.copied + Count(unfinished.copied if unfinished else 0)
                await self._context.replays.begin(
                    name, *span, rate, again=again, actor=visitor.caller.actor, total=total
                )
                self._context.snapshots.forget()
                return back(f"groups/{quote(name, safe='')}", "replayed")
        except (ConfigError, Conflict) as error:
            return await self._screens.group(
                request, visitor, problem=str(error), status=400, asked=asked
            )
        return await self._screens.group(request, visitor, replay=found, asked=asked)

    async def stop_replay(self, request: Request, visitor: Visitor, fields: Fields) -> Response:
        name = request.path_params["group"]
        try:
            await self._do(visitor, self._context.control.groups.cancel_window, name)
        except Conflict as error:
            raise Stale(str(error)) from None
        self._context.replays.leave(name)
        return back(f"groups/{quote(name, safe='')}", "replay_stopped")

    async def schedule(self, request: Request, visitor: Visitor, fields: Fields) -> Response:
        name, command = request.path_params["schedule"], request.path_params["command"]
        control = self._context.control
        calls: dict[str, tuple[Callable[[str], object], str]] = {
            "pause": (control.schedules.pause, "paused"),
            "resume": (control.schedules.resume, "resumed"),
            "run": (control.schedules.run, "ran"),
        }
        if not visitor.caller.may_all("operate"):
            known = await in_thread(control.schedules.all)
            queue = next((each.queue for each in known if each.name == name), None)
            check_queue(visitor.caller, queue, "operate")
        call, word = calls[command]
        await self._do(visitor, call, name)
        return back("schedules", word)


def _bound(action: Action, command: str) -> Action:
    """Bind `action` to one command, or to one kind of thing."""

    async def call(request: Request, visitor: Visitor, fields: Fields) -> Response:
        request.path_params["command"] = command
        return await action(request, visitor, fields)

    return call


def _how(command: str, fields: Fields) -> dict[str, Any]:
    """The form's other fields than the filter, as arguments of the control plane."""
    how: dict[str, Any] = {"limit": whole_of(fields, "limit")}
    return how if command == "purge" else {**how, "rate": real_of(fields, "rate")}


def _unsure(name: str, fields: Fields) -> str:
    """The problem with the name that was typed to confirm; empty if it is right."""
    try:
        shards.confirmed(name, fields.get("confirm", ""))
    except ConfigError as error:
        return str(error)
    return ""


def _kind(request: Request) -> Kind:
    return "target" if request.path_params["command"] == "target" else "queue"


def _word(turned: SettingsChange, word: str) -> str:
    return word if turned.audit_id is not None else "same"
