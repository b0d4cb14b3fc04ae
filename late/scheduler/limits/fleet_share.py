"""Say which part of a queue's limits is this worker's. Pure.

The shards of the groups that read the queue share its limits. A group that does not read it starts
none of its tasks, so it takes no part.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping


class FleetShare:
    """The shards of this worker and of the fleet, by group."""

    def __init__(self) -> None:
        self.reads: Mapping[str, Collection[str]] = {}
        """The queues of each group that reads some alone. Any other counts as one that reads all:
        also a group that was made just now, so that the sum never exceeds a limit."""
        self.whole = 0, 0
        """The shards of this worker and of all, in all groups."""
        self._mine: Mapping[str, int] = {}
        self._total: Mapping[str, int] = {}
        self._some: list[str] = []

    def begin(self, mine: Mapping[str, int], total: Mapping[str, int]) -> None:
        """Take in the shards of this worker, and those of the groups with a live worker."""
        self._mine, self._total = mine, total
        self.whole = sum(mine.values()), sum(total.values())
        self._some = [group for group in {*mine, *total} if group in self.reads]

    def of(self, queue: str) -> tuple[int, int]:
        """Return the shards of this worker and of all, in the groups that read `queue`."""
        mine, total = self.whole
        for group in self._some:
            if queue not in self.reads[group]:
                mine -= self._mine.get(group, 0)
                total -= self._total.get(group, 0)
        return mine, total
