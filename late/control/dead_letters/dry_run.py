"""Say what a purge or a redrive of dead letters would do: how many, and the first of them.

It is shown before a decision, so it must be quick: a count looks at the first `LOOKED` rows and
says where it stopped. It counts all rows that it looks at, because no index passes over those that
do not match. For millions of rows there is the `exact` count.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    FromClause,
    Select,
    and_,
    case,
    func,
    select,
    true,
)

from late.control.dead_letters.filter import Filter
from late.control.sql.per_shard import ROWS, limited_count, union_rows
from late.control.sql.shards import Shard, named, parked
from late.control.views import Count, Moved
from late.schema.engine import reading
from late.schema.tables import dead

LOOKED = 10_000
"""Rows that are looked at for a count, all shards together."""
IDS_SHOWN = 100
_ORDER = ("dead_at_us", "task_id")


def preview(engine: Engine, which: Filter, limit: int | None, *, exact: bool) -> Moved:
    """Count what would be moved.

    Args:
        limit: the largest number to move.
        exact: count all, however long it takes: a statement for each shard, which reads its end.
    """
    with reading(engine) as connection:
        there = parked(connection, dead.c.dead_at_us, named(connection).known)
        shards = [shard for shard, _ in there if which.reaches(*shard)]
        found = _all(connection, which, shards) if exact else _first(connection, which, shards)
        ids = _oldest(connection, which, shards, IDS_SHOWN if limit is None else limit)
    # They are looked for in each shard and the count ends within one: it may have seen fewer.
    found = Count(max(found.n, len(ids)), found.capped)
    if limit is not None and found.n >= limit:
        found = Count(limit)
    return Moved(found.n, True, ids, capped=found.capped)


def _all(connection: Connection, which: Filter, shards: list[Shard]) -> Count:
    legs = [
        select(func.count().label("n")).where(*_of(shard), *which.clauses()) for shard in shards
    ]
    return Count(sum(row.n for row in union_rows(connection, legs, rows=ROWS)))


def _first(connection: Connection, which: Filter, shards: list[Shard]) -> Count:
    """Count among the first `LOOKED` rows, shard by shard."""

    def meant(looked: FromClause) -> ColumnElement[int]:
        matches = case((and_(true(), *which.clauses(looked.c)), 1), else_=0)
        return func.coalesce(func.sum(matches), 0).label("n")

    found, looked = 0, 0
    for row in limited_count(connection, list(_legs(which, shards)), LOOKED, meant):
        found, looked = found + int(row.n), looked + row.looked
    return Count(found, looked >= LOOKED)


def _oldest(
    connection: Connection, which: Filter, shards: list[Shard], most: int
) -> tuple[str, ...]:
    """Ids of those that would go first, up to `most` and `IDS_SHOWN` of them: among the first rows
    of each shard, where a filter leaves some out."""
    most = min(most, IDS_SHOWN)
    sifted = any((which.queue, which.name, which.reason, which.error))
    looked = max(most, LOOKED // max(1, len(shards))) if sifted else most
    legs = []
    for leg in _legs(which, shards):
        first = leg.limit(looked).subquery()
        order = [first.c[name] for name in _ORDER]
        matching = select(*order).where(*which.clauses(first.c))
        legs.append(matching.order_by(*order).limit(most))
    found = union_rows(connection, legs, rows=looked)
    return tuple(each[1] for each in sorted((r.dead_at_us, str(r.task_id)) for r in found)[:most])


def _legs(which: Filter, shards: list[Shard]) -> Iterator[Select[Any]]:
    """The rows of each shard that are looked at, the oldest first: those of the time that is asked
    for, or the one of an id, as indexes have them. With what the filter asks about."""
    # An error may be long, and is read only by who looks for one.
    others = (*dead.primary_key, dead.c.queue, dead.c.name, dead.c.reason)
    columns = others if which.error is None else (*others, dead.c.errors)
    for shard in shards:
        leg = select(*columns).where(*_of(shard), *which.keyed().clauses())
        # By an index of their own there is one, and to put it in order may lead along the other.
        by_id = which.task_id or which.task_ids
        yield leg if by_id else leg.order_by(*(dead.c[name] for name in _ORDER))


def _of(shard: Shard) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return dead.c.consumer_group == shard[0], dead.c.shard_id == shard[1]
