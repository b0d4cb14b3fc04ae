"""Rows of the log beyond a group's cursor: counted up to a limit, so that a look at a log of a
hundred million rows costs what a look at a few thousand does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Row,
    Select,
    Table,
    Text,
    and_,
    case,
    cast,
    func,
    select,
    tuple_,
)

from late.control.sql.beyond_cursor import WINDOW, beyond, beyond_window, order_of, window_of
from late.control.sql.per_shard import LATERAL, ROWS, Value, counted, lateral_rows, union_rows
from late.control.sql.rows import COCKROACH, SPANNER, log_of
from late.model.task import HELD_US, OpenTask
from late.schema.column_types import Xid8
from late.schema.tables import timer

KEYS_CHUNK = 500
APART = 2
"""A row of the log counts as so many in a statement of PostgreSQL: the rows of a shard are not next
to each other there, and each is fetched by itself."""
Among = Sequence[ColumnElement[bool]]


class Ahead(msgspec.Struct, frozen=True):
    """A question about one shard."""

    shard_id: int
    cursor: str
    among: Among = ()
    """Conditions on the rows. Give those of one group to all of its shards as they are: then their
    parameters are in a statement once, but for Spanner's, whose driver numbers them."""


def per_queue(
    connection: Connection,
    asked: Sequence[Ahead],
    limit: int,
    *,
    name: ColumnElement[str] | None = None,
) -> list[list[Row[tuple[int, str, int, int]]]]:
    """Return for each of `asked` rows with `queue`, `n`, and `oldest_us` (the oldest created_at_us)
    over the first `limit` rows beyond its cursor.

    Args:
        name: counts by this instead of by the queue.
    """
    log = log_of(connection)
    by = (log.c.queue if name is None else name).label("queue")

    def leg(where: ColumnElement[bool], among: Among, most: Any) -> Select[Any]:
        ordered = select(by, log.c.created_at_us).where(where, *among)
        first = ordered.order_by(*order_of(connection)).limit(most).subquery()
        oldest = func.min(first.c.created_at_us).label("oldest_us")
        return select(first.c.queue, func.count().label("n"), oldest).group_by(first.c.queue)

    def united(some: Sequence[Ahead], most: int) -> Iterator[Row[Any]]:
        legs = [leg(beyond(connection, e.shard_id, e.cursor), e.among, most) for e in some]
        return union_rows(connection, legs, rows=most)

    def joined(some: Sequence[Ahead], most: int) -> Iterator[Row[Any]]:
        # The limit is a column too. A planner that knows it, and guesses at the rows beyond a
        # floor that it does not know, would gather and sort them all where it guesses few.
        windows = [(*window_of(each.shard_id, each.cursor), most) for each in some]

        def of(*values: Any) -> Select[Any]:
            return leg(beyond_window(log, *values[:-1]), some[0].among, values[-1])

        types = (*WINDOW, BigInteger())
        return lateral_rows(connection, of, windows, types=types, rows=most * APART)

    lateral = connection.dialect.name in LATERAL

    def found_of(ours: Sequence[Ahead]) -> list[list[Row[Any]]]:
        def ask(places: Sequence[int], most: int) -> Iterator[Row[Any]]:
            some = [ours[place] for place in places]
            return joined(some, most) if lateral else united(some, most)

        return counted(connection, ask, len(ours), limit)

    found: dict[int, list[Row[Any]]] = {}
    for places in _alike(asked) if lateral else [range(len(asked))]:
        rows = found_of([asked[place] for place in places])
        found.update(zip(places, rows, strict=True))
    return [found[place] for place in range(len(asked))]


def _alike(asked: Sequence[Ahead]) -> Iterable[Sequence[int]]:
    """Places of those with the same conditions: by identity, for no other way tells."""
    found: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for place, each in enumerate(asked):
        found[tuple(map(id, each.among))].append(place)
    return found.values()


def held(
    connection: Connection, name: Value, shard_id: Value, limit: int
) -> Select[tuple[str, int, int]]:
    """(queue, n, looked) over the first `limit` parked tasks of a group and shard that have an
    ordering key, key by key: `looked` of the queue are among them, and `n` of those wait behind
    their key, but not for a first one that waits for a time of its own.

    Of the one key that the `limit` may cut off, that first one may be behind the cut: the others
    count then.
    """
    some = (
        select(timer.c.held_key, timer.c.queue, timer.c.due_at_us)
        .where(
            timer.c.consumer_group == name,
            timer.c.shard_id == shard_id,
            timer.c.held_key.is_not(None),
        )
        # Along the index of them; what one transaction wrote may have one sequence.
        .order_by(timer.c.held_key, timer.c.sequence, timer.c.task_id)
        .limit(limit)
    )
    judged = _with_least(connection, some).subquery()
    waits = func.sum(case((judged.c.least_us >= HELD_US, 1), else_=0))
    counts = cast(waits, BigInteger).label("n"), func.count().label("looked")
    return select(judged.c.queue, *counts).group_by(judged.c.queue)


