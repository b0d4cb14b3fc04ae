"""Heartbeats, the view of the fleet, and the clock."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from google.cloud.spanner_v1 import KeyRange, KeySet
from google.cloud.spanner_v1.param_types import FLOAT64, INT64, STRING

from late.model.task import SHARDS_MAX
from late.store.base import Membership, WorkerInfo
from late.store.common.fleet import ends_text, groups_text, membership_of
from late.store.common.groups import ACTIVE
from late.store.spanner.row_codec import LOG, NOW

_VALUES = {
    "worker_id": STRING, "ttl_us": INT64, "address": STRING, "groups": STRING,
    "capacity": FLOAT64, "version": STRING, "ends": STRING,
}  # fmt: skip
_RENEW = f"""
UPDATE late_worker SET expires_at_us = {NOW} + @ttl_us, address = @address,
  consumer_groups = @groups, capacity = @capacity, version = @version,
  ends = @ends
WHERE worker_id = @worker_id
"""
_JOIN = f"""
INSERT INTO late_worker (worker_id, expires_at_us, started_at_us, address, consumer_groups,
  capacity, version, ends)
VALUES (@worker_id, {NOW} + @ttl_us, {NOW}, @address, @groups, @capacity, @version, @ends)
"""
# One statement, so that all of it is of one moment, and no transaction stays open.
_FLEET = f"""
SELECT {NOW},
  ARRAY(SELECT AS STRUCT worker_id, address, consumer_groups, capacity, version, ends,
          expires_at_us
        FROM late_worker WHERE expires_at_us > {NOW}),
  ARRAY(SELECT AS STRUCT consumer_group, shard_id, owner, epoch FROM late_lease),
  ARRAY(SELECT AS STRUCT first_shard, shards FROM late_lane),
  ARRAY(SELECT DISTINCT shard_id FROM late_schedule),
  ARRAY({ACTIVE})
"""


def beat(transaction: Any, worker: WorkerInfo, ttl_s: float) -> None:
    """Record that the worker lives for `ttl_s` from now; 0 means that it leaves."""
    if ttl_s <= 0:
        transaction.delete("late_worker", KeySet(keys=[[worker.worker_id]]))
        return
    values = {
        "worker_id": worker.worker_id,
        "ttl_us": round(ttl_s * 1_000_000),
        "address": worker.address,
        "groups": groups_text(worker),
        "capacity": float(worker.capacity),
        "version": worker.version,
        "ends": ends_text(worker),
    }
    if transaction.execute_update(_RENEW, values, _VALUES) == 0:
        transaction.execute_update(_JOIN, values, _VALUES)
    if worker.handlers is not None:
        row = [worker.worker_id, worker.handlers]
        transaction.update("late_worker", ("worker_id", "handlers"), [row])


def membership(database: Any) -> Membership:
    """Read the fleet at one moment."""
    with database.snapshot() as snapshot:
        result = snapshot.execute_sql(_FLEET)
        ((now_us, workers, leases, lanes, scheduled, active),) = result
    moment = result.metadata.transaction.read_timestamp
    shards = set(scheduled)
    for first, count in lanes:
        shards.update(range(first, first + count))
    _outside(database, moment, shards, [(group, shard) for group, shard, _, _ in leases])
    in_order = sorted(leases, key=lambda lease: tuple(lease[:2]))
    return membership_of(now_us, sorted(workers), in_order, shards, active)


def _outside(database: Any, moment: Any, shards: set[int], leases: list[tuple[str, int]]) -> None:
    """Add the shards outside every lane that hold rows or timers: a lane was made smaller.

    The log is searched for one shard after the other, a seek each; usually there is none.
    """
    for group, shard_id in leases:
        if shard_id not in shards and _any(database, moment, "late_timer", [[group, shard_id]]):
            shards.add(shard_id)
    while gaps := _gaps(shards):
        with database.snapshot(read_timestamp=moment) as snapshot:
            ranges = [KeyRange(start_closed=[low], end_closed=[high]) for low, high in gaps]
            rows = list(snapshot.read(LOG, ("shard_id",), KeySet(ranges=ranges), limit=1))
        if not rows:
            return
        shards.add(rows[0][0])


def _any(database: Any, moment: Any, table: str, prefixes: list[list[object]]) -> bool:
    ranges = [KeyRange(start_closed=prefix, end_closed=prefix) for prefix in prefixes]
    with database.snapshot(read_timestamp=moment) as snapshot:
        return bool(list(snapshot.read(table, ("task_id",), KeySet(ranges=ranges), limit=1)))


def _gaps(shards: set[int]) -> list[tuple[int, int]]:
    """Return the ranges of shard numbers that are not in `shards`, both ends included."""
    edges = [-1, *sorted(shards), SHARDS_MAX]
    return [(low + 1, high - 1) for low, high in pairwise(edges) if high - low > 1]


def now(database: Any) -> int:
    """Read the database's clock, in microseconds since the Unix epoch."""
    with database.snapshot() as snapshot:
        ((now_us,),) = snapshot.execute_sql(f"SELECT {NOW}")
    return int(now_us)
