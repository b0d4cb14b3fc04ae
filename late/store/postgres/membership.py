"""Heartbeats and the view of the fleet on PostgreSQL."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Iterator
from typing import Any

import msgspec

from late.model.task import ShardId
from late.store.base import Membership, WorkerInfo
from late.store.common.fleet import ends_text, groups_text
from late.store.common.fleet_view import FleetView, Numbers
from late.store.common.groups import active_of
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
_ends_of = msgspec.json.Decoder(list[tuple[str, int]]).decode


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


def change_row(worker_id: str) -> str:
    """Return which of the rows this worker raises for its changes."""
    return str(zlib.crc32(worker_id.encode()) % sql.CHANGE_ROWS)


class PostgresFleet:
    """Heartbeats of one store.

    It remembers the fleet (`FleetView`); the version of the settings for `SETTINGS_S`; and the
    shards to own. They are read again when the version is another one; and after `SHARDS_S`,
    because records can come to a shard that no lane has.
    """

    def __init__(self) -> None:
        self._view = FleetView()
        self._said: tuple[WorkerInfo, float] | None = None
        """It is in the row of that worker; None: that is not sure."""
        self._end_us = 0
        """The end of that worker's lease."""
        self._settings = ""
        self._told_at_s = -math.inf
        self._read_at_s = -math.inf
        self._shards: tuple[ShardId, ...] = ()

    async def heartbeat(
        self, connection: Connection, worker: WorkerInfo, ttl_s: float
    ) -> Membership:
        """Write the heartbeat and learn what has changed, in one statement nearly always."""
        now_s, settings, lives = time.monotonic(), self._settings, ttl_s > 0
        said = (msgspec.structs.replace(worker, handlers=None), ttl_s)
        # They come back with the last answer: after one that was lost, and for somebody who does
        # not live, all is written and read anew.
        view, joins = self._view if lives else FleetView(), not lives or said != self._said
        self._view, self._said = FleetView(), None
        if joins:
            await self._say(connection, worker, ttl_s)
        tells = now_s >= self._told_at_s + SETTINGS_S
        row = await self._beat(connection, worker, ttl_s, view, tells=tells)
        if lives and row[1] is None:
            joins = True
            await self._say(connection, worker, ttl_s)
            row = await self._beat(connection, worker, ttl_s, view, tells=tells)
        now_us, own_end_us, workers, leases, ends, live, groups, changed, offers = row[:9]
        # A renewal that peers could see only after the end that they knew: they may have taken this
        # worker for dead, so the next heartbeat tells them of it.
        late = not joins and now_us + (time.monotonic() - now_s) * 1_000_000 >= self._end_us
        if tells:
            settings, self._told_at_s = row[9], now_s
        if worker.handlers is not None and lives:
            declared = {"id": worker.worker_id, "handlers": worker.handlers}
            await connection.execute(sql.DECLARE, declared)
        if settings != self._settings or now_s >= self._read_at_s + SHARDS_S:
            await self._read_shards(connection, settings)
        numbers, unusual = Numbers(workers, leases, changed), _ends_of(ends or "[]")
        outdated = view.outdated(now_us, numbers, unusual, live)
        if view.dead(now_us, unusual):
            await connection.execute(sql.WORKERS_CHANGED, (change_row(worker.worker_id),))
        view.pass_time(now_us, unusual, ttl_s)
        if outdated:
            await self._read_fleet(connection, view, numbers, now_us)
        if lives:
            self._view, self._said = view, None if late else said
            self._end_us = own_end_us or 0
        active, shadows = active_of(_names_of(groups or "[]"))
        return msgspec.structs.replace(
            view.membership(now_us, worker.worker_id, own_end_us),
            shards=self._shards,
            groups=active,
            shadows=shadows,
            settings=settings,
            offers=offers,
        )

    async def _say(self, connection: Connection, worker: WorkerInfo, ttl_s: float) -> None:
        """Write all of the worker's row, or delete it, and tell the others."""
        values = values_of(worker, ttl_s) | {"row": change_row(worker.worker_id)}
        await connection.execute(sql.JOIN if ttl_s > 0 else sql.PART, values)

    async def _beat(
        self,
        connection: Connection,
        worker: WorkerInfo,
        ttl_s: float,
        view: FleetView,
        *,
        tells: bool,
    ) -> Any:
        values = {
            "id": worker.worker_id,
            "ttl": round(ttl_s * 1_000_000),
            "told": view.now_us,
        }
        (row,) = await rows_of(connection, sql.BEATS[view.ring, tells], values, prepare=True)
        return row

    async def _read_fleet(
        self, connection: Connection, view: FleetView, numbers: Numbers, now_us: int
    ) -> None:
        values = {"workers": view.wants_workers(numbers), "since": view.since % 2**32}
        statement = sql.FLEET_SINCE if view.since else sql.FLEET
        ((joined, moved, since, workers, leases),) = await rows_of(connection, statement, values)
        view.read(
            Numbers(joined, moved, numbers.groups),
            since,
            [(*each[:3], float(each[3]), *each[4:]) for each in _workers_of(workers or "[]")]
            if values["workers"]
            else None,
            _leases_of(leases or "[]"),
            now_us,
        )

    async def _read_shards(self, connection: Connection, settings: str) -> None:
        async with connection.pipeline():
            await connection.execute(sql.SHARDS_PLAN)
            asked = await connection.execute(sql.SHARDS, prepare=True)
        rows: list[Any] = await asked.fetchall()
        self._shards = tuple(ShardId(row[0]) for row in rows)
        self._settings, self._read_at_s = settings, time.monotonic()
