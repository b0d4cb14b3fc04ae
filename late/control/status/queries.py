"""`Control.status`: the state of the whole deployment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from late.autoscaler.keda.demand import Signals
from late.control.database import Database, Part
from late.control.groups.commands import GroupControl
from late.control.status import owners, scaling_signals, server, status, timers, usage
from late.control.status.owners import Refused
from late.control.views import Owners, Status, TimerView


class StatusControl(Part):
    """Questions about queues, shards, workers and the server. See `Control` for what all methods
    raise."""

    def __init__(self, database: Database, groups: GroupControl) -> None:
        super().__init__(database)
        self._groups = groups

    def read(self, *, queue: str | None = None, limit: int = status.LIMIT) -> Status:
        """Queues, groups, shards and workers; each count stops at `limit` per group and shard."""
        found = status.status(self._database.engine, queue=queue, limit=limit)
        groups = [
            msgspec.structs.replace(each, stale_s=found.stale_s(each.name))
            for each in self._groups.all(seen=found)
        ]
        return msgspec.structs.replace(found, groups=tuple(groups))

    def overview(self, *, limit: int) -> tuple[Status, dict[str, Signals]]:
        """`read` without its groups, and what an orchestrator would scale each of them by."""
        return scaling_signals.overview(self._database.engine, limit=limit)

    def detailed(
        self, *, limit: int
    ) -> tuple[Status, dict[str, Signals], dict[tuple[str, str], Signals]]:
        """Return the overview, and the same of every (group, queue) that has tasks."""
        return scaling_signals.detailed(self._database.engine, limit=limit)

    def signals(self, pairs: Sequence[tuple[str, str | None]]) -> list[Signals]:
        """Backlog, age and pace of each (group, queue); None is every queue of the group."""
        return scaling_signals.signals(self._database.engine, pairs)

    def server(self) -> server.Server:
        """Sizes, transactions and rows, as the database server counts them."""
        return server.look(self._database.unchecked)

    def owners(self, *, limit: int = owners.LIMIT, only: tuple[str, int] | None = None) -> Owners:
        """Every shard's owner, its former ones, and how often those were refused; looks at the
        last `limit` settlements per group and shard, or of `only` one (group, shard)."""
        return owners.owners(self._database.engine, limit=limit, only=only)

    def add_refused(self, counts: Mapping[tuple[str, int], Refused]) -> None:
        """Add settlements that were fenced and results that came too late; for workers."""
        owners.add_refused(self._database.engine, counts)

    def usage_since(
        self, since_us: int, read: Mapping[usage.Key, int], *, rows: int = usage.ROWS
    ) -> usage.UsageRead:
        """Read what settlements have counted since a moment, beyond those that were `read`."""
        return usage.usage_since(self._database.engine, since_us, read, rows=rows)

    def timers(
        self, *, group: str | None = None, from_us: int = 0, limit: int = timers.LIMIT
    ) -> list[TimerView]:
        """Parked tasks, the next to come due first, none due before `from_us`."""
        return timers.listed(self._database.engine, group=group, from_us=from_us, limit=limit)
