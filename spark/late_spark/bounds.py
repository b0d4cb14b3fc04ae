"""The part of a table that a read needs. Pure; `pushdown.py` finds it from Spark's filters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TIMES: Mapping[str, str] = {
    "usage": "settled_at_us",
    "journal": "settled_at_us",
    "tasks": "created_at_us",
    "dead": "dead_at_us",
    "timers": "due_at_us",
}
"""The time of each table that bounds a read."""


@dataclass(frozen=True)
class Bounds:
    """None: no bound. Times are microseconds, `from_us` inclusive, `to_us` exclusive."""

    from_us: int | None = None
    to_us: int | None = None
    shards: frozenset[int] | None = None
    queues: frozenset[str] | None = None
    groups: frozenset[str] | None = None

    def takes(self, group: str | None, shard_id: int) -> bool:
        return (self.shards is None or shard_id in self.shards) and (
            group is None or self.groups is None or group in self.groups
        )
