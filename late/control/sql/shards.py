"""Find the groups and shards that exist, and those that hold rows: a step along an index for each,
many of them in one statement."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import msgspec
from sqlalchemy import Column, Connection, Select, func, select

from late.control.sql import beyond_cursor
from late.control.sql.per_shard import Value, firsts, spans
from late.control.sql.rows import log_of
from late.model.lanes import Lane, Layout
from late.schema.tables import group, lane, lease

Shard = tuple[str, int]
"""(group, shard)."""


class Shards(msgspec.Struct, frozen=True):
    """Ids of shards, by why they count."""

    leased: frozenset[int]
    """Owned once, by any group."""
    laned: frozenset[int]
    """Shards of the lanes."""
    logged: frozenset[int] = frozenset()
    """They hold rows of the log."""
    layout: Layout = Layout()
    """The lanes; what is left of their former widths is not in it."""

    @property
    def known(self) -> frozenset[int]:
        """Those that can be named without a look at the rows."""
        return self.leased | self.laned

    @property
    def used(self) -> frozenset[int]:
        """Not those that a lane once had and that are empty."""
        return self.laned | self.logged

    @property
    def every(self) -> list[int]:
        """Return all shards, ascending."""
        return sorted(self.known | self.logged)


def groups_of(connection: Connection) -> list[str]:
    """Every consumer group that is registered or has ever owned a shard, ascending."""
    return sorted(
        {*_values(connection, group.c.name), *_values(connection, lease.c.consumer_group)}
    )


def _values(connection: Connection, name: Column[str]) -> Iterator[str]:
    """The different values of a key's first column, ascending: one step down the index for each."""
    last: str | None = ""
    while (
        last := connection.execute(select(func.min(name)).where(name > last)).scalar()
    ) is not None:
        yield last


def named(connection: Connection) -> Shards:
    """Those that can be named without a look at the log: `logged` is empty."""
    leased = connection.execute(select(lease.c.shard_id).distinct()).scalars()
    columns = (lane.c.name, lane.c.first_shard, lane.c.shards, lane.c.version)
    lanes = tuple(Lane(*row) for row in connection.execute(select(*columns)))
    laned = {each.first_shard + number for each in lanes for number in range(each.shards)}
    return Shards(frozenset(leased), frozenset(laned), layout=Layout(lanes))


def survey(connection: Connection) -> Shards:
    """Those of the whole database."""
    log, there = log_of(connection), named(connection)

    def leg(low: Value, high: Value) -> Select[Any]:
        # `select distinct` would walk the whole log, and without the order a planner may read
        # through other shards' rows for the first of this one.
        return (
            select(log.c.shard_id)
            .where(log.c.shard_id.between(low, high))
            .order_by(log.c.shard_id, *beyond_cursor.order_of(connection))
            .limit(1)
        )

    found = firsts(connection, leg, spans(there.known))
    return msgspec.structs.replace(there, logged=frozenset(row.shard_id for row in found))


def parked(
    connection: Connection, time: Column[int], known: Collection[int]
) -> Iterator[tuple[Shard, int]]:
    """Each (group, shard) that has rows in the timers or the dead letters, with the least time
    among them, ascending by group.

    The group is compared by itself: of a comparison of the pair PostgreSQL's planner expects next
    to nothing where there is one group, and may then read all of it by another index and sort it.

    Args:
        time: the column of either table that is third in its key.
        known: shards; those that are not among them are found as well, and cost more.
    """
    of, shard_id = time.table.c.consumer_group, time.table.c.shard_id
    among = spans(known)
    names = select(of).order_by(of).limit(1)
    name = connection.execute(names).scalar()
    while name is not None:

        def leg(low: Value, high: Value, name: str = name) -> Select[Any]:
            return (
                select(shard_id, time.label("least"))
                .where(of == name, shard_id.between(low, high))
                .order_by(shard_id, time)
                .limit(1)
            )

        for row in firsts(connection, leg, among):
            yield (name, row.shard_id), row.least
        name = connection.execute(names.where(of > name)).scalar()