def _with_least(connection: Connection, some: Select[Any]) -> Select[tuple[str, int]]:
    """(queue, least_us) of each of these timers: the least due time among those of its key. To ask
    for it row by row would cost the product of them, as might a join by a planner without
    statistics; but Spanner has no windows, and joins by hashes."""
    each = some.subquery()
    if connection.dialect.name != SPANNER:
        of_key = func.min(each.c.due_at_us).over(partition_by=each.c.held_key)
        return select(each.c.queue, of_key.label("least_us"))
    again = some.subquery()
    least = func.min(again.c.due_at_us).label("least_us")
    keys = select(again.c.held_key, least).group_by(again.c.held_key).subquery()
    return select(each.c.queue, keys.c.least_us).join(keys, keys.c.held_key == each.c.held_key)


def by_keys(
    connection: Connection, asked: Sequence[tuple[int, Sequence[OpenTask]]]
) -> list[list[Row[Any]]]:
    """Return rows with `queue` and `created_at_us` of those keys that are still in the log, for
    each (shard, keys)."""
    log = log_of(connection)
    return rows_of_keys(connection, asked, log.c.queue, log.c.created_at_us)


def rows_of_keys(
    connection: Connection,
    asked: Sequence[tuple[int, Sequence[OpenTask]]],
    *columns: ColumnElement[Any],
) -> list[list[Row[Any]]]:
    """Return rows of the log with `columns`, of those keys that are still there, for each (shard,
    keys)."""
    log = log_of(connection)
    conditioned = [(log.c.shard_id == shard_id, keys) for shard_id, keys in asked]
    return _by_keys(connection, conditioned, *columns)


def ids_among(
    connection: Connection, asked: Sequence[tuple[ColumnElement[bool], Sequence[OpenTask]]]
) -> list[set[str]]:
    """Return for each (condition, keys) the ids of the keys whose row in the log meets it."""
    found = _by_keys(connection, asked, log_of(connection).c.task_id)
    return [{str(row.task_id) for row in rows} for rows in found]


def _by_keys(
    connection: Connection,
    asked: Sequence[tuple[ColumnElement[bool], Sequence[OpenTask]]],
    *columns: ColumnElement[Any],
) -> list[list[Row[Any]]]:
    legs, places = [], []
    for place, (condition, keys) in enumerate(asked):
        for start in range(0, len(keys), KEYS_CHUNK):
            some = _is_one_of(connection, keys[start : start + KEYS_CHUNK])
            legs.append(select(*columns).where(condition, some))
            places.append(place)
    found: list[list[Row[Any]]] = [[] for _ in asked]
    # Keys are parameters, of which a statement takes fewer than rows.
    most = min(KEYS_CHUNK, max((len(keys) for _, keys in asked), default=0))
    for row in union_rows(connection, legs, rows=most * ROWS // KEYS_CHUNK):
        found[places[row.leg]].append(row)
    return found


def is_record_of(connection: Connection, table: Table) -> ColumnElement[bool]:
    """Return the condition that a row of the log is that of a timer or dead letter, by its key.

    Rows that were kept before a rebase have another key and are not found.
    """
    log, dialect = log_of(connection), connection.dialect.name
    same = and_(log.c.shard_id == table.c.shard_id, log.c.task_id == table.c.task_id)
    if dialect == "postgresql":
        return and_(same, log.c.xid == cast(cast(table.c.position, Text), Xid8))
    if dialect == SPANNER:
        micros = func.div(table.c.position, 1_000)
        return and_(same, log.c.created_at == func.timestamp_micros(micros))
    return same if dialect == COCKROACH else and_(same, log.c.seq == table.c.position)


def _is_one_of(connection: Connection, keys: Sequence[OpenTask]) -> ColumnElement[bool]:
    log = log_of(connection)
    if connection.dialect.name == "postgresql":
        return tuple_(log.c.xid, log.c.task_id).in_([(k.position, k.task_id) for k in keys])
    if connection.dialect.name in (SPANNER, COCKROACH):
        # Ids are unique; the shard is in the statement already.
        return log.c.task_id.in_([key.task_id for key in keys])
    return log.c.seq.in_([key.position for key in keys])
