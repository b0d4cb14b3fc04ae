"""The screens: each asks the control plane, makes a model of the answer, and renders it."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import quote

from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from late.concurrency import in_thread
from late.control.dead_letters.dry_run import LOOKED
from late.control.findings import schedules as slips
from late.control.findings.targets import parked_by_task, targets_of, waits
from late.control.schedule_view import ScheduleView
from late.control.views import Count
from late.errors import ConfigError, StoreError
from late.model.access.rules import check_queue, seen_by
from late.model.queue_settings import LOCAL, REMOTE, Kind, QueueSettings, encode
from late.web.history_views import history_of, hours_of
from late.web.models import (
    conflicts,
    cost,
    last_hour,
    overview,
    queues,
    task,
    workers,
    workflows,
)
from late.web.models import (
    dead_letters as dead,
)
from late.web.models import (
    shards as places,
)
from late.web.models.knob_groups import knob_groups
from late.web.page_context import ROOT, PageContext, Visitor
from late.web.queries import group_asked, groups_of, seen_at
from late.web.snapshot import Snapshot, kept
from late.web.usage.cost_report import HEADERS

DECISIONS = 100
AUDITED = 20
LINES = 50
"""Lines of a table that may be long."""


class Screens:
    """Routes that show something."""

    def __init__(self, context: PageContext) -> None:
        self._context = context
        self._overview = kept(overview.overview)
        self._queues = kept(queues.rows)

    async def overview(self, request: Request, visitor: Visitor) -> Response:
        seen = await self._context.seen(visitor)
        with suppress(StoreError):  # what the look knows is shown all the same
            await self._context.last_hour.look()
        return self._context.page(
            request, visitor, "overview.html", "Overview", live=True, charts=True,
            model=self._overview(seen), **self._hour(seen, visitor), **seen_at(seen),
        )  # fmt: skip

    def _hour(self, seen: Snapshot, visitor: Visitor) -> dict[str, Any]:
        """The last hour of what the visitor may see."""
        hour, now = self._context.last_hour, seen.status.now_us
        sees = partial(visitor.caller.may, "view")
        oldest = [q.oldest_age_s for q in seen.status.queues if q.oldest_age_s is not None]
        rows = last_hour.rows(
            hour.minutes, now_us=now, known=(hour.since_us, hour.until_us), gaps=hour.gaps,
            oldest_s=max(oldest, default=None), sees=sees,
        )  # fmt: skip
        marks = last_hour.marks(hour.changes, sees_all=visitor.sees_all, sees=sees)
        return {
            "labels": last_hour.labels(rows),
            "columns": last_hour.columns(rows),
            "marks": marks,
            "marks_at": [(mark.at_us // 1_000_000, mark.kind) for mark in marks],
        }

    async def queues(self, request: Request, visitor: Visitor) -> Response:
        seen = await self._context.seen(visitor)
        asked = request.query_params
        text, group = asked.get("text", "")[:128], group_asked(request, seen)
        page = queues.listed(
            self._queues(seen), text=text, group=group, after=asked.get("after", "")
        )
        return self._context.page(
            request, visitor, "queues.html", "Queues", live=True, page=page, text=text,
            group=group, groups=groups_of(seen), **seen_at(seen),
            hours=await hours_of(self._context, seen, page.rows),
        )  # fmt: skip

    async def queue(self, request: Request, visitor: Visitor, **more: Any) -> Response:
        """Show one queue; `more` is a preview, or the problem of a change."""
        return await self._settings_page(request, visitor, "queue", **more)

    async def targets(self, request: Request, visitor: Visitor) -> Response:
        """Show the targets that workers call and those with settings; with a name, redirect to
        that target."""
        name = request.query_params.get("name", "").strip()
        if name:
            return RedirectResponse(f"{ROOT}targets/{quote(name[:128], safe='')}", 303)
        seen = await self._context.seen(visitor)
        found = {
            name: {each.name: each.after for each in queues.preview(QueueSettings(), settings)}
            for name, settings in sorted(seen.targets.items())[:LINES]
        }
        return self._context.page(
            request, visitor, "targets.html", "Targets", targets=found, live=True,
            reported=targets_of(seen.reports, parked_by_task(seen))[:LINES], **seen_at(seen)
        )  # fmt: skip

    async def target(self, request: Request, visitor: Visitor, **more: Any) -> Response:
        """Show one target; `more` as in `queue`."""
        return await self._settings_page(request, visitor, "target", **more)

    async def _settings_page(
        self, request: Request, visitor: Visitor, kind: Kind, **more: Any
    ) -> Response:
        context, name = self._context, request.path_params["name"]
        seen = await context.seen(visitor)
        # Not those of the snapshot: a form must begin with the present values.
        settings = await in_thread(self.settings, kind, name)
        audit = await in_thread(
            context.control.audit.entries, subject=f"{kind}:{name}", limit=AUDITED
        )
        defaults = REMOTE if kind == "target" and name != "local" else LOCAL
        model: dict[str, Any] = {"preview": None, "effects": [], "sent": {}, **more}
        rows = [row for row in self._queues(seen) if row.status.queue == name]
        model["objectives"] = [o for o in seen.status.objectives if o.queue == name]
        if model["preview"] is None:
            model |= await history_of(context, visitor, seen, kind, name, request.query_params)
        told = targets_of(seen.reports, parked_by_task(seen)) if kind == "target" else []
        model["target"] = next((each for each in told if each.name == name), None)
        model["target_waits"] = waits(model["target"]) if model["target"] else ""
        model["limited_keys"] = [key for key in seen.status.limited_keys if key.queue == name]
        return context.page(
            request, visitor, "queue.html", f"{kind.capitalize()} {name}", kind=kind, name=name,
            live=kind == "queue" and model["preview"] is None,
            rows=rows if kind == "queue" else [],
            knob_groups=knob_groups(
                queues.form(settings, defaults, kind, model["sent"]),
                (name for name, value in asdict(settings).items() if value is not None),
                model["sent"],
            ),
            before=encode(settings), audit=audit, is_paused=settings.paused,
            may_change=(
                visitor.may_change("operate", name) if kind == "queue" else visitor.may_administer
            ),
            **seen_at(seen), **model,
        )  # fmt: skip

    def settings(self, kind: Kind, name: str) -> QueueSettings:
        """The present settings of a queue or a target; blocks."""
        found = self._context.control.queues.settings(kind, name)
        return found[0].knobs if found else QueueSettings()

    async def groups(self, request: Request, visitor: Visitor) -> Response:
        seen = await self._context.seen(visitor)
        return self._context.page(
            request, visitor, "groups.html", "Consumer groups", live=True, groups=seen.groups,
            signals=seen.signals, level=places.group_level, **seen_at(seen),
        )  # fmt: skip

    async def group(self, request: Request, visitor: Visitor, **more: Any) -> Response:
        """Show one group; `more` is a preview of a reset, or its problem."""
        name = request.path_params["group"]
        seen = await self._context.seen(visitor)
        group = next((each for each in seen.groups if each.name == name), None)
        if group is None:
            raise ConfigError(f"no consumer group {name[:128]!r}")
        past = await history_of(self._context, visitor, seen, "group", name, request.query_params)
        window = None
        with suppress(StoreError):  # what the look knows is shown all the same
            window = await in_thread(self._context.control.groups.window_state, name)
        model: dict[str, Any] = {
            "reset": None, "reset_shown": "", "totals": (), "sent": {"place": "", "moment": ""},
            "replay": None, "asked": {"since": "", "until": "", "rate": ""},
            "before": places.mark_of(window), "window": window,
            "total": self._context.replays.total(name), **more,
        }  # fmt: skip
        return self._context.page(
            request, visitor, "group.html", f"Group {name}", group=group,
            live=model["reset"] is None and model["replay"] is None,
            level=places.group_level, may_change=visitor.may_administer,
            objectives=[o for o in seen.status.objectives if (o.group, o.queue) == (name, "")],
            signals=seen.signals, kind="group", name=name, **past, **seen_at(seen), **model,
        )  # fmt: skip

    async def task(self, request: Request, visitor: Visitor, **more: Any) -> Response:
        """Show one task; its payload only when asked for, and only to callers that may `operate`.

        `more` is the text that was typed as its new payload, and the problem with it, or the group
        in which a retry is asked for once more.
        """
        show, task_id = self._context.control.tasks.show, request.path_params["task_id"]
        wants = request.query_params.get("payload") == "1"
        if wants and not visitor.caller.may_all("operate"):
            queue = (await in_thread(show, task_id)).queue
            wants = queue is not None and visitor.caller.may("operate", queue)
        found = await in_thread(show, task_id, payload=wants)
        check_queue(visitor.caller, found.queue)
        found = seen_by(visitor.caller, found)
        now_us = await in_thread(self._context.control.now)
        begun = any(each.state == "open" for each in found.groups)
        reports = await in_thread(self._context.control.reports.all) if begun else ()
        payload, whole = task.payload(found)
        model = {"payload": payload, "whole": whole, "ask": None, **more}
        return self._context.page(
            request, visitor, "task.html", f"Task {found.name or found.task_id}", live=not wants,
            task=found, **model,
            workflow=workflows.levels(found.workflow, found.task_id),
            lives=task.lives(found, now_us, reports),
            asked=await in_thread(self._context.control.audit.of_task, found.task_id),
            links=task.links(found, self._context.trace_url),
            may_change=visitor.may_change("operate", found.queue),
            may_read=visitor.caller.may("operate", found.queue),
        )  # fmt: skip

    async def dead(self, request: Request, visitor: Visitor, **more: Any) -> Response:
        """Show dead letters by cause; `more` is a rehearsal, or the problem of an action."""
        model: dict[str, Any] = {
            "rehearsal": None, "command": "", "sent": {}, "killers": Count(), **more,
        }  # fmt: skip
        asked = model["sent"] or request.query_params
        chosen = dead.which(asked)
        if chosen.queue is None and chosen.workflow is None and not visitor.sees_all:
            return await self._dead_of(request, visitor)
        if chosen.queue is not None:
            check_queue(visitor.caller, chosen.queue)
        found = await in_thread(
            self._context.control.dead_letters.page, chosen, limit=dead.LOOKED_AT
        )
        letters = [each for each in found.letters if visitor.caller.may("view", each.queue)]
        fields = {name: getattr(chosen, name) for name in dead.FIELDS}
        typed = {name: model["sent"].get(name, "") for name in ("limit", "rate")}
        filtered = {name: text for name, text in fields.items() if text}
        model["sent"] = filtered if model["rehearsal"] is None else model["sent"]
        return self._context.page(
            request, visitor, "dead.html", "Dead letters",
            page=dead.causes(letters, found.before_us), chosen=fields,
            said=dead.said(chosen), looked=LOOKED, typed=typed, filtered=filtered, choose=None,
            may_change=visitor.may_change("operate", chosen.queue),
            may_purge=visitor.may_change("admin", chosen.queue), **model,
        )  # fmt: skip

    async def _dead_of(self, request: Request, visitor: Visitor) -> Response:
        """Let a visitor choose one of some queues: the latest of all would be those of others."""
        seen = await self._context.seen(visitor)
        names = sorted({each.queue for each in seen.status.queues if each.dead.n})
        return self._context.page(
            request, visitor, "dead.html", "Dead letters", page=dead.causes(()),
            chosen=dict.fromkeys(dead.FIELDS), choose=names, rehearsal=None,
        )  # fmt: skip

    async def schedules(self, request: Request, visitor: Visitor, **more: Any) -> Response:
        after = request.query_params.get("after", "")
        seen = await self._context.seen(visitor)
        found = [
            each
            for each in map(ScheduleView.of, await in_thread(self._context.control.schedules.all))
            if each.name > after and visitor.caller.may("view", each.queue)
        ]
        return self._context.page(
            request, visitor, "schedules.html", "Schedules", live=True, schedules=found[:LINES],
            operable={each.name for each in found if visitor.may_change("operate", each.queue)},
            following=len(found) > LINES, pause_of=seen.status.pause,
            slips=slips.by_name(seen), **more,
        )  # fmt: skip

    async def workers(self, request: Request, visitor: Visitor) -> Response:
        seen = await self._context.seen(visitor)
        found = workers.rows(seen)
        return self._context.page(
            request, visitor, "workers.html", "Workers", live=True,
            workers=found[:LINES], others=len(found[LINES:]),
            vanished=places.vanished(seen)[:LINES], **seen_at(seen),
        )  # fmt: skip

    async def conflicts(self, request: Request, visitor: Visitor) -> Response:
        """Show transactions in each other's way; rows and statements to who may operate on all."""
        seen = await self._context.seen(visitor)
        return self._context.page(
            request, visitor, "conflicts.html", "Conflicts", live=True,
            page=conflicts.page(seen.conflicts), keys=visitor.caller.may_all("operate"),
            **seen_at(seen),
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
        seen = await context.seen(visitor)
        shares = {
            key: share
            for key, share in context.today.shares.items()
            if visitor.caller.may("view", key[1])
        }
        found = cost.lines(shares, seen.queues)
        reports = context.reports if visitor.sees_all else None
        return context.page(
            request, visitor, "cost.html", "Usage of today", whole=context.today.whole,
            reading=context.today.reading,
            lines=found[:LINES], rest=cost.together(found[LINES:]), others=len(found[LINES:]),
            since_us=context.today.since_us, reports=reports is not None,
            report=None if reports is None else await in_thread(reports.newest),
            **seen_at(seen),
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
