"""Heartbeats and the view of the fleet on CockroachDB."""

from __future__ import annotations

from typing import Any

from late.model.task import SHARDS_MAX
from late.store.base import Membership, WorkerInfo
from late.store.cockroach import statements as sql
from late.store.common.fleet import membership_of
from late.store.common.groups import ACTIVE
from late.store.postgres import statements as postgres_sql
from late.store.postgres.connection import Connection, rows_of
from late.store.postgres.membership import beat


async def heartbeat(connection: Connection, worker: WorkerInfo, ttl_s: float) -> Membership:
    """Write the heartbeat, read the fleet, and look for the shards that hold work."""
    async with connection.pipeline():
        for statement, values in beat(worker, ttl_s):
            await connection.execute(statement, values)
        asked = [
            await connection.execute(statement)
            for statement in (
                postgres_sql.CLOCK,
                postgres_sql.WORKERS,
                postgres_sql.LEASES,
                sql.LANES,
                ACTIVE,
            )
        ]
    rows: list[list[Any]] = [await cursor.fetchall() for cursor in asked]
    ((now_us,),), workers, leases, lanes, active = rows
    shards = await _shards(connection, lanes, leases)
    return membership_of(now_us, workers, leases, shards, (name for (name,) in active))


async def _shards(connection: Connection, lanes: list[Any], leases: list[Any]) -> set[int]:
    """Read every shard of a lane, and every other that holds records, timers or schedules (of a
    lane that was made smaller): a look into each gap between the lanes, one step down the index per
    shard found."""
    shards = {shard for first, count in lanes for shard in range(first, first + count)}
    shards |= {row[0] for row in await rows_of(connection, sql.SCHEDULED)}
    for group, shard, *_ in leases:
        # Timers are written by owners only, so that there was a lease.
        if shard not in shards and await rows_of(connection, sql.TIMED, (group, shard)):
            shards.add(shard)
    low = 0
    for first, count in [*sorted(lanes), (SHARDS_MAX, 0)]:
        while low < first:
            found = await rows_of(connection, sql.LOGGED, (low, first))
            if not found:
                break
            shards.add(found[0][0])
            low = found[0][0] + 1
        low = max(low, first + count)
    return shards
