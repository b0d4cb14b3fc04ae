"""The screens of shards, for who may see their lane."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from late.concurrency import in_thread
from late.errors import ConfigError
from late.model.access.rules import NOTHING_HERE, Hidden
from late.web.models import shards as places
from late.web.page_context import PageContext, Visitor
from late.web.queries import group_asked, number_asked, seen_at

TERMS = 1_000
"""Settlements of a shard that are read to find its terms."""


class ShardScreens:
    """Routes that show shards and their owners."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    async def shards(self, request: Request, visitor: Visitor) -> Response:
        seen = await self._context.snapshots.seen()
        ours = await self._shards_of(visitor)
        shown = tuple(each for each in seen.status.shards if ours(each.shard_id))
        status = msgspec.structs.replace(seen.status, shards=shown)
        seen = msgspec.structs.replace(seen, status=status)
        group = group_asked(request, seen)
        page = places.shards(seen, group=group, after=number_asked(request, "after", -1))
        group = group or (page.groups[0] if page.groups else "")
        return self._context.page(
            request, visitor, "shards.html", "Shards and owners", live=True, page=page,
            group=group, **seen_at(seen),
        )  # fmt: skip

    async def shard(self, request: Request, visitor: Visitor) -> Response:
        group, shard_id = request.path_params["group"], request.path_params["shard"]
        if not (await self._shards_of(visitor))(shard_id):
            raise Hidden(NOTHING_HERE)
        found = await in_thread(
            self._context.control.status.owners, limit=TERMS, only=(group, shard_id)
        )
        if not found.shards:
            raise ConfigError(f"no shard {shard_id} in the group {group[:128]!r}")
        return self._context.page(
            request, visitor, "shard.html", f"Shard {shard_id} of {group}",
            view=found.shards[0], seen_us=found.now_us,
        )  # fmt: skip

    async def _shards_of(self, visitor: Visitor) -> Callable[[int], bool]:
        """Return what tells whether a shard is of a lane that the visitor may see."""
        if visitor.sees_all:
            return lambda shard_id: True
        known = await in_thread(self._context.control.lanes.all)
        # Shards of a wider version of the lane still have tasks while it drains.
        ours = [
            range(
                each.first_shard,
                each.first_shard + max(each.shards, *(old.shards for old in each.draining), 0),
            )
            for each in known
            if each.name in visitor.caller.lanes
        ]
        return lambda shard_id: any(shard_id in some for some in ours)
