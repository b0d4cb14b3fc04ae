"""The layout of lanes: their widths, and what is left of those that were closed."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, select

from late.model.lanes import Extent, Lane, Layout, Left
from late.model.task import TaskId
from late.schema.engine import reading
from late.schema.tables import extent, group, lane, result

IDS_CHUNK = 500
_left = msgspec.json.Decoder(Left).decode


def layout(engine: Engine) -> Layout:
    """Read all lanes, with what is left of their closed versions, at one moment."""
    with reading(engine) as connection:
        return layout_of(connection, extents_of(connection))


def extents_of(connection: Connection) -> list[Any]:
    """The rows of closed widths, by lane and version."""
    query = select(extent).order_by(extent.c.lane, extent.c.version)
    return list(connection.execute(query).all())


def layout_of(connection: Connection, rows: list[Any]) -> Layout:
    """The layout, with an extent for each of `rows`, in their order."""
    lanes = {
        row.name: Lane(*row)
        for row in connection.execute(
            select(lane.c.name, lane.c.first_shard, lane.c.shards, lane.c.version).order_by(
                lane.c.name
            )
        )
    }
    closings = [ids_of(row.closings) for row in rows]
    said = answers_of(connection, [each for ids in closings for each in ids])
    found = []
    for row, ids in zip(rows, closings, strict=True):
        first = lanes[row.lane].first_shard
        shard_of = {each: first + n for n, each in enumerate(ids)}
        left = {
            (name, shard_of[each]): what for (name, each), what in said.items() if each in shard_of
        }
        found.append(Extent(first, row.version, row.shards, ids, left))
    return Layout(tuple(lanes.values()), tuple(found))


def ids_of(closings: str | None) -> tuple[TaskId, ...]:
    """The ids of the closing records of one width; none before they are written."""
    return () if closings is None else tuple(msgspec.json.decode(closings))


def group_names(connection: Connection) -> list[str]:
    """The registered consumer groups, ascending."""
    return list(connection.execute(select(group.c.name).order_by(group.c.name)).scalars())


def answers_of(connection: Connection, ids: list[TaskId]) -> dict[tuple[str, TaskId], Left]:
    """The answers to closings, by (group, closing)."""
    found: dict[tuple[str, TaskId], Left] = {}
    names = group_names(connection) if ids else []
    for start in range(0, len(ids), IDS_CHUNK):
        rows = connection.execute(
            select(result.c.consumer_group, result.c.task_id, result.c.value).where(
                result.c.consumer_group.in_(names),
                result.c.task_id.in_(ids[start : start + IDS_CHUNK]),
            )
        )
        found |= {(row[0], TaskId(row[1])): _left(row[2]) for row in rows}
    return found
