"""`Control.status`: the state of the whole deployment."""

from __future__ import annotations

import msgspec
from sqlalchemy import Engine

from late.control.database import Database, Part, on_engine
from late.control.groups import lag
from late.control.groups.commands import GroupControl
from late.control.past import status as past
from late.control.past.moment import moment_of
from late.control.status import (
    changes,
    disk,
    locks,
    owners,
    replication,
    scaling_signals,
    server,
    status,
    usage,
)
from late.control.views import Status


class StatusControl(Part):
    """Questions about queues, shards, workers and the server. See `Control` for what all methods
    raise."""

    def __init__(self, database: Database, groups: GroupControl) -> None:
        super().__init__(database)
        self._groups = groups

    def read(
        self, *, queue: str | None = None, limit: int = status.LIMIT, as_of: str | None = None
    ) -> Status:
        """Queues, groups, shards and workers; each count stops at `limit` per group and shard.

        Args:
            as_of: a past moment, as a time or an age; see `moment_of` for what it raises.
        """
        if as_of is None:
            return self._now(self._database.engine, queue, limit)
        moment = moment_of(self._database.engine, as_of)
        if not moment.versions:
            return past.status(moment, queue=queue, limit=limit)
        found = self._now(moment.engine, queue, limit)
        return msgspec.structs.replace(found, as_of=moment.as_of())

    def _now(self, engine: Engine, queue: str | None, limit: int) -> Status:
        found = status.status(engine, queue=queue, limit=limit)
        groups = [
            msgspec.structs.replace(each, stale_s=found.stale_s(each.name))
            for each in lag.groups(engine, alarm_s=self._groups.alarm_s, seen=found)
        ]
        return msgspec.structs.replace(found, groups=tuple(groups))

    def server(self) -> server.Server:
        """Sizes, transactions and rows, as the database server counts them."""
        return server.look(self._database.unchecked)

    def lock_holders(self) -> tuple[locks.LockHolder, ...]:
        """Sessions that hold a lock which others of `late` wait for; PostgreSQL only."""
        return locks.holders(self._database.unchecked)

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
    detailed = on_engine(scaling_signals.detailed)
    signals = on_engine(scaling_signals.signals)
    add_refused = on_engine(owners.add_refused)
    owners = on_engine(owners.owners)
    usage_since = on_engine(usage.usage_since)
    changes_since = on_engine(changes.changes_since)
