"""Counts by group and queue, each up to a limit per group and shard; every place is counted in a
few statements, however many shards there are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, Select, case, func, select

from late.control.sql.per_shard import Value, counted, lateral_rows, looked
from late.control.sql.rows import errors_of, seconds
from late.control.sql.shards import Shard
from late.control.status import backlog
from late.control.views import Count, QueueStatus, UnhandledTasks
from late.model.task import KILLED_WORKER, AttemptError, last_attempt_began_us
from late.schema.tables import dead, timer

_NONE = Count()


class Tally:
    """Counts per (group, queue), added up over the shards."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.counts: dict[tuple[str, str], dict[str, Count]] = defaultdict(dict)
        self.oldest: dict[tuple[str, str], int] = {}
        self.unhandled: dict[tuple[str, str, str], UnhandledTasks] = {}
        """By group, queue and name of the task."""
        self.limited: dict[tuple[str, str, str], Count] = defaultdict(Count)
        """Parked tasks that a limit holds back, by the same."""
        self.last_dead: dict[tuple[str, str], int] = {}
        """The time of the latest dead letter that was looked at, by (group, queue)."""

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

    def parked(self, connection: Connection, of: Collection[Shard], limit: int) -> None:
        """Count rows of the timers, and those of them that no worker could run."""

        def leg(name: Value, shard_id: Value, most: int) -> Select[Any]:
            # Errors may be long, and are read of these rows only.
            unhandled = timer.c.reason == "unknown"
            told = timer.c.reason.in_(("unknown", "limited"))
            task, errors = case((told, timer.c.name)), case((unhandled, timer.c.errors))
            limited = case((timer.c.reason == "limited", 1), else_=0)
            first = (
                select(
                    timer.c.queue,
                    task.label("task"),
                    limited.label("limited"),
                    errors.label("errors"),
                )
                .where(timer.c.consumer_group == name, timer.c.shard_id == shard_id)
                # Along the key: a planner that expects them everywhere would read the table.
                .order_by(timer.c.due_at_us)
                .limit(most)
                .subquery()
            )
            # The text begins with the attempt and the time of the first error: the least one is
            # of a task that was refused early, mostly of the earliest.
            of_one = func.min(first.c.errors).label("errors")
            by = (first.c.queue, first.c.task, first.c.limited)
            return select(*by, func.count().label("n"), of_one).group_by(*by)

        for (name, _), row, capped in self._counted(connection, leg, of, limit):
            self.add((name, row.queue), "parked", row.n, capped=capped)
            if row.task is not None and row.limited:
                self.limited[name, row.queue, row.task] += Count(row.n, capped)
            elif row.task is not None:
                key = (name, row.queue, row.task)
                self._add_unhandled(key, Count(row.n, capped), errors_of(row.errors))

    def _add_unhandled(
        self, key: tuple[str, str, str], waiting: Count, errors: tuple[AttemptError, ...]
    ) -> None:
        """`waiting` more tasks; `errors` are those of one of them."""
        had = self.unhandled.get(key, UnhandledTasks(*key, _NONE, 0.0))
        since_us = last_attempt_began_us(errors) if errors else self.now
        since_s = max(had.since_s, seconds(self.now - since_us))
        self.unhandled[key] = UnhandledTasks(*key, had.waiting + waiting, since_s)

    def dead(self, connection: Connection, of: Collection[Shard], limit: int) -> None:
        """Count dead letters."""

        def leg(name: Value, shard_id: Value, most: int) -> Select[Any]:
            first = (
                select(
                    dead.c.queue,
                    dead.c.dead_at_us,
                    case((dead.c.reason == KILLED_WORKER, 1), else_=0).label("k"),
                )
                .where(dead.c.consumer_group == name, dead.c.shard_id == shard_id)
                .order_by(dead.c.dead_at_us)
                .limit(most)
                .subquery()
            )
            by = (first.c.queue, first.c.k)
            last = func.max(first.c.dead_at_us).label("last_us")
            return select(*by, last, func.count().label("n")).group_by(*by)

        for (name, _), row, capped in self._counted(connection, leg, of, limit):
            key = (name, row.queue)
            self.add(key, "dead", row.n, capped=capped)
            self.last_dead[key] = max(self.last_dead.get(key, 0), row.last_us)
            if row.k:
                self.add((name, row.queue), "killed", row.n, capped=capped)

    def held(self, connection: Connection, of: Collection[Shard], limit: int) -> None:
        """Count parked tasks that wait behind their ordering key, among the first `limit` of a
        group and shard that have one."""

        def leg(name: Value, shard_id: Value, most: int) -> Select[tuple[str, int, int]]:
            return backlog.held(connection, name, shard_id, most)

        for (name, _), row, capped in self._counted(connection, leg, of, limit):
            self.add((name, row.queue), "held", row.n, capped=capped)

    def _counted(
        self,
        connection: Connection,
        leg: Callable[..., Select[Any]],
        of: Collection[Shard],
        limit: int,
    ) -> Iterator[tuple[Shard, Row[Any], bool]]:
        """Each (group, shard) with its rows, and whether they reach the limit; `leg` is of these
        and of a limit."""
        places = list(of)

        def ask(numbers: Sequence[int], most: int) -> Iterator[Row[Any]]:
            asked = [places[n] for n in numbers]
            return lateral_rows(connection, lambda *of: leg(*of, most), asked, rows=most)

        found = counted(connection, ask, len(places), limit)
        for place, rows in zip(places, found, strict=True):
            capped = looked(rows) >= limit
            yield from ((place, row, capped) for row in rows)

    def queues(self, deleted: Mapping[str, int]) -> tuple[QueueStatus, ...]:
        """Return all counts, ascending by group and queue.

        Args:
            deleted: queue -> the time of its deletion. It is left out while it has no task, and no
                dead letter that is younger.
        """
        return tuple(
            QueueStatus(
                group=key[0],
                queue=key[1],
                oldest_age_s=seconds(self.now - self.oldest[key]) if key in self.oldest else None,
                **self.counts[key],
            )
            for key in sorted(self.counts)
            if not (key[1] in deleted and self._is_idle(key, deleted[key[1]]))
        )

    def _is_idle(self, key: tuple[str, str], deleted_us: int) -> bool:
        counts = self.counts[key]
        return (
            not any(counts.get(field, _NONE).n for field in ("depth", "in_flight", "parked"))
            and not counts.get("dead", _NONE).capped
            and self.last_dead.get(key, 0) <= deleted_us
        )


def summed(rows: Sequence[Row[tuple[int, str, int, int]]], limit: int) -> tuple[Count, int | None]:
    """Add up what `backlog.per_queue` has found of one shard: the count and the oldest
    `created_at_us` of all queues together."""
    total = sum(row.n for row in rows)
    return Count(total, total >= limit), min((row.oldest_us for row in rows), default=None)
