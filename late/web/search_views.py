"""The search box: suggestions while one types, and a page of them for a browser without scripts."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from late.concurrency import in_thread
from late.errors import StoreError
from late.model.task import Schedule
from late.web import navigation
from late.web.models.search import TEXT_MAX, Suggestion, suggestions
from late.web.page_context import ROOT, PageContext, Visitor

EVERY_S = 10.0
"""Schedules are read at most this often, however many search."""


class SearchScreens:
    """The route; it asks the database for schedules alone, and all visitors share the answer."""

    def __init__(self, context: PageContext) -> None:
        self._context = context
        self._lock = asyncio.Lock()
        self._until = 0.0
        self._schedules: list[Schedule] = []

    async def shown(self, request: Request, visitor: Visitor) -> Response:
        """Answer with the suggestions as JSON if that is asked for, else as a page; a task's id
        leads to the task."""
        text = request.query_params.get("q", "").strip()[:TEXT_MAX]
        found = await self._found(text, visitor)
        if "application/json" in request.headers.get("accept", ""):
            return Response(msgspec.json.encode(found), media_type="application/json")
        if len(found) == 1:
            return RedirectResponse(ROOT + found[0].href, 303)
        return self._context.page(request, visitor, "search.html", "Search", text=text, found=found)

    async def _found(self, text: str, visitor: Visitor) -> list[Suggestion]:
        context, sees = self._context, visitor.caller
        seen = await context.seen(visitor)
        with suppress(StoreError):  # what is known without is found all the same
            await context.last_hour.look()
            await self._read()
        return suggestions(
            text,
            seen,
            caller=sees,
            sections=navigation.sections(sees, "", context.hidden),
            schedules=[s.name for s in self._schedules if sees.may("view", s.queue)],
            tasks=context.last_hour.names,
        )

    async def _read(self) -> None:
        async with self._lock:
            if time.monotonic() >= self._until:
                self._schedules = await in_thread(self._context.control.schedules.all)
                self._until = time.monotonic() + EVERY_S
