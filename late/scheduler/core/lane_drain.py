"""Tell the shards that wait for this one what it has left of closed versions of its lane.

The result of a version's closing (`docs/design/0019`) names the keys that have tasks of it left. It
is written by the settlements themselves: by the one that ends the closing, and then whenever it
changes, so that it is never ahead of what it speaks of, and only the shard's owner can say it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from late.model.lanes import KEYS_MAX, Gate, Left
from late.model.task import TaskId
from late.store.base import Lease, Result

KEPT_US = 366 * 86_400_000_000
"""Such a result is kept until every group has drained the version, and at most so long."""
_encode = msgspec.json.Encoder().encode


class LaneDrain:
    """The versions that this shard is draining. Counts as true while there are any.

    Args:
        gate: knows what a former owner has told.
        left: the keys that have tasks of a version, or a lower one.
    """

    def __init__(self, lease: Lease, gate: Gate, left: Callable[[int], list[str]]) -> None:
        self._shard = (lease.group, lease.shard_id)
        self._gate = gate
        self._left = left
        self._versions: dict[TaskId, int] = {}  # by closing: those that this owner has read
        self._told: dict[TaskId, Left] = {}
        self.due = False
        """True when there is something new to tell: that alone is worth a settlement."""

    def __bool__(self) -> bool:
        return bool(self._versions) or (
            bool(self._gate.layout.extents) and bool(self._gate.closings(*self._shard))
        )

    def read(self, closing: TaskId, version: int) -> None:
        """Note that the closing has come: all tasks of the version have been read."""
        self._versions[closing] = version

    def look(self) -> None:
        """See whether there is something new to tell. It goes over all keys: now and then."""
        self.due = bool(self) and bool(self._news())

    def take_results(self) -> list[Result]:
        """Return what the settlement that is built now tells; nothing is returned twice."""
        self.due = False
        if not self:
            return []
        found = []
        for closing, left in self._news():
            found.append(Result(closing, _encode(left), KEPT_US))
            self._told[closing] = left
            if left.nothing:
                self._versions.pop(closing, None)
        return found

    def _news(self) -> list[tuple[TaskId, Left]]:
        told = self._gate.closings(*self._shard)
        versions = {closing: version for closing, (version, _) in told.items()} | self._versions
        news = []
        for closing, version in versions.items():
            keys = self._left(version)
            left = Left(tuple(sorted(keys))) if len(keys) <= KEYS_MAX else Left(more=True)
            # What the gate knows is what a former owner told, or this one a while ago.
            before = self._told.get(closing) or (told[closing][1] if closing in told else None)
            if left != before:
                news.append((closing, left))
        return news
