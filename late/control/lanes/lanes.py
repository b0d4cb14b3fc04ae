"""Lanes: named ranges of shards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, delete, func, insert, select, update

from late.control import audit
from late.control.lanes.layout import layout
from late.control.sql.rows import locking, now_us
from late.control.views import Check, DrainView, LaneView
from late.errors import ConfigError, Conflict
from late.model import validation as validate
from late.model.lanes import DEFAULT_LANE, Extent
from late.model.task import SHARDS_MAX
from late.schema.engine import reading, write
from late.schema.tables import extent, lane

SPACING = 1024
"""A new lane begins at a multiple of it, so that those below have room to grow."""
DRAIN_US = 600_000_000
"""The time for which an old width may drain before somebody should look."""


def lanes(engine: Engine) -> list[LaneView]:
    """Return all lanes, ascending by name, each with its closed versions that are not drained."""
    found = layout(engine)
    with reading(engine) as connection:
        waits = {
            (row.lane, row.version): len(msgspec.json.decode(row.waits_for or "[]"))
            for row in connection.execute(select(extent))
        }
    return [
        LaneView(
            each.name,
            each.first_shard,
            each.shards,
            each.version,
            tuple(
                _drain(old, waits.get((each.name, old.version), 0))
                for old in found.extents
                if old.first_shard == each.first_shard
            ),
        )
        for each in found.lanes
    ]


def _drain(old: Extent, transactions: int) -> DrainView:
    by_group: dict[str, list[int]] = {}
    for (name, _), left in old.left.items():
        done = by_group.setdefault(name, [0, 0])
        done[0] += left.nothing
        done[1] += len(left.keys)
    return DrainView(
        old.version,
        old.shards,
        "draining" if old.closings else "closing",
        transactions,
        {name: old.shards - done for name, (done, _) in by_group.items()},
        sum(keys for _, keys in by_group.values()),
    )


def draining(connection: Connection) -> Iterator[Check]:
    """Check old widths that keys wait for; for `late doctor`."""
    since_us = now_us(connection) - DRAIN_US
    old = connection.execute(select(extent).order_by(extent.c.lane, extent.c.version)).all()
    late = [row for row in old if row.closed_at_us < since_us]
    if not late:
        yield Check("resizes", "ok", f"{len(old)} old widths drain" if old else "nothing drains")
        return
    row = late[0]
    minutes = DRAIN_US // 60_000_000
    if row.closings is not None:
        what = "has shards that are not drained"
    elif row.waits_for is None:
        what = "has no worker that looks after it"
    else:
        count = len(msgspec.json.decode(row.waits_for))
        what = f"waits for {count} transactions that began before"
    yield Check(
        "resizes",
        "warning",
        f"version {row.version} of lane {row.lane}, closed more than {minutes} minutes ago, {what}:"
        " keys that moved may stand still; see `late shards`",
    )


def found_lane(connection: Connection, name: str) -> tuple[Any, list[Any]]:
    """The row of a lane, and those of all: locked, so that two that grow towards each other do not
    meet.

    Raises:
        ConfigError: no such lane.
    """
    every = select(lane).order_by(lane.c.name)
    rows = list(connection.execute(locking(connection, every)).all())
    found = next((row for row in rows if row.name == name), None)
    if found is None:
        known = ", ".join(row.name for row in rows) or "none"
        raise ConfigError(f"no lane {name[:128]!r}; known: {known}")
    return found, rows


def room(row: Any, rows: list[Any]) -> int:
    """Return the largest width of the lane: up to the next one."""
    above = [each.first_shard for each in rows if each.first_shard > row.first_shard]
    return int(min([SHARDS_MAX, *above]) - row.first_shard)


def create(engine: Engine, name: str, shards: int) -> LaneView:
    """Make a lane, beside those that there are. Workers own its shards within seconds.

    Raises:
        InvalidName: it is no name.
        Conflict: there is a lane of that name.
        ConfigError: there is no room for one more lane, or for one so wide.
    """
    validate.name(name, "lane")

    def make(connection: Connection) -> LaneView:
        rows = list(connection.execute(locking(connection, select(lane))).all())
        if any(row.name == name for row in rows):
            raise Conflict(f"there is a lane {name!r}: --resize gives it another width")
        widest = dict(
            connection.execute(select(extent.c.lane, func.max(extent.c.shards)).group_by("lane"))
            .tuples()
            .all()
        )
        # Not where a lane has or had shards: tasks of an old width may wait there.
        taken = [
            range(row.first_shard, row.first_shard + max(row.shards, widest.get(row.name, 0)))
            for row in rows
        ]
        places = range(SPACING, SHARDS_MAX, SPACING)
        first = next((n for n in places if not any(n in each for each in taken)), None)
        if first is None:
            raise ConfigError(
                "there is no room for one more lane: they begin at the shards 1024, 2048 and 3072,"
                " and all are taken"
            )
        most = min([SPACING, *(each.start - first for each in taken if each.start > first)])
        if not 1 <= shards <= most:
            raise ConfigError(f"a new lane has 1 to {most} shards, not {shards}")
        connection.execute(
            insert(lane).values(name=name, first_shard=first, shards=shards, version=0)
        )
        audit.record(
            connection,
            action="lane.create",
            subject=f"lane:{name}",
            after={"first_shard": first, "shards": shards},
        )
        return LaneView(name, first, shards, 0)

    return write(engine, make)


def remove(engine: Engine, name: str) -> None:
    """Remove a lane. The workers of the lane below run what is left in its shards.

    Raises:
        ConfigError: no such lane, or `default`.
        Conflict: it was resized. A task with an ordering key waits for the version of its lane.
    """

    def drop(connection: Connection) -> None:
        found, _ = found_lane(connection, name)
        if name == DEFAULT_LANE:
            raise ConfigError("the lane default cannot be removed: tasks that name none go there")
        if found.version:
            raise Conflict(f"lane {name!r} was resized: tasks with ordering keys go by it")
        connection.execute(delete(lane).where(lane.c.name == name))
        before = {"first_shard": found.first_shard, "shards": found.shards}
        audit.record(connection, action="lane.remove", subject=f"lane:{name}", before=before)

    write(engine, drop)


def set_shards(engine: Engine, name: str, shards: int) -> LaneView:
    """Say how wide a lane is whose apps say the same (`App(shards=…)`). Workers own new shards
    within seconds. It never shrinks, and keeps no order of keys: `resize.resize` does.

    Raises:
        ConfigError: no such lane, one that was resized, fewer shards than it has, or no room.
    """

    def grow(connection: Connection) -> LaneView:
        found, rows = found_lane(connection, name)
        if found.version and shards != found.shards:
            raise Conflict(f"lane {name!r} was resized while it worked: use --resize")
        if shards < found.shards:
            raise ConfigError(
                f"lane {name!r} has {found.shards} shards: it cannot shrink to {shards} by --set,"
                " use --resize"
            )
        most = room(found, rows)
        if shards > most:
            raise ConfigError(f"lane {name!r} has room for {most} shards, not for {shards}")
        connection.execute(update(lane).where(lane.c.name == name).values(shards=shards))
        return LaneView(name, found.first_shard, shards, found.version)

    return write(engine, grow)
