"""Counts by group and queue, each up to a limit per group and shard; every place is counted in a
few statements, however many shards there are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Row, Select, func, select

from late.control.sql.per_shard import Value, counted, lateral_rows, looked
from late.control.sql.rows import seconds
from late.control.sql.shards import Shard
from late.control.status import backlog
from late.control.views import Count, QueueStatus
from late.schema.tables import dead, timer

_NONE = Count()


class Tally:
    """Counts per (group, queue), added up over the shards."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.counts: dict[tuple[str, str], dict[str, Count]] = defaultdict(dict)
        self.oldest: dict[tuple[str, str], int] = {}

    def add(self, key: tuple[str, str], field: str, n: int, *, capped: bool = False) -> None:
        """`n` more tasks of one (group, queue); `field` is one of `QueueStatus`."""
        fields = self.counts[key]
        had = fields.get(field, _NONE)
        fields[field] = Count(had.n + n, had.capped or capped)

    def seen(self, key: tuple[str, str], created_at_us: int) -> None:
        """A task that is not done was created then."""
        self.oldest[key] = min(self.oldest.get(key, created_at_us), created_at_us)

    def logged(
        self, name: str, rows: Sequence[Row[tuple[int, str, int, int]]], limit: int
    ) -> tuple[Count, int | None]:
        """Take what `backlog.per_queue` has found beyond one cursor; returns how many rows they
        are, and the oldest `created_at_us`."""
        found = summed(rows, limit)
        for row in rows:
            self.add((name, row.queue), "depth", row.n, capped=found[0].capped)
            self.seen((name, row.queue), row.oldest_us)
        return found

    def elsewhere(
        self, connection: Connection, of: Collection[Shard], field: str, limit: int
    ) -> None:
        """Count rows of the timers (`parked`) or of the dead letters (`dead`)."""
        table, time = (timer, timer.c.due_at_us) if field == "parked" else (dead, dead.c.dead_at_us)

        def leg(name: Value, shard_id: Value, most: int) -> Select[tuple[str, int]]:
            first = (
                select(table.c.queue)
                .where(table.c.consumer_group == name, table.c.shard_id == shard_id)
                # Along the key: a planner that expects them everywhere would read the table.
                .order_by(time)
                .limit(most)
                .subquery()
            )
            return select(first.c.queue, func.count().label("n")).group_by(first.c.queue)

        self._count(connection, leg, of, field, limit)

    def held(self, connection: Connection, of: Collection[Shard], limit: int) -> None:
        """Count parked tasks that wait behind their ordering key, among the first `limit` of a
        group and shard that have one."""

        def leg(name: Value, shard_id: Value, most: int) -> Select[tuple[str, int, int]]:
            return backlog.held(connection, name, shard_id, most)

        self._count(connection, leg, of, "held", limit)

    def _count(
        self,
        connection: Connection,
        leg: Callable[..., Select[Any]],
        of: Collection[Shard],
        field: str,
        limit: int,
    ) -> None:
        """Add up (queue, n) of each (group, shard); `leg` is of these and of a limit."""
        places = list(of)

        def ask(numbers: Sequence[int], most: int) -> Iterator[Row[Any]]:
            asked = [places[n] for n in numbers]
            return lateral_rows(connection, lambda *of: leg(*of, most), asked, rows=most)

        found = counted(connection, ask, len(places), limit)
        for (name, _), rows in zip(places, found, strict=True):
            capped = looked(rows) >= limit
            for row in rows:
                self.add((name, row.queue), field, row.n, capped=capped)

    def queues(self) -> tuple[QueueStatus, ...]:
        """Return all counts, ascending by group and queue."""
        return tuple(
            QueueStatus(
                group=key[0],
                queue=key[1],
                oldest_age_s=seconds(self.now - self.oldest[key]) if key in self.oldest else None,
                **self.counts[key],
            )
            for key in sorted(self.counts)
        )


def summed(rows: Sequence[Row[tuple[int, str, int, int]]], limit: int) -> tuple[Count, int | None]:
    """Add up what `backlog.per_queue` has found of one shard: the count and the oldest
    `created_at_us` of all queues together."""
    total = sum(row.n for row in rows)
    return Count(total, total >= limit), min((row.oldest_us for row in rows), default=None)
