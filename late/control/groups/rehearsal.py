"""The rehearsal of a reset: what it changes and what the group reads, counted up to a limit.

People see it before they decide, and a full count of a long log would take too long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Select, Table, and_, case, func, not_, select

from late.control.sql import beyond_cursor, positions
from late.control.sql.last_settlement import Journal
from late.control.sql.per_shard import union_rows
from late.control.sql.rows import log_of, open_of
from late.control.status import backlog
from late.control.views import Count, ShardReset
from late.model.task import CONTROL_QUEUE, Reads
from late.schema.tables import dead, timer

LOOKED = 64_000
"""The number of rows of one kind that a preview looks at, over all shards."""
LOOKED_MIN = 1_000
"""The least number of rows of one shard that are looked at, for any number of shards."""


class Shard(msgspec.Struct, frozen=True):
    """One shard before and after the reset."""

    shard_id: int
    before: Journal
    cursor: str
    old: Reads
    new: Reads

    def again(self, connection: Connection) -> ColumnElement[bool]:
        """Return the condition for records that will be read after the reset."""
        return positions.ahead(connection, self.shard_id, self.cursor, self.new)

    def waiting(self, connection: Connection) -> ColumnElement[bool]:
        """Return the condition for records that would be read without the reset."""
        return positions.ahead(connection, self.shard_id, self.before.cursor, self.old)


class Ahead(msgspec.Struct, frozen=True):
    """The tasks that the group reads after the reset."""

    again: list[Count]
    """By shard: those that it reads only because of the reset."""
    queues: dict[str, Count]
    """By queue: all of them."""
    oldest_us: int | None
    """The time at which the oldest of them was created; None: there is none."""
    newest_us: int | None
    """The same of the newest of those that were looked at."""


def effects(
    connection: Connection, name: str, shards: list[Shard], again: list[Count]
) -> list[ShardReset]:
    """Count the effects of a reset on each shard, among the first rows of each kind."""
    most = _most(shards)
    skipped = _skipped(connection, shards, most)
    unparked, parked = _elsewhere(connection, timer, name, shards, most)
    dead_too, _ = _elsewhere(connection, dead, name, shards, most)
    opened = [open_of(each.before.open) for each in shards]
    conditions = (each.again(connection) for each in shards)
    returned = backlog.ids_among(connection, list(zip(conditions, opened, strict=True)))
    return [
        ShardReset(
            shard_id=each.shard_id,
            again=again[n],
            skipped=skipped[n],
            unparked=unparked[n],
            dead=dead_too[n],
            kept=Count(
                len(opened[n]) - len(returned[n]) + parked[n].n - unparked[n].n, parked[n].capped
            ),
        )
        for n, each in enumerate(shards)
    ]


def _most(shards: list[Shard]) -> int:
    """Return how many rows of one kind are looked at in each shard."""
    return max(LOOKED_MIN, LOOKED // max(1, len(shards)))


def _skipped(connection: Connection, shards: list[Shard], most: int) -> list[Count]:
    """Count the records of each shard that the reset leaves out, among the first `most` beyond the
    old cursor."""
    legs = []
    for each in shards:
        meant = and_(each.waiting(connection), not_(each.again(connection)))
        # The limit is on the rows that are read, as the conditions on time and queue have no index.
        legs.append(
            select(case((meant, 1), else_=0).label("meant"))
            .where(beyond_cursor.beyond(connection, each.shard_id, each.before.cursor))
            .order_by(*beyond_cursor.order_of(connection))
            .limit(most)
        )
    return [found for found, _ in _counted(connection, legs, most)]


def ahead(connection: Connection, shards: list[Shard]) -> Ahead:
    """Count what will be read, among the first rows of each shard beyond its new cursor."""
    most, log = _most(shards), log_of(connection)
    legs = []
    for each in shards:
        its, waiting = each.again(connection), each.waiting(connection)
        looked = (
            select(
                log.c.queue,
                log.c.created_at_us,
                case((its, 1), else_=0).label("meant"),
                case((and_(its, not_(waiting)), 1), else_=0).label("again"),
            )
            .where(beyond_cursor.beyond(connection, each.shard_id, each.cursor))
            .order_by(*beyond_cursor.order_of(connection))
            .limit(most)
            .subquery()
        )
        at_us = case((looked.c.meant == 1, looked.c.created_at_us))
        legs.append(
            select(
                looked.c.queue,
                func.count().label("n"),
                func.sum(looked.c.meant).label("meant"),
                func.sum(looked.c.again).label("again"),
                func.min(at_us).label("oldest_us"),
                func.max(at_us).label("newest_us"),
            ).group_by(looked.c.queue)
        )
    rows = list(union_rows(connection, legs, rows=most))
    seen, again = [0] * len(legs), [0] * len(legs)
    for row in rows:
        seen[row.leg] += row.n
        again[row.leg] += int(row.again)
    queues: dict[str, Count] = {}
    meant = [row for row in rows if row.meant and row.queue != CONTROL_QUEUE]
    for row in meant:
        count = Count(int(row.meant), seen[row.leg] >= most)
        queues[row.queue] = queues.get(row.queue, Count()) + count
    return Ahead(
        [Count(n, looked >= most) for n, looked in zip(again, seen, strict=True)],
        dict(sorted(queues.items())),
        min((int(row.oldest_us) for row in meant), default=None),
        max((int(row.newest_us) for row in meant), default=None),
    )


def kept_since(connection: Connection, shard_ids: Sequence[int]) -> int | None:
    """Return when the first task of the log was created; None if the log is empty."""
    log = log_of(connection)
    legs = [
        select(log.c.created_at_us)
        .where(log.c.shard_id == shard_id)
        .order_by(*beyond_cursor.order_of(connection))
        .limit(1)
        for shard_id in shard_ids
    ]
    return min(
        (int(row.created_at_us) for row in union_rows(connection, legs, rows=1)), default=None
    )


def _elsewhere(
    connection: Connection, table: Table, name: str, shards: list[Shard], most: int
) -> tuple[list[Count], list[Count]]:
    """Count timers or dead letters, among the first `most` rows of each shard.

    Returns:
        For each shard the rows whose record will be read again, and all rows.
    """
    log, time = log_of(connection), table.c[2]
    legs = []
    for each in shards:
        its = select(log.c.task_id).where(
            backlog.is_record_of(connection, table), each.again(connection)
        )
        legs.append(
            select(case((its.correlate(table).exists(), 1), else_=0).label("meant"))
            .where(of_shard(table, name, each.shard_id))
            .order_by(time)
            .limit(most)
        )
    found = _counted(connection, legs, most)
    return [meant for meant, _ in found], [all_ for _, all_ in found]


def _counted(
    connection: Connection, legs: list[Select[Any]], most: int
) -> list[tuple[Count, Count]]:
    """Count for each leg the rows that are `meant`, and all rows."""
    counts = []
    for leg in legs:
        looked = leg.subquery()
        meant = func.coalesce(func.sum(looked.c.meant), 0).label("meant")
        counts.append(select(func.count().label("n"), meant).select_from(looked))
    found = [(Count(), Count())] * len(legs)
    for row in union_rows(connection, counts, rows=most):
        capped = row.n >= most
        found[row.leg] = Count(int(row.meant), capped), Count(row.n, capped)
    return found


def of_shard(table: Table, name: str, shard_id: int) -> ColumnElement[bool]:
    """Return the condition for the rows of a shard in a table of timers or dead letters."""
    return and_(table.c.consumer_group == name, table.c.shard_id == shard_id)
