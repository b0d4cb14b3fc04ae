"""Lanes: named ranges of shards."""

from __future__ import annotations

from sqlalchemy import Connection, Engine, select, update

from late.control.rows import SPANNER
from late.control.views import LaneView
from late.errors import ConfigError
from late.schema.engine import reading, write
from late.schema.tables import lane
from late.task import SHARDS_MAX


def lanes(engine: Engine) -> list[LaneView]:
    """All lanes, ascending by name."""
    with reading(engine) as connection:
        return _lanes(connection)


def set_shards(engine: Engine, name: str, shards: int) -> LaneView:
    """Make a lane wider. Workers own the new shards within seconds; producers use them as soon
    as their `App(shards=…)` says so.

    A lane never shrinks: producers that have not heard of it would still write into the shards
    that were taken away.

    Raises:
        ConfigError: no such lane, fewer shards than it has, or no room above it.
    """

    def grow(connection: Connection) -> LaneView:
        # Locks every lane: two that grow towards each other must not meet.
        every = select(lane).order_by(lane.c.name)
        # Spanner has no FOR UPDATE: what a read-write transaction reads there is locked.
        if connection.dialect.name != SPANNER:
            every = every.with_for_update()
        rows = connection.execute(every).all()
        found = next((row for row in rows if row.name == name), None)
        if found is None:
            known = ", ".join(row.name for row in rows) or "none"
            raise ConfigError(f"no lane {name[:128]!r}; known: {known}")
        if shards < found.shards:
            raise ConfigError(
                f"lane {name!r} has {found.shards} shards: it cannot shrink to {shards}"
            )
        above = [row.first_shard for row in rows if row.first_shard > found.first_shard]
        most = min([SHARDS_MAX, *above]) - found.first_shard
        if shards > most:
            raise ConfigError(f"lane {name!r} has room for {most} shards, not for {shards}")
        connection.execute(update(lane).where(lane.c.name == name).values(shards=shards))
        return LaneView(name, found.first_shard, shards)

    return write(engine, grow)


def _lanes(connection: Connection) -> list[LaneView]:
    rows = connection.execute(
        select(lane.c.name, lane.c.first_shard, lane.c.shards).order_by(lane.c.name)
    )
    return [LaneView(*row) for row in rows]
