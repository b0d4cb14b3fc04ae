"""Hold releases back until every peer has seen why. Pure.

With bounded loads a worker that joins or leaves, or another list of shards, also moves shards
between workers that were there before. The one that is to get such a shard learns of it with its
next heartbeat, and looks often from then on. Released before that, a shard would have no owner for
as long. So a shard is released once it has been due for `notice_s`, a heartbeat's pace, on end.

The list of shards is no part of every heartbeat: a store may tell of a change some seconds late
(`Membership.shards`). After one, nothing is released for `LIST_S` and a heartbeat.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from late.model.task import ShardId
from late.tailer.ownership import Key

LIST_S = 5.0
"""The longest time for which a store may go by an old list of shards; a heartbeat later each worker
knows the new one."""


class ReleaseNotice:
    """Finds the shards that have been due for long enough.

    Args:
        notice_s: the longest time between two heartbeats.
    """

    def __init__(self, notice_s: float, list_s: float = LIST_S) -> None:
        self._notice_s = notice_s
        self._list_s = list_s
        self._since_s: dict[Key, float] = {}
        self._shards: frozenset[ShardId] | None = None
        self._listed_s = -math.inf

    def due(self, releases: Iterable[Key], shards: Collection[ShardId], now_s: float) -> set[Key]:
        """Take in what the latest view asks to release, and return what may go now.

        Args:
            shards: the list of that view.
        """
        listed = frozenset(shards)
        if self._shards not in (None, listed):
            self._listed_s = now_s
        self._shards = listed
        self._since_s = {key: self._since_s.get(key, now_s) for key in releases}
        if now_s < self._listed_s + self._list_s + self._notice_s:
            return set()
        return {key for key, at_s in self._since_s.items() if now_s >= at_s + self._notice_s}
