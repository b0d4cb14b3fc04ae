"""Each (group, shard) at a past moment: counts of what the journal and the tables still tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Column, Connection, Row, Select, Table, func, not_, select

from late.control.past.books import Unfinished, split, unfinished_then
from late.control.past.journal import Past, Since, Stood
from late.control.sql.beyond_cursor import beyond, order_of
from late.control.sql.last_settlement import Journal
from late.control.sql.per_shard import Value, lateral_rows
from late.control.sql.positions import registered, taken
from late.control.sql.rows import log_of, open_of
from late.control.sql.shards import Shard, survey
from late.control.status import backlog
from late.control.views import Count
from late.model.task import Reads
from late.schema.tables import dead, timer
from late.store.common.open_tasks import outline_of

COMPARED_MAX = 100_000
"""Records of a shard that are counted to see whether all that were read since are still there."""


class ShardThen(msgspec.Struct, frozen=True):
    """One (group, shard) at the moment."""

    key: Shard
    stood: Stood
    depth: Mapping[str, Count]
    """Records beyond the cursor, by queue: `capped` where some have left the log."""
    oldest_us: Mapping[str, int]
    whole: bool
    """True if every record of then is still in the log."""
    in_flight: int
    unfinished: Unfinished | None
    began_us: Mapping[str, int] | None
    """The oldest open task by queue; None if not all of them are still in the log."""
    dead: Mapping[str, Count]


def shards_then(
    connection: Connection, past: Past, groups: Sequence[str], limit: int
) -> Iterator[ShardThen]:
    there, reads = survey(connection), registered(connection)
    begun = Stood(Journal(), None, Journal(), Since())
    keys = [
        (name, shard_id)
        for name in groups
        for shard_id in there.every
        if (name, shard_id) in past.stood or shard_id in there.used
    ]
    stood = [past.stood.get(key, begun) for key in keys]
    taken_by = {name: taken(connection, reads.get(name, Reads())) for name in groups}
    by_then = log_of(connection).c.created_at_us <= past.at_us
    among = {name: [*each, by_then] for name, each in taken_by.items()}

    def ahead(cursors: Sequence[str]) -> list[list[Row[Any]]]:
        asked = [
            backlog.Ahead(key[1], cursor, among[key[0]])
            for key, cursor in zip(keys, cursors, strict=True)
        ]
        return backlog.per_queue(connection, asked, limit)

    waiting = ahead([each.then.cursor for each in stood])
    unread = ahead([each.now.cursor for each in stood])
    letters = _by_queue(connection, dead, dead.c.dead_at_us, keys, limit, past.at_us)
    parked = _by_queue(connection, timer, timer.c.due_at_us, keys, limit)
    opened = backlog.by_keys(
        connection,
        [(key[1], open_of(at.open)) for key, each in zip(keys, stood, strict=True)
         for at in (each.then, each.now)],
    )  # fmt: skip
    for place, (key, each) in enumerate(zip(keys, stood, strict=True)):
        whole = _is_whole(connection, key, each, taken_by[key[0]])
        count = outline_of(each.then.open).count
        then, now = opened[2 * place], opened[2 * place + 1]
        queues = [row.queue for row in then] if len(then) == count else None
        timers, capped = parked[key]
        unfinished = None
        if not capped and len(now) == len(open_of(each.now.open)):
            timers.update(row.queue for row in now)
            unfinished = unfinished_then(timers, each.since)
        yield ShardThen(
            key=key,
            stood=each,
            depth=_depth(waiting[place], unread[place], each.since, limit, whole=whole),
            oldest_us={row.queue: row.oldest_us for row in waiting[place]},
            whole=whole,
            in_flight=count,
            unfinished=None if unfinished is None else split(unfinished, count, queues),
            began_us=_oldest(then) if len(then) == count else None,
            dead={queue: Count(n, letters[key][1]) for queue, n in letters[key][0].items()},
        )


def _by_queue(
    connection: Connection,
    table: Table,
    time: Column[int],
    keys: Sequence[Shard],
    limit: int,
    until_us: int | None = None,
) -> dict[Shard, tuple[Counter[str], bool]]:
    """Count rows of each (group, shard) by queue, up to a limit, and say whether that was met."""

    def leg(name: Value, shard_id: Value) -> Select[Any]:
        of = (table.c.consumer_group == name, table.c.shard_id == shard_id)
        by_then = () if until_us is None else (time <= until_us,)
        first = select(table.c.queue).where(*of, *by_then).order_by(time).limit(limit).subquery()
        return select(first.c.queue, func.count().label("n")).group_by(first.c.queue)

    counts: dict[Shard, Counter[str]] = {key: Counter() for key in keys}
    for row in lateral_rows(connection, leg, keys, rows=limit):
        counts[keys[row.leg]][row.queue] += row.n
    return {key: (each, each.total() >= limit) for key, each in counts.items()}


def _is_whole(connection: Connection, key: Shard, stood: Stood, among: backlog.Among) -> bool:
    """Tell whether every record that was read since the moment is still in the log."""
    arrived = stood.since.arrived.total()
    if stood.since.anew or arrived > COMPARED_MAX:
        return False
    if not arrived:
        return True
    log = log_of(connection)
    covered = (
        beyond(connection, key[1], stood.then.cursor),
        not_(beyond(connection, key[1], stood.now.cursor)),
    )
    read = select(log.c.task_id).where(*covered, *among).order_by(*order_of(connection))
    counted = select(func.count()).select_from(read.limit(arrived + 1).subquery())
    return connection.execute(counted).scalar_one() == arrived


def _depth(
    waiting: Sequence[Row[Any]],
    unread: Sequence[Row[Any]],
    since: Since,
    limit: int,
    *,
    whole: bool,
) -> dict[str, Count]:
    """Return the number of records beyond the cursor of then, by queue.

    Where some have left the log, at least those count that are there, or that were old enough when
    they were read.
    """
    sure = whole or (not since.anew and since.older == since.arrived)
    capped = not sure or max(sum(row.n for row in rows) for rows in (waiting, unread)) >= limit
    found = Counter({row.queue: row.n for row in waiting})
    if not whole and not since.anew:
        least = Counter({row.queue: row.n for row in unread}) + since.older
        found |= least
    names = found.keys() | (since.arrived.keys() if not whole else set())
    return {queue: Count(found[queue], capped) for queue in names}


def _oldest(rows: Sequence[Row[Any]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in rows:
        found[row.queue] = min(found.get(row.queue, row.created_at_us), row.created_at_us)
    return found
