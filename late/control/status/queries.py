"""`Control.status`: the state of the whole deployment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

import msgspec
from sqlalchemy import Engine

from late.autoscaler.keda.demand import Signals
from late.control.database import Database, Part, on_engine
from late.control.groups import lag
from late.control.groups.commands import GroupControl
from late.control.past import status as past
from late.control.past.moment import moment_of
from late.control.simulation import simulation
from late.control.status import (
    changes,
    disk,
    locks,
    objectives,
    owners,
    pauses,
    replication,
    scaling_signals,
    server,
    status,
    usage,
    write_lock,
)
from late.control.status_views import ObjectiveView
from late.control.views import Reported, Status
from late.model.group_settings import GroupSettings
from late.model.queue_settings import QueueSettings

KEPT_S = 30.0
Judge = Callable[[Status], tuple[ObjectiveView, ...]]


class StatusControl(Part):
    """Questions about queues, shards, workers and the server. See `Control` for what all methods
    raise."""

    def __init__(self, database: Database, groups: GroupControl) -> None:
        super().__init__(database)
        self._groups = groups
        self._judged: tuple[float, tuple[ObjectiveView, ...]] | None = None

    def read(
        self, *, queue: str | None = None, limit: int = status.LIMIT, as_of: str | None = None
    ) -> Status:
        """Queues, groups, shards and workers; each count stops at `limit` per group and shard.

        Args:
            as_of: a past moment, as a time or an age; see `moment_of` for what it raises.
        """
        if as_of is None:
            return self._of(self._database.engine, queue, limit, self.objectives)
        moment = moment_of(self._database.engine, as_of)
        if not moment.versions:
            return past.status(moment, queue=queue, limit=limit)
        engine = moment.engine
        found = self._of(engine, queue, limit, lambda s: objectives.objectives(engine, s.queues))
        return msgspec.structs.replace(found, as_of=moment.as_of())

    def _of(self, engine: Engine, queue: str | None, limit: int, judge: Judge) -> Status:
        found = status.status(engine, queue=queue, limit=limit)
        judged = judge(found)
        groups = [
            msgspec.structs.replace(each, stale_s=found.stale_s(each.name))
            for each in lag.groups(engine, alarm_s=self._groups.alarm_s, seen=found)
        ]
        judged = tuple(each for each in judged if queue in (None, each.queue))
        return msgspec.structs.replace(
            found, groups=tuple(groups), objectives=judged, pauses=pauses.pauses(engine)
        )

    def objectives(
        self,
        seen: Status,
        settings: Mapping[str, QueueSettings] | None = None,
        groups: Mapping[str, GroupSettings] | None = None,
    ) -> tuple[ObjectiveView, ...]:
        """Judge the queues and groups that have an objective, from the journal; see `objectives`.
        The answer is kept for half a minute, as it takes many rows."""
        now_s, judged = time.monotonic(), self._judged
        if judged is None or now_s >= judged[0] + KEPT_S:
            found = objectives.objectives(self._database.engine, seen.queues, settings, groups)
            self._judged = judged = (now_s, found)
        return judged[1]

    def detailed(
        self,
        *,
        limit: int,
        settings: Mapping[str, QueueSettings] | None = None,
        told: Iterable[Reported] | None = None,
        groups: Mapping[str, GroupSettings] | None = None,
    ) -> tuple[Status, dict[str, Signals], dict[tuple[str, str], Signals]]:
        """See `scaling_signals.detailed`; with the objectives of queues."""
        engine = self._database.engine
        seen, signals, paces = scaling_signals.detailed(
            engine, limit=limit, settings=settings, told=told
        )
        judged, paused = self.objectives(seen, settings, groups), pauses.pauses(engine)
        return msgspec.structs.replace(seen, objectives=judged, pauses=paused), signals, paces

    def server(self) -> server.Server:
        """Sizes, transactions and rows, as the database server counts them."""
        engine = self._database.unchecked
        found, of_file = server.look(engine), disk.disk_of(engine)
        if of_file is None:
            return found
        return msgspec.structs.replace(
            found, disk_free_bytes=of_file.free, disk_bytes=of_file.total
        )

    def sessions(self) -> locks.Sessions:
        """Return the sessions that hold a lock which others of `late` wait for, and those with an
        old transaction; PostgreSQL only."""
        return locks.sessions(self._database.unchecked)

    def written(self) -> replication.Position:
        """Return how far the log of this PostgreSQL is written."""
        return replication.written(self._database.unchecked)

    def replayed(self) -> replication.Position:
        """Return how far this replica of a PostgreSQL has replayed the log."""
        return replication.replayed(self._database.unchecked)

    def age_s(self) -> float:
        """Return the age of what is read here: of a `Control` with `stale_s`, else about 0."""
        return replication.age_s(self._database.unchecked)

    disk = on_engine(disk.disk_of)
    write_locked = on_engine(write_lock.is_held)
    signals = on_engine(scaling_signals.signals)
    lane_signals = on_engine(scaling_signals.of_lane)
    add_refused = on_engine(owners.add_refused)
    owners = on_engine(owners.owners)
    simulate = on_engine(simulation.simulate)
    usage_since = on_engine(usage.usage_since)
    changes_since = on_engine(changes.changes_since)
