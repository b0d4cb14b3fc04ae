"""The screens: each asks the control plane, makes a model of the answer, and renders it."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from late.concurrency import in_thread
from late.control.dead_letters.dry_run import LOOKED
from late.errors import ConfigError
from late.model.queue_settings import LOCAL, REMOTE, Kind, QueueSettings, encode
from late.web.cost_report import HEADERS
from late.web.models import (
    cost,
    overview,
    queues,
    task,
    timers,
)
from late.web.models import (
    dead_letters as dead,
)
from late.web.models import (
    shards as places,
)
from late.web.page_context import ROOT, PageContext, Visitor
from late.web.snapshot import Snapshot

TERMS = 1_000
"""Settlements of a shard that are read to find its terms."""
DECISIONS = 100
AUDITED = 20
LINES = 50
"""Lines of a table that may be long."""


class Screens:
    """Routes that show something."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    async def overview(self, request: Request, visitor: Visitor) -> Response:
        seen = await self._context.snapshots.seen()
        return self._context.page(
            request, visitor, "overview.html", "Overview", live=True, charts=True,
            model=overview.overview(seen), points=list(self._context.snapshots.points),
            **_seen(seen),
        )  # fmt: skip

    async def queues(self, request: Request, visitor: Visitor) -> Response:
        seen = await self._context.snapshots.seen()
        asked = request.query_params
        text, group = asked.get("text", "")[:128], _group(request, seen)
        page = queues.listed(
            queues.rows(seen), text=text, group=group, after=asked.get("after", "")
        )
        return self._context.page(
            request, visitor, "queues.html", "Queues", live=True, page=page, text=text,
            group=group, groups=[each.name for each in seen.groups], **_seen(seen),
        )  # fmt: skip

    async def queue(self, request: Request, visitor: Visitor, **more: Any) -> Response:
        """Show one queue; `more` is a preview, or the problem of a change."""
        return await self._settings_page(request, visitor, "queue", **more)

    async def targets(self, request: Request, visitor: Visitor) -> Response:
        """Show the targets with settings; with a name, redirect to that target."""
        name = request.query_params.get("name", "").strip()
        if name:
            return RedirectResponse(f"{ROOT}targets/{quote(name[:128], safe='')}", 303)
        seen = await self._context.snapshots.seen()
        found = {
            name: {each.name: each.after for each in queues.preview(QueueSettings(), settings)}
            for name, settings in sorted(seen.targets.items())[:LINES]
        }
        return self._context.page(
            request, visitor, "targets.html", "Targets", targets=found, **_seen(seen)
        )

    async def target(self, request: Request, visitor: Visitor, **more: Any) -> Response:
        """Show one target; `more` as in `queue`."""
        return await self._settings_page(request, visitor, "target", **more)

    async def _settings_page(
        self, request: Request, visitor: Visitor, kind: Kind, **more: Any
    ) -> Response:
        context, name = self._context, request.path_params["name"]
        seen = await context.snapshots.seen()
        # Not those of the snapshot: a form must begin with the present values.
        settings = await in_thread(self.settings, kind, name)
        audit = await in_thread(
            context.control.audit.entries, subject=f"{kind}:{name}", limit=AUDITED
        )
        defaults = REMOTE if kind == "target" and name != "local" else LOCAL
        model: dict[str, Any] = {"preview": None, "effects": [], "sent": {}, **more}
        rows = [row for row in queues.rows(seen) if row.status.queue == name]
        return context.page(
            request, visitor, "queue.html", f"{kind.capitalize()} {name}", kind=kind, name=name,
            live=kind == "queue" and model["preview"] is None,
            rows=rows if kind == "queue" else [],
            fields=queues.form(settings, defaults, kind, model["sent"]), before=encode(settings),
            audit=audit,
            **_seen(seen), **model,
        )  # fmt: skip

    def settings(self, kind: Kind, name: str) -> QueueSettings:
        """The present settings of a queue or a target; blocks."""
        live = self._context.control.queues.live()
        return (live.queues if kind == "queue" else live.targets).get(name, QueueSettings())

    async def groups(self, request: Request, visitor: Visitor) -> Response:
        seen = await self._context.snapshots.seen()
        return self._context.page(
            request, visitor, "groups.html", "Consumer groups", live=True, groups=seen.groups,
            signals=seen.signals, level=places.group_level, **_seen(seen),
        )  # fmt: skip

    async def group(self, request: Request, visitor: Visitor, **more: Any) -> Response:
        """Show one group; `more` is a preview of a reset, or its problem."""
        name = request.path_params["group"]
        seen = await self._context.snapshots.seen()
        group = next((each for each in seen.groups if each.name == name), None)
        if group is None:
            raise ConfigError(f"no consumer group {name[:128]!r}")
        model: dict[str, Any] = {
            "reset": None, "reset_shown": "", "totals": (), "sent": {"place": "", "moment": ""},
            **more,
        }  # fmt: skip
        return self._context.page(
            request, visitor, "group.html", f"Group {name}", live=model["reset"] is None,
            group=group, level=places.group_level, **_seen(seen), **model,
        )  # fmt: skip

    async def shards(self, request: Request, visitor: Visitor) -> Response:
        seen = await self._context.snapshots.seen()
        group = _group(request, seen)
        page = places.shards(seen, group=group, after=_number(request, "after", -1))
        group = group or (page.groups[0] if page.groups else "")
        return self._context.page(
            request, visitor, "shards.html", "Shards and owners", live=True, page=page,
            group=group, **_seen(seen),
        )  # fmt: skip

    async def shard(self, request: Request, visitor: Visitor) -> Response:
        group, shard_id = request.path_params["group"], request.path_params["shard"]
        found = await in_thread(
            self._context.control.status.owners, limit=TERMS, only=(group, shard_id)
        )
        if not found.shards:
            raise ConfigError(f"no shard {shard_id} in the group {group[:128]!r}")
        return self._context.page(
            request, visitor, "shard.html", f"Shard {shard_id} of {group}",
            view=found.shards[0], seen_us=found.now_us,
        )  # fmt: skip

    async def tasks(self, request: Request, visitor: Visitor) -> Response:
        """Show a form for an id; with an id, redirect to its task."""
        text = request.query_params.get("id", "").strip()
        if text:
            return RedirectResponse(f"{ROOT}tasks/{quote(text[:64], safe='')}", 303)
        return self._context.page(request, visitor, "tasks.html", "Tasks", id="")

    async def task(self, request: Request, visitor: Visitor, **more: Any) -> Response:
        """Show one task; its payload only when asked for, and only to callers that may `operate`.

        `more` is the text that was typed as its new payload, and the problem with it.
        """
        wants = request.query_params.get("payload") == "1" and visitor.may_read
        found = await in_thread(
            self._context.control.tasks.show, request.path_params["task_id"], payload=wants
        )
        payload, whole = task.payload(found)
        model = {"payload": payload, "whole": whole, **more}
        return self._context.page(
            request, visitor, "task.html", f"Task {found.name or found.task_id}", live=not wants,
            task=found, lives=task.lives(found), **model,
        )  # fmt: skip

    async def dead(self, request: Request, visitor: Visitor, **more: Any) -> Response:
        """Show dead letters by cause; `more` is a rehearsal, or the problem of an action."""
        model: dict[str, Any] = {"rehearsal": None, "command": "", "sent": {}, **more}
        asked = model["sent"] or request.query_params
        chosen = dead.which(asked)
        found = await in_thread(
            self._context.control.dead_letters.page, chosen, limit=dead.LOOKED_AT
        )
        fields = {name: getattr(chosen, name) for name in dead.FIELDS}
        typed = {name: model["sent"].get(name, "") for name in ("limit", "rate")}
        filtered = {name: text for name, text in fields.items() if text}
        model["sent"] = filtered if model["rehearsal"] is None else model["sent"]
        return self._context.page(
            request, visitor, "dead.html", "Dead letters",
            page=dead.causes(found.letters, found.before_us), chosen=fields,
            said=dead.said(chosen), looked=LOOKED, typed=typed, filtered=filtered, **model,
        )  # fmt: skip

    async def timers(self, request: Request, visitor: Visitor) -> Response:
        """Show parked tasks. The screen is not live, because each visit asks every shard."""
        seen = await self._context.snapshots.seen()
        group = _group(request, seen)
        from_us = _number(request, "from", 0)
        found = await in_thread(
            self._context.control.status.timers,
            group=group or None,
            from_us=from_us,
            limit=timers.PAGE,
        )
        now_us = seen.status.now_us + int(self._context.snapshots.age_s * 1e6)
        return self._context.page(
            request, visitor, "timers.html", "Timers", group=group,
            groups=[each.name for each in seen.groups], page=timers.timers(found, now_us),
            **_seen(seen),
        )  # fmt: skip

    async def schedules(self, request: Request, visitor: Visitor, **more: Any) -> Response:
        after = request.query_params.get("after", "")
        found = [
            each
            for each in await in_thread(self._context.control.schedules.all)
            if each.name > after
        ]
        return self._context.page(
            request, visitor, "schedules.html", "Schedules", live=True, schedules=found[:LINES],
            following=len(found) > LINES, **more,
        )  # fmt: skip

    async def workers(self, request: Request, visitor: Visitor) -> Response:
        seen = await self._context.snapshots.seen()
        return self._context.page(
            request, visitor, "workers.html", "Workers", live=True,
            workers=seen.status.workers[:LINES], others=seen.status.workers[LINES:],
            vanished=places.vanished(seen)[:LINES], **_seen(seen),
        )  # fmt: skip

    async def autoscaler(self, request: Request, visitor: Visitor) -> Response:
        control = self._context.control
        found = await in_thread(control.autoscalers.all)
        made = await in_thread(control.autoscalers.decisions, limit=DECISIONS)
        sizes = {
            each.name: [(d.at_us / 1e6, d.to_size) for d in reversed(made)
                        if d.controller == each.name]
            for each in found
        }  # fmt: skip
        return self._context.page(
            request, visitor, "autoscaler.html", "Autoscaler", live=True, charts=True,
            controllers=found, decisions=made, sizes=sizes,
        )  # fmt: skip

    async def cost(self, request: Request, visitor: Visitor) -> Response:
        context = self._context
        await context.today.look()
        seen = await context.snapshots.seen()
        found = cost.lines(context.today.shares, seen.queues)
        return context.page(
            request, visitor, "cost.html", "Usage of today", whole=context.today.whole,
            reading=context.today.reading,
            lines=found[:LINES], rest=cost.together(found[LINES:]), others=len(found[LINES:]),
            since_us=context.today.since_us, reports=context.reports is not None,
            report=None if context.reports is None else await in_thread(context.reports.newest),
            **_seen(seen),
        )  # fmt: skip

    async def report(self, request: Request, visitor: Visitor) -> Response:
        """Send the newest cost report, as it was written, in a sandbox."""
        reports = self._context.reports
        page = None if reports is None else await in_thread(reports.page)
        if page is None:
            return self._context.page(
                request, visitor, "problem.html", "Not found", status=404,
                problem="There is no cost report to show.",
            )  # fmt: skip
        return HTMLResponse(page, headers=dict(HEADERS))


def _seen(seen: Snapshot) -> dict[str, Any]:
    return {"seen_us": seen.status.now_us}


def _group(request: Request, seen: Snapshot) -> str:
    """The group that is asked for, if any.

    Raises:
        ConfigError: there is no such group. An empty list would suggest that all is well.
    """
    name = request.query_params.get("group", "")[:128]
    if name and name not in {each.name for each in seen.groups}:
        raise ConfigError(f"no consumer group {name!r}")
    return name


def _number(request: Request, name: str, default: int) -> int:
    """A whole number of the query; `default` if it is not one."""
    text = request.query_params.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else default
