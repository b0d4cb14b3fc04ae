"""Heartbeats and the view of the fleet on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from late.store.base import Membership, WorkerInfo
from late.store.common.fleet import ends_text, groups_text, membership_of
from late.store.common.groups import ACTIVE
from late.store.postgres import statements as sql
from late.store.postgres.connection import Connection


def beat(worker: WorkerInfo, ttl_s: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the statement of a heartbeat, or of leaving if `ttl_s` is 0, with its parameters, and
    one more if the worker declares what it handles."""
    values = {
        "id": worker.worker_id,
        "ttl": round(ttl_s * 1_000_000),
        "address": worker.address,
        "groups": groups_text(worker),
        "capacity": worker.capacity,
        "version": worker.version,
        "ends": ends_text(worker),
    }
    yield sql.HEARTBEAT if ttl_s > 0 else sql.LEAVE, values
    if worker.handlers is not None and ttl_s > 0:
        yield sql.DECLARE, {"id": worker.worker_id, "handlers": worker.handlers}


async def heartbeat(connection: Connection, worker: WorkerInfo, ttl_s: float) -> Membership:
    """Write the heartbeat and read the fleet, in one implicit transaction and one round trip."""
    async with connection.pipeline():
        await connection.execute(sql.NO_JIT)
        for statement, values in beat(worker, ttl_s):
            await connection.execute(statement, values)
        asked = [
            await connection.execute(statement)
            for statement in (sql.CLOCK, sql.WORKERS, sql.LEASES, sql.SHARDS, ACTIVE)
        ]
    rows: list[list[Any]] = [await cursor.fetchall() for cursor in asked]
    ((now_us,),), workers, leases, shards, active = rows
    return membership_of(
        now_us, workers, leases, (shard for (shard,) in shards), (name for (name,) in active)
    )
