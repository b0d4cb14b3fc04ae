"""Read what settlements have counted since a moment, forward and never twice.

Usage is in the journal and in no other table, so a sum over a day is a walk over a day's rows. This
walk goes on where it stopped: each call reads the next rows of each shard, up to a bound, by the
primary key. Where the day begins in a shard is found by halving, some twenty reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, Row, Select, select

from late.control.sql.last_settlement import journals
from late.control.sql.per_shard import Value, lateral_rows
from late.control.sql.rows import now_us
from late.model.task import Usage
from late.schema.engine import reading
from late.schema.tables import settlement

ROWS = 500
"""Settlements of one shard that one call reads."""
_usage_of = msgspec.json.Decoder(tuple[Usage, ...]).decode
Key = tuple[str, int]
"""(group, shard)."""


class UsageRead(msgspec.Struct, frozen=True):
    """The usage that one call has read."""

    now_us: int
    usage: tuple[tuple[str, Usage], ...]
    """(group, counts)."""
    read: Mapping[Key, int]
    """The last settlement of each shard that was read: what the next call gets."""
    whole: bool
    """Nothing was left to read."""
    anew: bool = False
    """Settlements that were read have been put together with others since. Nothing is in `usage`:
    what was added up is to be thrown away, and the next call begins at `since_us` again."""
    times: tuple[int, ...] = ()
    """The time of each of `usage`: that of its settlement, or of the last one of a sum."""


def usage_since(
    engine: Engine, since_us: int, read: Mapping[Key, int], *, rows: int = ROWS
) -> UsageRead:
    """The usage of settlements at or after `since_us`, of those that were not read yet.

    Args:
        read: as the last call said; empty at first. A shard that is not in it is begun.
        rows: how many settlements of one shard are read at most.
    """
    found: list[tuple[str, Usage]] = []
    times: list[int] = []
    reached = dict(read)
    with reading(engine) as connection:
        now = now_us(connection)
        today = {
            key: last.seq
            for key, last in journals(connection).items()
            if last.settled_at_us is not None and last.settled_at_us >= since_us
        }
        begun = {key: last for key, last in today.items() if key not in reached}
        reached |= last_before(connection, begun, since_us)
        counts: Counter[Key] = Counter()
        for key, row in following(connection, [(key, reached[key]) for key in today], rows):
            if row.first_seq is not None and row.first_seq <= read.get(key, 0):
                return UsageRead(now, (), {}, whole=False, anew=True)
            counts[key] += 1
            reached[key] = max(reached[key], row.seq)
            try:
                counted = _usage_of(row.usage or "[]")
            except msgspec.MsgspecError:
                continue  # `late verify` tells of it
            found.extend((key[0], usage) for usage in counted)
            times.extend([row.settled_at_us] * len(counted))
        whole = all(count < rows for count in counts.values())
    return UsageRead(now, tuple(found), reached, whole, times=tuple(times))


def following(
    connection: Connection, places: Sequence[tuple[Key, int]], rows: int
) -> Iterator[tuple[Key, Row[Any]]]:
    """The next `rows` settlements of each shard, behind the one that is given."""

    def leg(name: Value, shard_id: Value, after: Value) -> Select[Any]:
        return (
            select(
                settlement.c.seq,
                settlement.c.settled_at_us,
                settlement.c.usage,
                settlement.c.first_seq,
                settlement.c.owner,
            )
            .where(
                settlement.c.consumer_group == name,
                settlement.c.shard_id == shard_id,
                settlement.c.seq > after,
            )
            .order_by(settlement.c.seq)
            .limit(rows)
        )

    asked = [(*key, after) for key, after in places]
    for row in lateral_rows(connection, leg, asked, rows=rows):
        yield places[row.leg][0], row


def last_before(connection: Connection, last: Mapping[Key, int], since_us: int) -> dict[Key, int]:
    """Find for each shard the last settlement before `since_us`, or the one before the first kept.

    The shard's last settlement is given. All shards are halved at the same time.
    """
    low, high = dict.fromkeys(last, 0), dict(last)
    while left := [(key, (low[key] + high[key]) // 2) for key in last if low[key] < high[key]]:
        first = dict(following(connection, left, 1))
        for key, middle in left:
            row = first.get(key)
            if row is None or row.settled_at_us >= since_us:
                high[key] = middle
            else:
                low[key] = row.seq
    return low
