"""Count the unfinished tasks of each limit key, in the queues that bound them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Engine, Row, Select, Text, case, func, select

from late.control.sql.last_settlement import Journal, journals
from late.control.sql.per_shard import Value, lateral_rows
from late.control.sql.positions import registered, taken
from late.control.sql.rows import SPANNER, log_of, open_of
from late.control.sql.shards import groups_of, survey
from late.control.status import backlog
from late.model.admission import name_of
from late.model.task import LIMIT_KEY, Reads
from late.schema.engine import reading
from late.schema.tables import timer

_KEY = rf'"{LIMIT_KEY}"\s*:\s*"([^"\\]+)"'
"""The key in the text of the headers. A quote inside a value is escaped, so it matches no value."""


def held_by_keys(
    engine: Engine, queues: Collection[str], groups: Collection[str], *, limit: int
) -> dict[str, int]:
    """Count the tasks of each limit key of `queues`, in that one of `groups` which has the most.

    Args:
        limit: where the count of one group and shard stops.

    Returns:
        The tasks by the name of the key (`late.model.admission.name_of`).
    """
    found: Counter[str] = Counter()
    if queues:
        with reading(engine) as connection:
            for group in groups_of(connection):
                if group in groups:
                    found |= _of_group(connection, group, sorted(queues), limit)
    return dict(found)


def _of_group(
    connection: Connection, group: str, queues: Sequence[str], limit: int
) -> Counter[str]:
    log, last, there = log_of(connection), journals(connection), survey(connection)
    name = _name(connection, log.c.queue, log.c.headers)
    among = [*taken(connection, registered(connection).get(group, Reads())),
             log.c.queue.in_(queues), name.is_not(None)]  # fmt: skip
    asked, opened = [], []
    for shard_id in there.logged:
        journal = last.get((group, shard_id), Journal())
        asked.append(backlog.Ahead(shard_id, journal.cursor, among))
        opened.append((shard_id, open_of(journal.open)))
    found: Counter[str] = Counter()
    for rows in backlog.per_queue(connection, asked, limit, name=name):
        found.update({row.queue: row.n for row in rows})
    for rows in backlog.rows_of_keys(connection, opened, log.c.queue, log.c.headers):
        found.update(named for row in rows if (named := _read(row, queues)) is not None)
    shards = [(group, shard_id) for shard_id in sorted(there.known | there.logged)]
    for row in _parked(connection, shards, queues, limit):
        found[row.name] += row.n
    return found


def _parked(
    connection: Connection, shards: Sequence[tuple[str, int]], queues: Sequence[str], limit: int
) -> Iterator[Row[Any]]:
    name = _name(connection, timer.c.queue, timer.c.headers).label("name")

    def leg(group: Value, shard_id: Value) -> Select[Any]:
        first = (
            select(name)
            .where(timer.c.consumer_group == group, timer.c.shard_id == shard_id)
            .where(timer.c.queue.in_(queues), name.is_not(None))
            # Along the key, as the counts of a status.
            .order_by(timer.c.due_at_us)
            .limit(limit)
            .subquery()
        )
        return select(first.c.name, func.count().label("n")).group_by(first.c.name)

    return lateral_rows(connection, leg, shards, rows=limit)


def _name(
    connection: Connection, queue: ColumnElement[str], headers: ColumnElement[Any]
) -> ColumnElement[str]:
    """Return the name of a row's limit key in SQL; NULL if it has none, or headers of no use."""
    dialect = connection.dialect.name
    key: ColumnElement[str]
    if dialect == SPANNER:
        key = func.regexp_extract(headers, _KEY, type_=Text())
    elif dialect == "sqlite":
        key = case((func.json_valid(headers) == 1, func.json_extract(headers, f"$.{LIMIT_KEY}")))
    else:
        key = func.substring(headers, _KEY, type_=Text())
    return queue + " " + key


def _read(row: Row[Any], queues: Collection[str]) -> str | None:
    """Return the name of the limit key of one row."""
    if row.queue not in queues or not row.headers:
        return None
    try:
        key = msgspec.json.decode(row.headers, type=dict[str, str]).get(LIMIT_KEY)
    except msgspec.MsgspecError:
        return None
    return None if key is None else name_of(row.queue, key)
