"""What settlements have counted since a moment, read forward and never twice.

Usage is in the journal and in no other table, so a sum over a day is a walk over a day's rows. This
walk goes on where it stopped: each call reads the next rows of each shard, up to a bound, by the
primary key. Where the day begins in a shard is found by halving, some twenty reads.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from sqlalchemy import ColumnElement, Connection, Engine, select

from late.control.journals import journals
from late.control.rows import now_us
from late.schema.engine import reading
from late.schema.tables import settlement
from late.task import Usage

ROWS = 500
"""Settlements of one shard that one call reads."""
_usage_of = msgspec.json.Decoder(tuple[Usage, ...]).decode
Key = tuple[str, int]
"""(group, shard)."""


class Counted(msgspec.Struct, frozen=True):
    """What one call has read."""

    now_us: int
    usage: tuple[tuple[str, Usage], ...]
    """(group, counts)."""
    read: Mapping[Key, int]
    """The last settlement of each shard that was read: what the next call gets."""
    whole: bool
    """Nothing was left to read."""


def usage_since(
    engine: Engine, since_us: int, read: Mapping[Key, int], *, rows: int = ROWS
) -> Counted:
    """The usage of settlements at or after `since_us`, of those that were not read yet.

    Args:
        read: as the last call said; empty at first. A shard that is not in it is begun.
        rows: how many settlements of one shard are read at most.
    """
    found: list[tuple[str, Usage]] = []
    reached = dict(read)
    whole = True
    with reading(engine) as connection:
        now = now_us(connection)
        for key, last in journals(connection).items():
            if last.settled_at_us is None or last.settled_at_us < since_us:
                continue
            after = reached.get(key)
            if after is None:
                after = _before(connection, key, since_us, last.seq)
            query = (
                select(settlement.c.seq, settlement.c.usage)
                .where(*_of(key), settlement.c.seq > after)
                .order_by(settlement.c.seq)
                .limit(rows)
            )
            taken = connection.execute(query).all()
            for row in taken:
                try:
                    found.extend((key[0], usage) for usage in _usage_of(row.usage or "[]"))
                except msgspec.MsgspecError:
                    continue  # `late verify` tells of it
            reached[key] = taken[-1].seq if taken else after
            whole = whole and len(taken) < rows
    return Counted(now, tuple(found), reached, whole)


def _of(key: Key) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return settlement.c.consumer_group == key[0], settlement.c.shard_id == key[1]


def _before(connection: Connection, key: Key, since_us: int, last: int) -> int:
    """The last settlement before `since_us`, or the one before the first that is kept."""
    low, high = 0, last
    while low < high:
        middle = (low + high) // 2
        row = connection.execute(
            select(settlement.c.seq, settlement.c.settled_at_us)
            .where(*_of(key), settlement.c.seq > middle)
            .order_by(settlement.c.seq)
            .limit(1)
        ).first()
        if row is None or row.settled_at_us >= since_us:
            high = middle
        else:
            low = row.seq
    return low
