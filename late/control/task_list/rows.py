"""Rows of one state, some of each shard, in the order of their keys; without their payloads.

Each reads a bounded number of rows along a key of each shard, or keys that are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    DateTime,
    Select,
    and_,
    cast,
    literal,
    or_,
    select,
    tuple_,
)
from sqlalchemy.types import TypeEngine

from late.control.reports import reports
from late.control.sql.beyond_cursor import WINDOW, beyond, beyond_window, order_of, window_of
from late.control.sql.last_settlement import Journal
from late.control.sql.per_shard import LATERAL, Value, lateral_rows, union_rows
from late.control.sql.rows import COCKROACH, SPANNER, log_of, object_of, open_of
from late.control.status.backlog import rows_of_keys
from late.control.task_list.model import Key, ListedTask, TaskFilter
from late.model.ids import id_before, made_at_us, shard_of
from late.model.task import EndDetail, Final, OpenTask
from late.schema.column_types import TaskIdType, Xid8
from late.schema.tables import history, timer

_detail = msgspec.json.Decoder(EndDetail).decode


def parked(
    connection: Connection, which: TaskFilter, shards: Sequence[int], after: Key | None, most: int
) -> Iterator[ListedTask]:
    """Up to `most` of each shard's timers, the next to come due first."""
    columns = (
        timer.c.due_at_us, timer.c.task_id, timer.c.queue, timer.c.name, timer.c.created_at_us,
        timer.c.attempts, timer.c.reason, timer.c.held_key, *_asked(timer, which),
    )  # fmt: skip
    key = timer.c.due_at_us, timer.c.task_id
    among = [] if after is None else [_behind(connection, key, BigInteger(), after)]
    if which.since_us is not None:
        among.append(timer.c.due_at_us >= which.since_us)
    if which.until_us is not None:
        among.append(timer.c.due_at_us < which.until_us)

    def leg(shard_id: Value) -> Select[Any]:
        mine = timer.c.consumer_group == which.group, timer.c.shard_id == shard_id, *among
        return select(*columns).where(*mine).order_by(*key).limit(most)

    for row in lateral_rows(connection, leg, [(each,) for each in shards], rows=most):
        yield _of_row(
            row, which, shards[row.leg], row.due_at_us, row.held_key,
            attempts=row.attempts, due_at_us=row.due_at_us, reason=row.reason,
        )  # fmt: skip


def logged(
    connection: Connection,
    which: TaskFilter,
    shards: Sequence[int],
    seen: Mapping[int, Journal],
    after: Key | None,
    most: int,
) -> Iterator[ListedTask]:
    """Up to `most` of each shard's rows of the log beyond the group's cursor."""
    log = log_of(connection)
    order = order_of(connection)
    later = [] if after is None else [_beyond(connection, after)]
    columns = (_position(connection).label("at"), *_of_log(connection, which))
    cursors = [(shard_id, seen.get(shard_id, Journal()).cursor) for shard_id in shards]

    def leg(where: ColumnElement[bool], limit: Any) -> Select[Any]:
        return select(*columns).where(where, *later).order_by(*order).limit(limit)

    if connection.dialect.name in LATERAL:
        # The limit is a column too: see `backlog.per_queue`.
        windows = [(*window_of(*each), most) for each in cursors]
        found = lateral_rows(
            connection,
            lambda *values: leg(beyond_window(log, *values[:-1]), values[-1]),
            windows,
            types=(*WINDOW, BigInteger()),
            rows=most,
        )
    else:
        legs = [leg(beyond(connection, *each), most) for each in cursors]
        found = union_rows(connection, legs, rows=most)
    for row in found:
        yield _of_row(row, which, shards[row.leg], int(row.at))


def opened(
    connection: Connection,
    which: TaskFilter,
    seen: Mapping[int, Journal],
    after: Key | None,
    most: int,
) -> Iterator[ListedTask]:
    """Up to `most` of those that each shard's last settlement has in `open`: a list with a bound,
    so it is put in order here."""
    asked: list[tuple[int, Sequence[OpenTask]]] = []
    for shard_id, each in seen.items():
        left = [key for key in open_of(each.open) if after is None or _key(key) > after]
        asked.append((shard_id, sorted(left, key=_key)[:most]))
    found = rows_of_keys(connection, asked, *_of_log(connection, which))
    for (shard_id, keys), rows in zip(asked, found, strict=True):
        of_id = {str(key.task_id): key for key in keys}
        for row in rows:
            known = of_id[str(row.task_id)]
            task = _of_row(row, which, shard_id, int(known.position))
            yield msgspec.structs.replace(task, started=known.started)


