"""The latest dead letters of all shards, however many there are.

There is no index over all shards by time, for every dead letter would pay for it. So each shard is
read along its key from its end, a bounded way, and what is newer than the point that all of them
have reached is told: nothing of it is missing, and the next page goes on from there.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, func, select

from late.control.dead import Filter, view_of
from late.control.status import firsts
from late.control.views import DeadView
from late.ids import shard_of
from late.schema.engine import reading
from late.schema.tables import dead

LOOKED = 16_000
"""Rows that one page looks through, all shards together, where a filter leaves some out."""
LOOKED_MIN = 100
"""Of one shard, however many there are."""

_ASKED = (
    dead.c.consumer_group,
    dead.c.shard_id,
    dead.c.dead_at_us,
    dead.c.task_id,
    dead.c.queue,
    dead.c.name,
    dead.c.reason,
)
"""What a filter may ask about."""
_Key = tuple[int, str, str, int]
"""When it died, its id, group and shard."""


class Latest(msgspec.Struct, frozen=True):
    """One page."""

    letters: tuple[DeadView, ...]
    """The latest first."""
    before_us: int | None
    """Where the next page begins; None when these were all."""


def latest(engine: Engine, which: Filter, *, limit: int) -> Latest:
    """Up to `limit` that match, the latest first; fewer, or none, where the way was too long."""
    which.check()
    with reading(engine) as connection:
        shards = [key for key, _ in firsts(connection, dead.c.dead_at_us) if _wanted(which, *key)]
        some = any((which.queue, which.name, which.reason, which.error, which.task_id))
        looked = max(LOOKED_MIN, LOOKED // max(1, len(shards)), limit + 1) if some else limit
        keys: list[_Key] = []
        reached: int | None = None
        for name, shard_id in shards:
            found, end = _of_shard(connection, which, name, shard_id, limit, looked)
            keys += found
            if end is not None:
                reached = end if reached is None else max(reached, end)
        keys.sort(reverse=True)
        keys = [key for key in keys if reached is None or key[0] >= reached]
        if len(keys) > limit:
            keys, reached = keys[:limit], keys[limit - 1][0]
        letters = _letters(connection, keys)
    return Latest(letters, _before(which, reached))


def _wanted(which: Filter, name: str, shard_id: int) -> bool:
    return which.group in (None, name) and (
        which.task_id is None or shard_of(which.task_id) == shard_id
    )


def _of_shard(
    connection: Connection, which: Filter, name: str, shard_id: int, limit: int, looked: int
) -> tuple[list[_Key], int | None]:
    """What matches among the last `looked` of one shard, and when the first of those died; None
    where there are no others before."""
    order = (dead.c.dead_at_us.desc(), dead.c.task_id.desc())
    time = msgspec.structs.replace(
        which, queue=None, name=None, reason=None, error=None, task_id=None, group=None
    )
    ours = (dead.c.consumer_group == name, dead.c.shard_id == shard_id, *time.clauses())
    if looked == limit:  # nothing is left out: what is looked at is what is found
        keys = connection.execute(
            select(dead.c.dead_at_us, dead.c.task_id).where(*ours).order_by(*order).limit(limit)
        ).all()
        end = keys[-1].dead_at_us if len(keys) == limit else None
        return [(row[0], str(row[1]), name, shard_id) for row in keys], end
    end = connection.execute(
        select(dead.c.dead_at_us).where(*ours).order_by(*order).offset(looked - 1).limit(1)
    ).scalar()
    # An error may be long, and is read only by who looks for one.
    columns = _ASKED if which.error is None else (*_ASKED, dead.c.errors)
    last = select(*columns).where(*ours).order_by(*order).limit(looked).subquery()
    rows = connection.execute(
        select(last.c.dead_at_us, last.c.task_id)
        .where(*which.clauses(last.c))
        .order_by(last.c.dead_at_us.desc(), last.c.task_id.desc())
        .limit(limit + 1)
    )
    return [(row[0], str(row[1]), name, shard_id) for row in rows], end


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
    found: dict[tuple[str, str], Any] = {}
    for (name, shard_id), ids in by_shard.items():
        rows = connection.execute(
            select(*wanted, size).where(
                dead.c.consumer_group == name,
                dead.c.shard_id == shard_id,
                dead.c.task_id.in_(ids),
            )
        )
        found |= {(name, str(row.task_id)): view_of(row._mapping, False) for row in rows}
    views = (found.get((name, task_id)) for _, task_id, name, _ in keys)
    return tuple(view for view in views if view is not None)
