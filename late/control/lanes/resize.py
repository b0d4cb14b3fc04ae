"""Resizing a lane while it works: `docs/design/0019`.

What a resize begins is finished by whoever looks: workers, while a closed version is there.
Everything here may be done by several at once, and stops anywhere without harm.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, delete, insert, select, update

from late import outbox
from late.control import audit
from late.control.groups.shadow import names_of
from late.control.lanes import open_transactions
from late.control.lanes.lanes import found_lane, room
from late.control.lanes.layout import (
    IDS_CHUNK,
    answers_of,
    extents_of,
    group_names,
    ids_of,
    layout_of,
)
from late.control.sql import positions
from late.control.sql.last_settlement import Journal, journals
from late.control.sql.rows import COCKROACH, locking, log_of, now_us
from late.errors import ConfigError, Conflict
from late.model.lanes import Extent, Lane, Left
from late.model.task import TaskId
from late.payload.command import closing
from late.scheduler.core.lane_drain import KEPT_US
from late.schema.engine import reading, write
from late.schema.tables import extent, lane, result

EXTENTS_MAX = 8
"""Versions that drain at the same time."""
UNREAD_AFTER_US = 5_000_000
"""The age of an unread closing at which it is asked whether its group will ever read it."""
UNREAD_MAX = 64
"""The number of those at a time."""

_encode = msgspec.json.Encoder().encode


def resize(engine: Engine, name: str, shards: int) -> Lane:
    """Give a lane another width, wider or narrower, while it works. The same width changes nothing.

    Raises:
        ConfigError: no such lane or no room; the last resize is not far enough; a database where
            the order of keys could not be kept.
    """

    def change(connection: Connection) -> Lane:
        if connection.dialect.name == COCKROACH:
            raise ConfigError(
                "a lane cannot be resized on CockroachDB: it has not been proven when a transaction"
                " there can no longer write by the old width, so keys could lose their order"
            )
        row, rows = found_lane(connection, name)
        if shards == row.shards:
            return Lane(name, row.first_shard, row.shards, row.version)
        most = room(row, rows)
        if not 1 <= shards <= most:
            raise ConfigError(f"lane {name!r} has room for 1 to {most} shards, not for {shards}")
        _check_pace(connection, name)
        connection.execute(
            insert(extent).values(
                lane=name, version=row.version, shards=row.shards, closed_at_us=now_us(connection)
            )
        )
        connection.execute(
            update(lane).where(lane.c.name == name).values(shards=shards, version=row.version + 1)
        )
        audit.record(
            connection,
            action="lane.resize",
            subject=f"lane:{name}",
            before={"shards": row.shards, "version": row.version},
            after={"shards": shards, "version": row.version + 1},
        )
        return Lane(name, row.first_shard, shards, row.version + 1)

    return write(engine, change)


def _check_pace(connection: Connection, name: str) -> None:
    closed = connection.execute(
        select(extent.c.version, extent.c.closings).where(extent.c.lane == name)
    ).all()
    if any(row.closings is None for row in closed):
        raise Conflict(
            f"lane {name!r} was resized a moment ago: transactions that began before may still"
            " write by its old width, or no worker runs that looks after it. Try again; `late"
            " shards` shows what it waits for"
        )
    if len(closed) >= EXTENTS_MAX:
        raise Conflict(
            f"lane {name!r} has {len(closed)} old widths that are not drained: see `late shards`"
        )


def advance(engine: Engine) -> None:
    """Go on with what resizes have begun: write the closings, answer for groups that will never
    read theirs, forget the versions that are drained. No lane waits for a shadow. Nothing to do
    costs one read."""
    with reading(engine) as connection:
        rows = extents_of(connection)
        if not rows:
            return
        found = layout_of(connection, rows).extents
        unread = _never_read(connection, rows, found)
        names = group_names(connection)
        shadows = names_of(connection)
    if unread:
        write(engine, partial(_answer, unread))
    for row, each in zip(rows, found, strict=True):
        if not each.closings:
            write(engine, partial(_close, row))
        elif _drained(each, [name for name in names if name not in shadows]):
            write(engine, partial(_forget, row, names))


def _drained(each: Extent, names: list[str]) -> bool:
    return all(
        (left := each.left.get((name, each.first_shard + n))) is not None and left.nothing
        for name in names
        for n in range(each.shards)
    )


def _close(seen: Any, connection: Connection) -> None:
    """Write the closings, if no transaction can write by the closed version any more."""
    at = (extent.c.lane == seen.lane, extent.c.version == seen.version)
    known, waits = seen, None
    if connection.dialect.name == "postgresql":
        known = connection.execute(select(extent).where(*at)).first()
        if known is None or known.closings is not None:
            return
        waits = open_transactions.waits(connection, known.waits_for)
    # Not before: the lock gives this transaction its number, and what is still looked for might
    # get a higher one, commit after the look and stand in the log behind the closing.
    row = connection.execute(locking(connection, select(extent).where(*at))).first()
    if row is None or row.closings is not None or row.waits_for != known.waits_for:
        return
    if waits is not None:
        connection.execute(update(extent).where(*at).values(waits_for=waits))
        return
    first = connection.execute(
        select(lane.c.first_shard).where(lane.c.name == seen.lane)
    ).scalar_one()
    rows = [closing(first + n, row.version) for n in range(row.shards)]
    outbox.insert(connection, rows)
    ids = msgspec.json.encode([each.task_id for each in rows]).decode()
    connection.execute(update(extent).where(*at).values(closings=ids))


def _never_read(
    connection: Connection, rows: list[Any], found: tuple[Extent, ...]
) -> list[tuple[str, TaskId]]:
    """(group, closing) that no owner answers for: the group begins, or was reset, beyond it.

    The settlement whose cursor comes to cover a closing ends it and answers for it. So where a
    cursor covers it and no answer is there, it was passed over.
    """
    before = now_us(connection) - UNREAD_AFTER_US
    reads = positions.registered(connection)
    silent = [
        (name, each.first_shard + n, task_id)
        for row, each in zip(rows, found, strict=True)
        if row.closed_at_us < before
        for name in reads
        for n, task_id in enumerate(each.closings)
        if (name, each.first_shard + n) not in each.left
    ][:UNREAD_MAX]
    if not silent:
        return []
    last, log = journals(connection), log_of(connection)
    never = []
    for name, shard_id, task_id in silent:
        cursor = last.get((name, shard_id), Journal()).cursor
        ahead = positions.ahead(connection, shard_id, cursor, reads[name])
        coming = select(log.c.task_id).where(ahead, log.c.task_id == task_id).limit(1)
        if connection.execute(coming).first() is None:
            never.append((name, task_id))
    return never


def _answer(unread: list[tuple[str, TaskId]], connection: Connection) -> None:
    known = answers_of(connection, [task_id for _, task_id in unread])
    until = now_us(connection) + KEPT_US
    for name, task_id in unread:
        if (name, task_id) not in known:
            connection.execute(
                insert(result).values(
                    consumer_group=name, task_id=task_id, value=_encode(Left()), expires_at_us=until
                )
            )


def _forget(seen: Any, names: list[str], connection: Connection) -> None:
    connection.execute(
        delete(extent).where(extent.c.lane == seen.lane, extent.c.version == seen.version)
    )
    ids = ids_of(seen.closings)
    for start in range(0, len(ids), IDS_CHUNK):
        connection.execute(
            delete(result).where(
                result.c.consumer_group.in_(names),
                result.c.task_id.in_(ids[start : start + IDS_CHUNK]),
            )
        )
