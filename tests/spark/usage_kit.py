"""Usage rows made by hand."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

from late_spark import schema
from late_spark.calendar import moment
from pyspark.sql.types import StructField, StructType

BERLIN = ZoneInfo("Europe/Berlin")


def row(at: str, queue: str, name: str, outcome: str, count: int, **more: Any) -> tuple[Any, ...]:
    """One row of `schema.USAGE`: 100 µs running, 10 µs waiting and 50 bytes for each."""
    given: dict[str, Any] = {
        "settled_us": moment(at, "at", BERLIN), "consumer_group": "default", "shard_id": 0,
        "seq": 1, "epoch": 1, "worker": "w", "queue": queue, "name": name, "target": "local",
        "outcome": outcome, "count": count, "attempts": count, "retries": 0,
        "busy_us": 100 * count, "waiting_us": 10 * count, "bytes": 50 * count, "lateness_us": 0,
        "waiting_hist": {}, "busy_hist": {}, "delayed": 0, **more,
    }  # fmt: skip
    return tuple(given.get(name) for name in schema.USAGE.names)


def nullable() -> Any:
    """The schema with every column nullable: times are given as numbers."""
    return StructType([StructField(f.name, f.dataType, True) for f in schema.USAGE])
