"""The latest dead letters of all shards, however many there are.

There is no index over all shards by time, for every dead letter would pay for it. So each shard is
read along its key from its end, a bounded way, and what is newer than the point that all of them
have reached is told: nothing of it is missing, and the next page goes on from there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Engine, Row, Select, cast, func, select
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from late.control.dead_letters.filter import Filter
from late.control.sql.per_shard import LATERAL, ROWS, Value, first_rows, lateral_rows, union_rows
from late.control.sql.rows import errors_of, object_of, payload_of
from late.control.sql.shards import Shard, named, parked
from late.control.views import DeadView
from late.schema.column_types import TaskIdType
from late.schema.engine import reading
from late.schema.tables import dead

LOOKED = 16_000
"""Rows that one page looks through, all shards together, where a filter leaves some out."""
LOOKED_MIN = 100
"""Rows of one shard that are looked at, however many shards there are."""
IDS = 500
"""Ids that are looked up in one statement."""

_ASKED = (
    dead.c.consumer_group,
    dead.c.shard_id,
    dead.c.dead_at_us,
    dead.c.task_id,
    dead.c.queue,
    dead.c.name,
    dead.c.reason,
)
"""Columns that a filter may ask about."""
_Key = tuple[int, str, str, int]
"""Time of death, task id, group and shard."""


class DeadLetterPage(msgspec.Struct, frozen=True):
    """One page."""

    letters: tuple[DeadView, ...]
    """The latest first."""
    before_us: int | None
    """The next page begins here; None when these were all."""


def read_page(engine: Engine, which: Filter, *, limit: int) -> DeadLetterPage:
    """Up to `limit` that match, the latest first; fewer, or none, where the way was too long."""
    which.check()
    with reading(engine) as connection:
        known = named(connection).known
        died = parked(connection, dead.c.dead_at_us, known)
        shards = [key for key, _ in died if which.reaches(*key)]
        some = any((which.queue, which.name, which.reason, which.error, which.task_id,
                    which.workflow))  # fmt: skip
        if some:
            looked = max(LOOKED_MIN, LOOKED // max(1, len(shards)), limit + 1)
            keys, ends = _sifted(connection, which, shards, limit, looked)
        else:
            keys, ends = _last(connection, which, shards, limit)
        reached = max(ends, default=None)
        keys.sort(reverse=True)
        keys = [key for key in keys if reached is None or key[0] >= reached]
        if len(keys) > limit:
            keys, reached = keys[:limit], keys[limit - 1][0]
        letters = _letters(connection, keys)
    return DeadLetterPage(letters, _before(which, reached))


def _latest_first(of: ReadOnlyColumnCollection[str, Any]) -> tuple[ColumnElement[Any], ...]:
    return of.dead_at_us.desc(), of.task_id.desc()


_ORDER = _latest_first(dead.c)


def _died(row: Row[Any]) -> tuple[int, str]:
    return row.dead_at_us, str(row.task_id)


def _of(which: Filter, name: Value, shard_id: Value) -> tuple[ColumnElement[bool], ...]:
    """Conditions on the key: of the shard, and of the time that is asked for."""
    time = Filter(since_us=which.since_us, until_us=which.until_us).clauses()
    return dead.c.consumer_group == name, dead.c.shard_id == shard_id, *time


def _last(
    connection: Connection, which: Filter, shards: list[Shard], limit: int
) -> tuple[list[_Key], list[int]]:
    """The last `limit`, for a filter that leaves none out; and when the first of those died, where
    there may be others before."""

    def leg(name: Value, shard_id: Value, most: int) -> Select[Any]:
        key = select(dead.c.dead_at_us, dead.c.task_id).where(*_of(which, name, shard_id))
        return key.order_by(*_ORDER).limit(most)

    rows = first_rows(connection, leg, shards, limit, _died, reverse=True)
    keys = [(row.dead_at_us, str(row.task_id), *shards[place]) for place, row in rows]
    return keys, [keys[-1][0]] if len(keys) == limit else []


def _sifted(
    connection: Connection, which: Filter, shards: list[Shard], limit: int, looked: int
) -> tuple[list[_Key], list[int]]:
    """Return the matches among the last `looked` of each shard; and the times as of `_last`."""
    # An error may be long, and is read only by who looks for one.
    columns = _ASKED if which.error is None else (*_ASKED, dead.c.errors)

    def leg(name: Value, shard_id: Value) -> Select[Any]:
        ours = _of(which, name, shard_id)
        last = select(*columns).where(*ours).order_by(*_ORDER).limit(looked).subquery()
        return (
            select(last.c.dead_at_us, last.c.task_id)
            .where(*which.clauses(last.c))
            .order_by(*_latest_first(last.c))
            .limit(limit + 1)
        )

    def end(name: Value, shard_id: Value) -> Select[Any]:
        ordered = select(dead.c.dead_at_us).where(*_of(which, name, shard_id)).order_by(*_ORDER)
        return ordered.offset(looked - 1).limit(1)

    keys = [
        (row.dead_at_us, str(row.task_id), *shards[row.leg])
        for row in lateral_rows(connection, leg, shards, rows=looked)
    ]
    return keys, [row.dead_at_us for row in lateral_rows(connection, end, shards, rows=looked)]


def _before(which: Filter, reached: int | None) -> int | None:
    """With the last moment of this page once more, for several may have died in it, and to see one
    twice is better than never; only where that would be this page again it is passed over."""
    if reached is None:
        return None
    return reached if which.until_us == reached + 1 else reached + 1


def _letters(connection: Connection, keys: list[_Key]) -> tuple[DeadView, ...]:
    """Whole, but without payloads, which have up to 1 MiB each."""
    by_shard: dict[tuple[str, int], list[str]] = defaultdict(list)
    for _, task_id, name, shard_id in keys:
        by_shard[name, shard_id].append(task_id)
    wanted = [column for column in dead.c if column is not dead.c.payload]
    size = func.length(dead.c.payload).label("payload_bytes")

    def leg(name: Value, shard_id: Value, ids: Sequence[Any]) -> Select[Any]:
        mine = dead.c.consumer_group == name, dead.c.shard_id == shard_id
        # The limit leaves nothing out, and a planner no choice but to look up each of them.
        return select(*wanted, size).where(*mine, dead.c.task_id.in_(ids)).limit(len(ids))

    def one(name: Value, shard_id: Value, task_id: Value) -> Select[Any]:
        return leg(name, shard_id, [cast(task_id, TaskIdType)])

    if connection.dialect.name in LATERAL:
        asked = [(name, shard_id, task_id) for _, task_id, name, shard_id in keys]
        rows = lateral_rows(connection, one, asked)
    else:
        # Ids are parameters, of which a statement takes fewer than rows.
        most = max(map(len, by_shard.values()), default=0)
        legs = [leg(*shard, ids) for shard, ids in by_shard.items()]
        rows = union_rows(connection, legs, rows=most * ROWS // IDS)
    found = {(row.consumer_group, str(row.task_id)): view_of(row._mapping, False) for row in rows}
    views = (found.get((name, task_id)) for _, task_id, name, _ in keys)
    return tuple(view for view in views if view is not None)


def view_of(row: Any, payload: bool) -> DeadView:
    """A row of `late_dead`, with the size of its payload as `payload_bytes`."""
    options = object_of(row["options"])
    return DeadView(
        task_id=str(row["task_id"]),
        group=row["consumer_group"],
        shard_id=row["shard_id"],
        dead_at_us=row["dead_at_us"],
        reason=row["reason"],
        queue=row["queue"],
        name=row["name"],
        created_at_us=row["created_at_us"],
        attempts=row["attempts"],
        deaths=row["deaths"],
        errors=errors_of(row["errors"]),
        payload_bytes=row["payload_bytes"],
        headers=object_of(row["headers"]),
        options=options,
        payload=payload_of(row["payload"], options) if payload else None,
    )
