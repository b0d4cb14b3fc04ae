"""Tasks of a group that wait, one page of one state at a time, without their payloads.

- `logged`: in the log beyond the group's cursors: no worker has read them, or none has settled
  anything in their shard since;
- `open`: read by the shard's owner and not settled: ready, held back by a limit, or running;
- `parked`: in the timers, until a due time, a retry, or the end of another task of their key.

Nothing is counted. A page reads a bounded number of rows along a key of each shard, goes as far as
all of them have reached, and says where the next one begins. So a filter that leaves much out has
short pages, or empty ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec
from sqlalchemy import BigInteger, ColumnElement, Connection, Engine, Select, cast, tuple_
from sqlalchemy import select as selected

from late.control.sql.beyond_cursor import WINDOW, beyond, beyond_window, order_of, window_of
from late.control.sql.last_settlement import Journal, journals
from late.control.sql.per_shard import LATERAL, Value, lateral_rows, union_rows
from late.control.sql.positions import registered
from late.control.sql.rows import log_of, now_us, open_of
from late.control.sql.shards import named
from late.control.status.backlog import rows_of_keys
from late.errors import ConfigError
from late.model.task import OpenTask, Reads
from late.model.validation import RESERVED
from late.schema.column_types import TaskIdType, Xid8
from late.schema.engine import reading
from late.schema.tables import timer

LOOKED = 4_000
"""Rows that a page looks at, all shards together."""
LOOKED_MIN = 20
"""Rows of one shard that are looked at, however many shards there are."""
LIMIT = 100

State = Literal["logged", "open", "parked"]
Key = tuple[int, str]
"""The order of a state: the position in the log or the due time, then the id."""


class Waiting(msgspec.Struct, frozen=True):
    """One task that waits."""

    key: Key
    task_id: str
    queue: str
    name: str
    shard_id: int
    created_at_us: int
    attempts: int = 0
    due_at_us: int | None = None
    reason: str | None = None
    """Why it is parked."""
    started: bool = False
    """An attempt was under way when its shard's owner last recorded its state."""


class WaitingPage(msgspec.Struct, frozen=True):
    """One page."""

    tasks: tuple[Waiting, ...]
    after: Key | None
    """The key after which the next page begins; None if this is the last one."""
    now_us: int
    """The database's clock."""


class WaitingFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks that are asked for."""

    group: str
    queue: str | None = None
    name: str | None = None
    older_us: int = 0
    """Enqueued at least so long ago."""

    def takes(self, task: Waiting, reads: Reads, now: int) -> bool:
        """Tell whether the filter takes a task, and the group does; commands are no tasks."""
        return (
            not task.queue.startswith(RESERVED)
            and self.queue in (None, task.queue)
            and self.name in (None, task.name)
            and now - task.created_at_us >= self.older_us
            and task.created_at_us >= reads.from_us
            and (reads.queues is None or task.queue in reads.queues)
        )


def read_waiting(
    engine: Engine,
    state: State,
    which: WaitingFilter,
    *,
    after: Key | None = None,
    limit: int = LIMIT,
) -> WaitingPage:
    """Read up to `limit` tasks in one state behind `after`, in the order of their keys.

    Raises:
        ConfigError: there is no such state or group, or the limit is below 1.
    """
    if state not in ("logged", "open", "parked") or limit < 1:
        raise ConfigError(f"no waiting tasks in state {state!r:.40} with limit {limit}")
    with reading(engine) as connection:
        reads = registered(connection, which.group).get(which.group)
        if reads is None:
            raise ConfigError(f"no consumer group {which.group!r:.140}")
        now = now_us(connection)
        seen = {
            shard_id: each
            for (name, shard_id), each in journals(connection).items()
            if name == which.group
        }
        shards = sorted(named(connection).known | seen.keys())
        most = max(LOOKED_MIN, LOOKED // max(1, len(shards)))
        if which == WaitingFilter(group=which.group):
            most = min(most, limit + 1)
        rows = {
            "logged": lambda: _logged(connection, shards, seen, after, most),
            "open": lambda: _open(connection, seen, after, most),
            "parked": lambda: _parked(connection, which.group, shards, after, most),
        }[state]()
        return _page(rows, which, reads, now, limit, most)


def _page(
    rows: Iterator[Waiting], which: WaitingFilter, reads: Reads, now: int, limit: int, most: int
) -> WaitingPage:
    """Put the rows of all shards in order, as far as each shard has come, and filter them."""
    of_shard: dict[int, list[Waiting]] = {}
    for row in rows:
        of_shard.setdefault(row.shard_id, []).append(row)
    ends = [max(row.key for row in some) for some in of_shard.values() if len(some) >= most]
    reached = min(ends, default=None)
    found = sorted(
        (row for some in of_shard.values() for row in some if which.takes(row, reads, now)),
        key=lambda row: row.key,
    )
    found = [row for row in found if reached is None or row.key <= reached]
    if len(found) > limit:
        found, reached = found[:limit], found[limit - 1].key
    return WaitingPage(tuple(found), reached, now)


def _parked(
    connection: Connection, group: str, shards: Sequence[int], after: Key | None, most: int
) -> Iterator[Waiting]:
    columns = (
        timer.c.due_at_us, timer.c.task_id, timer.c.queue, timer.c.name, timer.c.created_at_us,
        timer.c.attempts, timer.c.reason,
    )  # fmt: skip
    key = timer.c.due_at_us, timer.c.task_id
    later = [] if after is None else [_behind(key, (BigInteger(), TaskIdType()), after)]

    def leg(shard_id: Value) -> Select[Any]:
        mine = timer.c.consumer_group == group, timer.c.shard_id == shard_id, *later
        return selected(*columns).where(*mine).order_by(*key).limit(most)

    for row in lateral_rows(connection, leg, [(each,) for each in shards], rows=most):
        task_id = str(row.task_id)
        yield Waiting(
            (row.due_at_us, task_id), task_id, row.queue, row.name, shards[row.leg],
            row.created_at_us, row.attempts, row.due_at_us, row.reason,
        )  # fmt: skip


def _logged(
    connection: Connection,
    shards: Sequence[int],
    seen: dict[int, Journal],
    after: Key | None,
    most: int,
) -> Iterator[Waiting]:
    log = log_of(connection)
    types = (Xid8(), TaskIdType()) if "xid" in log.c else (BigInteger(),)
    order = order_of(connection)
    later = [] if after is None else [_behind(order, types, after)]
    columns = (order[0].label("position"), *_columns(connection))
    cursors = [(shard_id, seen.get(shard_id, Journal()).cursor) for shard_id in shards]

    def leg(where: ColumnElement[bool], limit: Any) -> Select[Any]:
        return selected(*columns).where(where, *later).order_by(*order).limit(limit)

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
        yield _of_log(row, shards[row.leg], int(row.position))


def _open(
    connection: Connection, seen: dict[int, Journal], after: Key | None, most: int
) -> Iterator[Waiting]:
    """The list of a shard's last settlement has a bound, so it is put in order here."""
    asked: list[tuple[int, Sequence[OpenTask]]] = []
    for shard_id, each in seen.items():
        left = [key for key in open_of(each.open) if after is None or _key(key) > after]
        asked.append((shard_id, sorted(left, key=_key)[:most]))
    found = rows_of_keys(connection, asked, *_columns(connection))
    for (shard_id, keys), rows in zip(asked, found, strict=True):
        of_id = {str(key.task_id): key for key in keys}
        for row in rows:
            known = of_id[str(row.task_id)]
            task = _of_log(row, shard_id, int(known.position))
            yield msgspec.structs.replace(task, started=known.started)


def _key(task: OpenTask) -> Key:
    return int(task.position), str(task.task_id)


def _columns(connection: Connection) -> tuple[ColumnElement[Any], ...]:
    log = log_of(connection)
    return log.c.task_id, log.c.queue, log.c.name, log.c.created_at_us


def _of_log(row: Any, shard_id: int, position: int) -> Waiting:
    task_id = str(row.task_id)
    return Waiting((position, task_id), task_id, row.queue, row.name, shard_id, row.created_at_us)


def _behind(
    columns: Sequence[ColumnElement[Any]], types: Sequence[Any], after: Key
) -> ColumnElement[bool]:
    """Return the condition that a key is behind `after`, as the database compares its columns."""
    casts = [cast(value, of) for value, of in zip(after, types, strict=False)]
    return columns[0] > casts[0] if len(casts) == 1 else tuple_(*columns) > tuple_(*casts)
