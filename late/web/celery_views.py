"""The screen of tasks on their way from Celery: each one's share, and the counts of both sides."""

from __future__ import annotations

import asyncio
import time

from starlette.requests import Request
from starlette.responses import Response

from late.concurrency import in_thread
from late.control.status.celery_shares import PREFIX, Ramp, read
from late.model.task import DEFAULT_GROUP
from late.web.page_context import PageContext, Visitor
from late.web.queries import group_asked, groups_of, seen_at

SINCE_S = 3_600
"""Seconds of the journal that are counted."""
EVERY_S = 5.0
REST = 10
"""The rest after a read, as a multiple of the time that it took."""
LINES = 200
"""Lines of the table."""


class CeleryScreens:
    """The route; all visitors share one read of the journal."""

    def __init__(self, context: PageContext) -> None:
        self._context = context
        self._lock = asyncio.Lock()
        self._read: dict[str, tuple[float, list[Ramp]]] = {}
        """Group -> the time until which its counts are shown, and the counts."""

    async def shown(self, request: Request, visitor: Visitor) -> Response:
        seen = await self._context.seen(visitor)
        group = group_asked(request, seen) or DEFAULT_GROUP
        found = await self._ramps(group)
        return self._context.page(
            request, visitor, "celery.html", "From Celery", live=True, ramps=found[:LINES],
            others=len(found[LINES:]), prefix=PREFIX, group=group, groups=groups_of(seen),
            minutes=SINCE_S // 60, **seen_at(seen),
        )  # fmt: skip

    async def _ramps(self, group: str) -> list[Ramp]:
        async with self._lock:
            until, found = self._read.get(group, (0.0, []))
            began = time.monotonic()
            if began >= until:
                found = await in_thread(self._count, group)
                ended = time.monotonic()
                self._read[group] = ended + max(EVERY_S, REST * (ended - began)), found
        return found

    def _count(self, group: str) -> list[Ramp]:
        control = self._context.control
        return read(control, since_us=control.now() - SINCE_S * 1_000_000, group=group)
