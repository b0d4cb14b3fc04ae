"""Rows of the log beyond a group's cursor: counted up to a limit, so that a look at a log of a
hundred million rows costs what a look at a few thousand does.

A cursor is private to its store, so this is the one place of the control plane where the
dialects differ: each asks its store's own reader of the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Connection,
    DateTime,
    FromClause,
    Numeric,
    Row,
    Select,
    Table,
    Text,
    and_,
    case,
    cast,
    func,
    literal,
    literal_column,
    not_,
    or_,
    select,
    tuple_,
)
from sqlalchemy.types import UserDefinedType

from late.control.rows import COCKROACH, SPANNER, log_of
from late.control.shardwise import ROWS, Value, counted, together
from late.errors import StoreError
from late.schema.tables import TaskIdType, Xid8, timer
from late.task import HELD_US, Cursor, OpenTask

KEYS_CHUNK = 500


class _Snapshot(UserDefinedType[str]):
    """PostgreSQL's `pg_snapshot`, for casts."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "pg_snapshot"

    def bind_processor(self, dialect: Any) -> Any:
        return None


def beyond(connection: Connection, shard_id: int, cursor: str) -> ColumnElement[bool]:
    """Whether a row of the log is of this shard and not covered by `cursor`.

    Raises:
        StoreError: not a cursor of this store.
    """
    log = log_of(connection)
    if connection.dialect.name == "postgresql":
        return and_(log.c.shard_id == shard_id, _beyond_snapshot(log, cursor))
    if connection.dialect.name == SPANNER:
        return and_(log.c.shard_id == shard_id, _beyond_timestamp(log, cursor))
    if connection.dialect.name == COCKROACH:
        return and_(log.c.shard_id == shard_id, _beyond_passes(log, cursor))
    from late.store.sqlite_sql import position_of

    try:
        position = position_of(cursor)
    except ValueError as error:
        raise StoreError(f"not a cursor of the SQLite store: {cursor[:200]!r}") from error
    return and_(log.c.shard_id == shard_id, log.c.seq > position)


def _beyond_snapshot(log: FromClause, cursor: str) -> ColumnElement[bool]:
    from late.store.postgres_cursor import parse

    window = parse(Cursor(cursor))
    # The first condition follows from the others; it is what the index can use.
    conditions = [log.c.xid >= literal(window.floor, Xid8)]
    if window.prev:
        conditions.append(not_(_visible(log, window.prev)))
    if window.cur is not None:
        xid, task_id = window.key
        key = tuple_(literal(xid, Xid8), literal(task_id, TaskIdType))
        read = tuple_(log.c.xid, log.c.task_id) <= key
        conditions.append(not_(and_(_visible(log, window.cur), read)))
    return and_(*conditions)


def _beyond_timestamp(log: FromClause, cursor: str) -> ColumnElement[bool]:
    from late.store.spanner_rows import moment_of, place_of

    place = place_of(cursor)
    moment = literal(moment_of(place.position), DateTime(timezone=True))
    later = log.c.created_at > moment
    if place.task_id is None:
        return later
    return or_(later, and_(log.c.created_at == moment, log.c.task_id > place.task_id))


def _beyond_passes(log: FromClause, cursor: str) -> ColumnElement[bool]:
    from late.store.cockroach_cursor import parse

    window = parse(Cursor(cursor))
    moment: ColumnElement[Any] = literal_column("crdb_internal_mvcc_timestamp", Numeric)

    def upto(us: int) -> ColumnElement[bool]:
        return moment <= literal_column(f"{us}000")

    recent = log.c.task_id >= literal(window.recent_from, TaskIdType)
    covered = or_(upto(window.swept), and_(upto(window.seen), recent))
    if window.until is not None:
        passed = and_(upto(window.until), log.c.task_id <= literal(window.key, TaskIdType))
        covered = or_(covered, passed if window.sweep else and_(passed, recent))
    return not_(covered)


def _visible(log: FromClause, snapshot: str) -> ColumnElement[bool]:
    seen = func.pg_visible_in_snapshot(log.c.xid, cast(snapshot, _Snapshot), type_=Boolean)
    return seen.is_(True)


def order_of(connection: Connection) -> tuple[ColumnElement[Any], ...]:
    """The order in which the log is read: along its key."""
    log = log_of(connection)
    if connection.dialect.name == "postgresql":
        return (log.c.xid, log.c.task_id)
    if connection.dialect.name == SPANNER:
        return (log.c.created_at, log.c.task_id)
    if connection.dialect.name == COCKROACH:
        return (log.c.task_id,)
    return (log.c.seq,)


class Ahead(msgspec.Struct, frozen=True):
    """What is asked of one shard."""

    shard_id: int
    cursor: str
    among: Sequence[ColumnElement[bool]] = ()
    """Conditions on the rows. Give those of one group to all of its shards as they are: then their
    parameters are in a statement once, but for Spanner's, whose driver numbers them."""


def per_queue(
    connection: Connection, asked: Sequence[Ahead], limit: int
) -> list[list[Row[tuple[int, str, int, int]]]]:
    """For each of `asked`: rows with `queue`, `n`, and `oldest_us` (the oldest created_at_us) over
    the first `limit` rows beyond its cursor."""
    log = log_of(connection)

    def leg(place: int, most: int) -> Select[Any]:
        each = asked[place]
        first = (
            select(log.c.queue, log.c.created_at_us)
            .where(beyond(connection, each.shard_id, each.cursor), *each.among)
            .order_by(*order_of(connection))
            .limit(most)
            .subquery()
        )
        oldest = func.min(first.c.created_at_us).label("oldest_us")
        return select(first.c.queue, func.count().label("n"), oldest).group_by(first.c.queue)

    def ask(places: Sequence[int], most: int) -> Iterator[Row[Any]]:
        return together(connection, [leg(place, most) for place in places], rows=most)

    return counted(connection, ask, len(asked), limit)


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
    """For each (shard, keys): rows with `queue` and `created_at_us`, of those keys that are still
    in the log."""
    log = log_of(connection)
    conditioned = [(log.c.shard_id == shard_id, keys) for shard_id, keys in asked]
    return _by_keys(connection, conditioned, log.c.queue, log.c.created_at_us)


def ids_among(
    connection: Connection, asked: Sequence[tuple[ColumnElement[bool], Sequence[OpenTask]]]
) -> list[set[str]]:
    """For each (condition, keys): the ids of those keys whose row is in the log and meets it."""
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
    for row in together(connection, legs, rows=most * ROWS // KEYS_CHUNK):
        found[places[row.leg]].append(row)
    return found


def is_record_of(connection: Connection, table: Table) -> ColumnElement[bool]:
    """Whether a row of the log is that of a row of the timers or dead letters, by its key: what
    was kept before a rebase has another, and is not found."""
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
