"""Heartbeats and the view of the fleet on PostgreSQL."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from late.store.base import Membership, WorkerInfo
from late.store.common.fleet import ends_text, groups_text, membership_of
from late.store.postgres import statements as sql
from late.store.postgres.connection import Connection, rows_of

SETTINGS_S = 1.9
"""The time for which the version of the settings is good: with beats that are a second apart, every
other one reads it."""
SHARDS_S = 5.0
"""The time for which the list of shards that hold work is good while no lane changes."""

_workers_of = msgspec.json.Decoder(list[tuple[str, str, str, str, str, str | None, int]]).decode
_names_of = msgspec.json.Decoder(list[str]).decode
_leases_of = msgspec.json.Decoder(list[tuple[str, int, str | None, int]]).decode


def values_of(worker: WorkerInfo, ttl_s: float) -> dict[str, Any]:
    """Return the parameters of the statement of a heartbeat, or of leaving."""
    return {
        "id": worker.worker_id,
        "ttl": round(ttl_s * 1_000_000),
        "address": worker.address,
        "groups": groups_text(worker),
        "capacity": worker.capacity,
        "version": worker.version,
        "ends": ends_text(worker),
    }


def beat(worker: WorkerInfo, ttl_s: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the statement of a heartbeat, or of leaving if `ttl_s` is 0, with its parameters, and
    one more if the worker declares what it handles."""
    yield sql.HEARTBEAT if ttl_s > 0 else sql.LEAVE, values_of(worker, ttl_s)
    if worker.handlers is not None and ttl_s > 0:
        yield sql.DECLARE, {"id": worker.worker_id, "handlers": worker.handlers}


class PostgresFleet:
    """Heartbeats of one store.

    It remembers the version of the settings for `SETTINGS_S`, and the shards to own. They are read
    again when the version is another one; and after `SHARDS_S`, because records can come to a shard
    that no lane has.
    """

    def __init__(self) -> None:
        self._settings = ""
        self._told_at_s = -math.inf
        self._read_at_s = -math.inf
        self._shards: list[Any] = []

    async def heartbeat(
        self, connection: Connection, worker: WorkerInfo, ttl_s: float
    ) -> Membership:
        """Write the heartbeat and read the fleet, in one statement nearly always."""
        now_s, settings = time.monotonic(), self._settings
        statement = sql.BEAT if ttl_s > 0 else sql.LEFT
        if tells := now_s >= self._told_at_s + SETTINGS_S:
            statement = sql.BEAT_VERSION if ttl_s > 0 else sql.LEFT_VERSION
        (row,) = await rows_of(connection, statement, values_of(worker, ttl_s))
        now_us, expires_at_us, workers, leases, groups, offers = row[:6]
        if tells:
            settings, self._told_at_s = row[6], now_s
        if worker.handlers is not None and ttl_s > 0:
            declared = {"id": worker.worker_id, "handlers": worker.handlers}
            await connection.execute(sql.DECLARE, declared)
        if settings != self._settings or now_s >= self._read_at_s + SHARDS_S:
            await self._read_shards(connection, settings)
        live = _workers_of(workers or "[]")
        if (expires_at_us or 0) > now_us:
            own = (worker.worker_id, worker.address, groups_text(worker), str(worker.capacity),
                   worker.version, ends_text(worker), expires_at_us)  # fmt: skip
            live.append(own)
        return membership_of(
            now_us,
            sorted((*each[:3], float(each[3]), *each[4:]) for each in live),
            sorted(_leases_of(leases or "[]")),
            self._shards,
            _names_of(groups or "[]"),
            settings=settings,
            offers=offers,
        )

    async def _read_shards(self, connection: Connection, settings: str) -> None:
        async with connection.pipeline():
            await connection.execute(sql.NO_JIT)
            asked = await connection.execute(sql.SHARDS)
        self._shards = [shard for (shard,) in await asked.fetchall()]
        self._settings, self._read_at_s = settings, time.monotonic()
