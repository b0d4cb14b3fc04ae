"""Find lanes that no live worker serves, for `late doctor`."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection, select

from late.control.sql.rows import now_us
from late.control.views import Check
from late.model.lanes import DEFAULT_LANE
from late.model.task import DEFAULT_GROUP
from late.schema.tables import lane, worker
from late.tailer.placement import lanes_of

NAMED = 5
"""The most lanes that a check names."""


def live_workers(connection: Connection) -> list[tuple[str, frozenset[str]]]:
    """Return (version, groups) of every live worker."""
    rows = connection.execute(
        select(worker.c.version, worker.c.consumer_groups).where(
            worker.c.expires_at_us > now_us(connection)
        )
    )
    return [(row[0], frozenset(msgspec.json.decode(row[1]))) for row in rows]


def unserved(connection: Connection) -> list[tuple[str, str]]:
    """Return each (lane, group) that no worker of the group serves, while the group has workers."""
    lanes = connection.execute(select(lane.c.name).order_by(lane.c.first_shard)).scalars().all()
    workers = live_workers(connection)
    found = []
    for name in sorted({name for _, groups in workers for name in groups}):
        # A worker of an older version names none; beside it all serve all lanes.
        served = [lanes_of(version) or lanes for version, groups in workers if name in groups]
        found += [(each, name) for each in lanes if not any(each in some for some in served)]
    return found


def check(connection: Connection) -> Check:
    """Check that each lane has a worker, and name those without one with the command."""
    found = unserved(connection)
    if not found:
        return Check("lane workers", "ok", "every lane has one, or nobody works at all")
    name = found[0][1]
    lanes = ",".join(each for each, of in found if of == name)
    group_option = "" if name == DEFAULT_GROUP else f" --group {name}"
    named = ", ".join(f"lane {each} in group {of}" for each, of in found[:NAMED])
    return Check(
        "lane workers", "warning",
        f"no worker serves {named}: its tasks stand still. Start late worker MODULE:APP"
        f"{group_option} --lanes {lanes}, or one without --lanes",
    )  # fmt: skip


def stops_schedules(connection: Connection) -> bool:
    """Return whether recurring tasks stand still because nobody serves the lane of their ticks."""
    return (DEFAULT_LANE, DEFAULT_GROUP) in unserved(connection)