def running(connection: Connection, which: TaskFilter) -> list[ListedTask]:
    """Return what the workers of the group report as running, the oldest first."""
    found: dict[str, ListedTask] = {}
    for each in reports(connection):
        if not each.running:
            continue
        for run in each.report.runs:
            if run.group != which.group or run.task_id in found:  # The latest report counts.
                continue
            found[run.task_id] = ListedTask(
                at=run.since_us, task_id=run.task_id, group=run.group,
                shard_id=shard_of(run.task_id), queue=run.queue, name=run.task,
                attempts=run.attempt, worker=run.where or each.report.address,
                began_at_us=run.since_us, trace=run.trace or None,
            )  # fmt: skip
    return sorted(found.values(), key=lambda task: task.key)


def done(
    connection: Connection, which: TaskFilter, after: Key | None, most: int
) -> tuple[list[ListedTask], Key | None]:
    """The ends among the last `most` steps of kept histories, the latest made first; and how far
    down the look came, None if to the end.

    A history has no index by time, but ids ascend with the time at which they were made.
    """
    mine = [history.c.consumer_group == which.group]
    if after is not None:
        mine.append(history.c.task_id < after[1])
    if which.since_us is not None:
        mine.append(history.c.task_id >= id_before(which.since_us))
    if which.until_us is not None:
        mine.append(history.c.task_id < id_before(which.until_us))
    order = history.c.task_id.desc(), history.c.number.desc()
    columns = (history.c.task_id, history.c.at_us, history.c.event, history.c.worker,
               history.c.detail)  # fmt: skip
    rows = connection.execute(select(*columns).where(*mine).order_by(*order).limit(most)).all()
    found = []
    for row in rows:
        if row.event not in get_args(Final):
            continue
        task_id = str(row.task_id)
        detail = _detail(row.detail) if row.detail else EndDetail()
        found.append(
            ListedTask(
                at=made_at_us(task_id), task_id=task_id, group=which.group,
                shard_id=shard_of(task_id), queue=detail.queue or None, name=detail.name or None,
                attempts=detail.attempt or 0, reason=row.event, worker=row.worker,
                began_at_us=detail.started_at_us, ended_at_us=row.at_us, error=detail.error,
            )
        )  # fmt: skip
    if len(rows) < most:
        return found, None
    last = str(rows[-1].task_id)
    # The steps of this one may go on behind the look; its end comes first.
    return found, (made_at_us(last), last)


def _key(task: OpenTask) -> Key:
    return int(task.position), str(task.task_id)


def _of_log(connection: Connection, which: TaskFilter) -> tuple[ColumnElement[Any], ...]:
    log = log_of(connection)
    known = log.c.task_id, log.c.queue, log.c.name, log.c.created_at_us
    return (*known, *_asked(log, which))


def _asked(table: Any, which: TaskFilter) -> list[ColumnElement[Any]]:
    """Columns that only a filter reads: they may be long."""
    wanted = [table.c.options] if which.key is not None else []
    return [*wanted, table.c.headers] if which.asks_headers else wanted


def _of_row(
    row: Any, which: TaskFilter, shard_id: int, number: int, held_key: str | None = None,
    **more: Any,
) -> ListedTask:  # fmt: skip
    options = object_of(row.options) if which.key is not None else None
    return ListedTask(
        at=number, task_id=str(row.task_id), group=which.group, shard_id=shard_id,
        queue=row.queue, name=row.name, created_at_us=row.created_at_us,
        ordering_key=held_key or (options or {}).get("ordering_key"),
        headers=object_of(row.headers) if which.asks_headers else None, **more,
    )  # fmt: skip


def _position(connection: Connection) -> ColumnElement[Any]:
    """The place of a row in the order of the log, as a number; with the id it is a key."""
    log, dialect = log_of(connection), connection.dialect.name
    if dialect == COCKROACH:
        return literal(0)  # Its order is that of ids.
    return log.c.position if dialect == SPANNER else order_of(connection)[0]


def _beyond(connection: Connection, after: Key) -> ColumnElement[bool]:
    """Return the condition that a row of the log is behind `after`."""
    log, dialect = log_of(connection), connection.dialect.name
    if dialect == COCKROACH:
        return log.c.task_id > cast(after[1], TaskIdType())
    if dialect == SPANNER:
        from late.store.spanner.cursor import moment_of

        moment = literal(moment_of(after[0]), DateTime(timezone=True))
        return or_(
            log.c.created_at > moment,
            and_(log.c.created_at == moment, log.c.task_id > after[1]),
        )
    order = order_of(connection)
    if len(order) == 1:
        return order[0] > after[0]
    return _behind(connection, order, Xid8(), after)


def _behind(
    connection: Connection, columns: Sequence[ColumnElement[Any]], of: TypeEngine[Any], after: Key
) -> ColumnElement[bool]:
    """Return the condition that a key is behind `after`; `of` is the type of its number."""
    number, task_id = columns
    if connection.dialect.name == SPANNER:  # It compares no tuples, and its driver casts no texts.
        return or_(number > after[0], and_(number == after[0], task_id > after[1]))
    casts = cast(after[0], of), cast(after[1], TaskIdType())
    return tuple_(*columns) > tuple_(*casts)
