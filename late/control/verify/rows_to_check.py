"""The rows that `late verify` judges: which accounts there are, and every row of one of them.

Streams, sorted by the database, which does it on disk if it must: of a log of any size a few
thousand rows are in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Integer,
    Select,
    Table,
    Text,
    and_,
    case,
    cast,
    func,
    literal,
    null,
    or_,
    select,
    union_all,
)

from late.control.sql.positions import ahead
from late.control.sql.rows import COCKROACH, SPANNER, log_of
from late.control.sql.shards import Shard, survey
from late.control.verify.task_account import DEAD, KEY, LOGGED, PARKED, TICK
from late.model.task import DEFAULT_GROUP, HELD_US, Reads
from late.schema.tables import dead, lease, schedule, settlement, timer, unique

ALL = Reads()
CHUNK = 2_000
"""Rows that are fetched at once."""


def rows_of(
    connection: Connection, shard: Shard, cursor: str, begun: str, reads: Reads = ALL
) -> Any:
    """Every row of every task of the shard, sorted by task: see `account.Row`.

    Sorted and put together by the database, which does it on disk if it must. What the group
    passes over (`reads`) counts as settled.

    Raises:
        StoreError: a cursor that is none.
    """
    log = log_of(connection)
    name, shard_id = shard
    parts = [
        _part(
            log.c.task_id,
            LOGGED,
            _position(connection),
            _flag(ahead(connection, shard_id, cursor, reads)),
            _flag(ahead(connection, shard_id, begun, reads)),
        ).where(log.c.shard_id == shard_id)
    ]
    never = and_(timer.c.due_at_us >= HELD_US, timer.c.held_key.is_(None))
    for table, source, flag in ((timer, PARKED, _flag(never)), (dead, DEAD, _no)):
        part = _part(table.c.task_id, source, _none, flag, _no)
        parts.append(part.where(table.c.consumer_group == name, table.c.shard_id == shard_id))
    if name == DEFAULT_GROUP:  # the one whose end of a task frees its key and its schedule
        key = _part(unique.c.task_id, KEY, _none, _no, _no, unique.c.unique_key)
        tick = _part(schedule.c.open_task_id, TICK, _none, _no, _no, schedule.c.name)
        # One whose period is not over has outlived its task, as it should.
        lives = or_(unique.c.expires_at_us.is_(None), unique.c.expires_at_us < 0)
        parts.append(key.where(_shard_text(connection) == f"{shard_id:03x}", lives))
        parts.append(
            tick.where(schedule.c.open_task_id.isnot(None), schedule.c.shard_id == shard_id)
        )
    return union_all(*parts).order_by("task_id")


_no = literal(0, Integer)
_none = cast(null(), BigInteger)


def _part(
    task_id: ColumnElement[Any],
    source: int,
    position: ColumnElement[Any],
    flag: ColumnElement[Any],
    recent: ColumnElement[Any],
    name: ColumnElement[Any] | None = None,
) -> Select[Any]:
    return select(
        task_id.label("task_id"),
        literal(source, Integer).label("source"),
        position.label("position"),
        flag.label("flag"),
        recent.label("recent"),
        (literal("", Text) if name is None else name).label("name"),
    )


def _flag(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return case((condition, 1), else_=0)


def _position(connection: Connection) -> ColumnElement[Any]:
    log = log_of(connection)
    if connection.dialect.name == "postgresql":
        return cast(cast(log.c.xid, Text), BigInteger)
    if connection.dialect.name == SPANNER:
        return log.c.position
    return _none if connection.dialect.name == COCKROACH else log.c.seq


def _shard_text(connection: Connection) -> ColumnElement[str]:
    """The three hexadecimal digits in the id of a unique key's task that name its shard."""
    task_id: ColumnElement[Any] = unique.c.task_id
    if connection.dialect.name in ("postgresql", COCKROACH):
        task_id = cast(task_id, Text)
    return func.substr(task_id, 16, 3)


def streamed(connection: Connection, statement: Any) -> Iterator[Any]:
    """Rows as they come, a few thousand of them at a time."""
    yield from connection.execute(statement, execution_options={"yield_per": CHUNK})


def shards_of(connection: Connection, known: set[str]) -> set[Shard]:
    """Every (group, shard) that has anything: a lease, a journal, tasks in any place."""
    logged = survey(connection).logged
    found = {(name, shard_id) for name in known for shard_id in logged}
    for table in (lease, settlement, timer, dead):
        found.update(_pairs(connection, table))
    for (text,) in connection.execute(select(_shard_text(connection)).distinct()):
        found.add((DEFAULT_GROUP, int(text, 16)))
    ticking = select(schedule.c.shard_id).where(schedule.c.open_task_id.isnot(None))
    found.update((DEFAULT_GROUP, shard_id) for shard_id in connection.execute(ticking).scalars())
    return found


def _pairs(connection: Connection, table: Table) -> Iterator[Shard]:
    """One step down the primary key for each: a `distinct` would read all of the table."""
    key = (table.c.consumer_group, table.c.shard_id)
    last: Shard | None = None
    while True:
        statement = select(*key).order_by(*key).limit(1)
        if last is not None:
            statement = statement.where(_behind(key, last))
        following = connection.execute(statement).first()
        if following is None:
            return
        last = (following[0], following[1])
        yield last


def _behind(key: tuple[Column[Any], Column[Any]], last: Shard) -> ColumnElement[bool]:
    # Written so that every dialect has it; the first part is what an index can use.
    return and_(key[0] >= last[0], or_(key[0] > last[0], key[1] > last[1]))
