"""The page as routes, and the check of its visitors."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from urllib.parse import quote

import msgspec
from starlette.convertors import register_url_convertor
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from late.model.access.rights import NOBODY, Caller
from late.model.access.rules import Denied, Hidden, Rule
from late.web.access import csrf
from late.web.access.csrf import SEED, SESSION, TOKEN, Stale
from late.web.access.rules import RULES
from late.web.access.sign_in import SignIns, address_of, read_form, set_cookie
from late.web.actions import Action, Actions
from late.web.celery_views import CeleryScreens
from late.web.event_stream import Streams
from late.web.page_context import ROOT, PageContext, Visitor
from late.web.path_values import ShardInPath, TextInPath
from late.web.search_views import SearchScreens
from late.web.shard_views import ShardScreens
from late.web.task_views import TaskScreens
from late.web.views import Screens
from late.web.workflow_views import WorkflowScreens

logger = logging.getLogger("late.web")

Screen = Callable[[Request, Visitor], Awaitable[Response]]
Endpoint = Callable[[Request], Awaitable[Response]]
register_url_convertor("text", TextInPath())
register_url_convertor("shard", ShardInPath())
KEEP_FILES = "public, max-age=31536000, immutable"
TITLES = {401: "Session expired", 404: "Not found", 409: "Changed meanwhile", 503: "Not now"}
"""Titles of error pages, by their status."""


class OperatorPage:
    """The page of one process.

    Args:
        context: the values that the routes share. The caller closes its control after `close`.
    """

    root = ROOT
    """The path at which the page begins, on any server."""

    def __init__(self, context: PageContext) -> None:
        self._context = context
        self._streams = Streams(self._context.snapshots, self._context.stopping)

    def drain(self) -> None:
        """End the streams, which would delay the server's stop."""
        self._context.stopping.set()

    async def close(self) -> None:
        """Wait for running reads of the database."""
        await self._context.replays.close()
        await self._context.snapshots.close()
        await self._context.today.close()
        await self._context.last_hour.close()
        await self._context.past_week.close()

    def routes(self) -> list[Route]:
        """The routes for a Starlette application, which may have others."""
        shown, places = Screens(self._context), ShardScreens(self._context)
        lists, flows = TaskScreens(self._context), WorkflowScreens(self._context)
        actions = Actions(self._context, shown, lists).routes()
        screens: dict[str, Screen] = {
            "": shown.overview,
            "queues": shown.queues,
            "queues/{name:text}": shown.queue,
            "targets": shown.targets,
            "targets/{name:text}": shown.target,
            "groups": shown.groups,
            "groups/{group:text}": shown.group,
            "shards": places.shards,
            "shards/{group:text}/{shard:shard}": places.shard,
            "tasks": lists.shown,
            "tasks/{task_id:text}": shown.task,
            "workflows": flows.shown,
            "workflows/{task_id:text}": flows.one,
            "dead": shown.dead,
            "schedules": shown.schedules,
            "workers": shown.workers,
            "conflicts": shown.conflicts,
            "autoscaler": shown.autoscaler,
            "celery": CeleryScreens(self._context).shown,
            "search": SearchScreens(self._context).shown,
            "cost": shown.cost,
            "cost/report": shown.report,
        }
        return [
            Route("/", _home),
            Route(ROOT.rstrip("/"), _home),
            Route(f"{ROOT}static/{{name}}", self._file),
            *SignIns(self._context, self).routes(),
            Route(f"{ROOT}live", self._live),
            *(
                Route(ROOT + path, self.guarded(each, RULES[path]))
                for path, each in screens.items()
            ),
            *(
                Route(ROOT + path, self._acting(each, RULES[path]), methods=["POST"])
                for path, each in actions.items()
            ),
            # The last one: an unknown path below the root gets a page, and not the API's JSON.
            Route(ROOT + "{path:path}", self.guarded(self._nowhere, RULES[""]), methods=["GET"]),
        ]

    # --- visitors

    async def admit(self, request: Request) -> Caller:
        """Return the caller.

        Raises the gate's errors, and `Denied` for a caller that may not look.
        """
        kept = request.cookies.get(TOKEN)
        given = request.headers.get("authorization") or (f"Bearer {kept}" if kept else None)
        certificate = tuple(request.scope.get("late.certificate", ()))
        host, address = request.headers.get("host"), address_of(request)
        gate = self._context.gate
        await gate.prepare(given)
        caller = gate.admit(
            given,
            host,
            certificate,
            address=address,
            session=request.cookies.get(SESSION),
            headers=request.scope["headers"],
        )
        if not caller.may("view"):
            raise Denied("this page takes the role 'view': a token's scope 'view' or 'operate'")
        return caller

    def visitor(self, request: Request, caller: Caller) -> Visitor:
        seed = request.cookies.get(SEED)
        return self._context.visitor(
            caller,
            seed if seed is not None and csrf.is_seed(seed) else csrf.new_seed(),
            has_session=TOKEN in request.cookies or SESSION in request.cookies,
        )

    # --- around every route

    def guarded(self, screen: Screen, rule: Rule | None) -> Endpoint:
        """Make the endpoint of a screen for whom the rule lets in; None lets in everybody."""

        async def endpoint(request: Request) -> Response:
            visitor = self.visitor(request, NOBODY)
            try:
                if rule is not None:
                    visitor = self.visitor(request, await self.admit(request))
                    rule.check(visitor.caller, request.path_params)
                response = await screen(request, visitor)
            except ClientDisconnect:
                return Response(status_code=499)
            except Exception as error:
                response = self.failed(request, visitor, error)
            return self.dressed(request, visitor, response)

        return endpoint

    def _acting(self, action: Action, rule: Rule) -> Endpoint:
        """Make the endpoint of an action: it checks the form, and that the caller may change."""

        async def act(request: Request, visitor: Visitor) -> Response:
            fields = await read_form(request, self._context.key, visitor.caller)
            self._context.gate.check(visitor.caller)
            if not self._context.changes:
                raise Denied("this page is read-only: late serve --web-changes")
            rule.check(visitor.caller, request.path_params)
            return await action(request, visitor, fields)

        # A form is checked first: its answer then says that the session is over.
        return self.guarded(act, msgspec.structs.replace(rule, role="view"))

    def failed(self, request: Request, visitor: Visitor, error: Exception) -> Response:
        status, text = self.told(error)
        if status == 401 and request.method == "GET":
            return RedirectResponse(self._login_at(request), 303)
        title = error.title if isinstance(error, Stale) else TITLES.get(status, "Refused")
        if status == 400 and request.method == "GET":
            title = "Nothing to show"
        # The error page links back to the screen with the form.
        form = "" if request.method == "GET" else form_at(request)
        return self._context.page(
            request, visitor, "problem.html", title, status=status, problem=text, form=form
        )

    def _login_at(self, request: Request) -> str:
        if not self._context.gate.signs_in:
            return f"{ROOT}login"
        here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return f"{ROOT}login?next={quote(csrf.own_path(here, ROOT), safe='')}"

    def told(self, error: Exception) -> tuple[int, str]:
        if isinstance(error, Stale):
            return 409, str(error)
        if isinstance(error, Denied):
            return 403, str(error)
        if isinstance(error, Hidden):
            return 404, str(error)
        status, text = self._context.gate.told(error)
        if status == 500:
            logger.error("a page failed: %s", type(error).__name__, exc_info=error)
        return status, text

    def dressed(self, request: Request, visitor: Visitor, response: Response) -> Response:
        for name, value in csrf.HEADERS.items():
            response.headers.setdefault(name, value)  # a report has its own, which are stricter
        response.headers["Cache-Control"] = "no-store"
        if request.cookies.get(SEED) != visitor.seed:
            set_cookie(response, SEED, visitor.seed, secure=self._context.secure)
        return response

    # --- routes of its own

    async def _nowhere(self, request: Request, visitor: Visitor) -> Response:
        """Answer for an unknown path.

        The path is not repeated: the text of a link must not look like a text of the page.
        """
        path = request.path_params["path"]
        if path.endswith("/"):
            return RedirectResponse(ROOT + quote(path.rstrip("/")), 303)
        problem = "There is no screen at this address: see the list above."
        return self._context.page(
            request, visitor, "problem.html", "Not found", status=404, problem=problem
        )

    async def _live(self, request: Request) -> Response:
        try:
            caller = await self.admit(request)
        except Exception as error:
            return Response(status_code=self.told(error)[0], headers=dict(csrf.HEADERS))
        if self._streams.full:
            return Response(status_code=503, headers={"Retry-After": "60"})
        headers = {**csrf.HEADERS, "Cache-Control": "no-store"}
        stream = self._streams.run(partial(self._context.gate.over, caller))
        return StreamingResponse(stream, headers=headers, media_type="text/event-stream")

    async def _file(self, request: Request) -> Response:
        """Send a script or a style. Everybody may get them: they contain no data."""
        file = self._context.files.get(request.path_params["name"])
        if file is None:
            return Response(status_code=404, headers=dict(csrf.HEADERS))
        headers = {**csrf.HEADERS, "Cache-Control": KEEP_FILES, "Vary": "Accept-Encoding"}
        packs = "gzip" in request.headers.get("accept-encoding", "")
        if packs:
            headers["Content-Encoding"] = "gzip"
        return Response(file.packed if packs else file.plain, headers=headers, media_type=file.kind)


def form_at(request: Request) -> str:
    """The path, below the page's root, of the screen whose form is sent to this address."""
    screen = request.url.path.removeprefix(ROOT).rpartition("/")[0]
    return "schedules" if screen.startswith("schedules/") else screen


async def _home(request: Request) -> Response:
    return RedirectResponse(ROOT, 303)
