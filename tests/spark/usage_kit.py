"""Usage rows made by hand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
from late_spark import frames, schema, usage
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
    return tuple(given.get(name) for name in schema.USAGE)


def nullable() -> Any:
    """The schema with every column nullable: times are given as numbers."""
    return StructType([StructField(f.name, f.dataType, True) for f in frames.USAGE])


def write(rows: Iterable[tuple[Any, ...]], folder: Path) -> Path:
    """Write rows as the only file of a new folder."""
    values = [dict(zip(schema.USAGE, each, strict=True)) for each in rows]
    folder.mkdir()
    nothing = pa.RecordBatch.from_pylist([], usage.RAW)
    kinds = usage.rows(nothing, list(schema.USAGE), None, {}).schema
    pq.write_table(pa.Table.from_pylist(values, kinds), folder / "part.parquet")
    return folder
