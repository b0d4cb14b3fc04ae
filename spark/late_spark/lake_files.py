"""The Parquet files of a lake: written by date, put together where they are small."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, timedelta
from itertools import groupby
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from late_spark import lake, parts, usage
from late_spark.bounds import Bounds
from late_spark.lake import File, Manifest
from late_spark.live import Plan
from late_spark.parts import Part
from late_spark.schema import USAGE

COMPACT_FILES = 4
"""A date with more small files than this gets one file instead of them."""
SMALL_BYTES = 64 * 1024 * 1024
ROW_GROUP = 100_000
DAY_US = 86_400_000_000


@dataclass
class _Open:
    """A file that is being written."""

    writer: pq.ParquetWriter
    path: Path
    rows: int = 0
    from_us: int = 2**62
    to_us: int = 0
    waiting: list[pa.RecordBatch] = field(default_factory=list)


def written(url: str, folder: Path, chosen: tuple[Part, ...], plan: Plan) -> list[File]:
    """The usage of some parts of a plan, as one new file for each date."""
    run = uuid.uuid4().hex
    opened: dict[str, _Open] = {}
    try:
        for part in chosen:
            rows = parts.read(
                url, "usage", part, list(USAGE), Bounds(), plan.owners, moment=plan.moment
            )
            for batch in rows:
                for day, of_day in _by_day(batch):
                    _add(folder, opened, day, of_day, run)
    finally:
        for each in opened.values():
            _flush(each)
            each.writer.close()
    return [
        _file(folder, day, each.path, each.rows, (each.from_us, each.to_us))
        for day, each in sorted(opened.items())
    ]


def _by_day(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Runs of rows of one UTC day; the journal is nearly in order of time, so they are long."""
    days = np.asarray(batch.column("settled_us")) // DAY_US
    start = 0
    for day, run in groupby(days.tolist()):
        count = sum(1 for _ in run)
        yield (date(1970, 1, 1) + timedelta(days=day)).isoformat(), batch.slice(start, count)
        start += count


def _add(folder: Path, opened: dict[str, _Open], day: str, rows: pa.RecordBatch, run: str) -> None:
    target = opened.get(day)
    if target is None:
        path = folder / "usage" / f"date={day}" / f"{run}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = pq.ParquetWriter(path, rows.schema, compression="zstd")
        target = opened[day] = _Open(writer, path)
    times = np.asarray(rows.column("settled_us"))
    target.from_us = min(target.from_us, int(times.min()))
    target.to_us = max(target.to_us, int(times.max()))
    target.rows += rows.num_rows
    target.waiting.append(rows)
    if sum(each.num_rows for each in target.waiting) >= ROW_GROUP:
        _flush(target)


def _flush(target: _Open) -> None:
    if target.waiting:
        target.writer.write_table(pa.Table.from_batches(target.waiting))
        target.waiting = []


def _file(folder: Path, day: str, path: Path, rows: int, times: tuple[int, int]) -> File:
    """A file that is whole, and on disk before a manifest says that it is."""
    with path.open("rb+") as written:
        os.fsync(written.fileno())
    return File(str(path.relative_to(folder)), day, rows, path.stat().st_size, *times)


def compacted(folder: Path, manifest: Manifest) -> tuple[Manifest, int]:
    """Put the small files of a date together where there are many. The old ones stay until the
    next export: a report that is running may be reading them."""
    by_day: dict[str, list[File]] = {}
    for each in manifest.files:
        if each.size_bytes < SMALL_BYTES:
            by_day.setdefault(each.date, []).append(each)
    gone: set[str] = set()
    new: list[File] = []
    for day, small in by_day.items():
        if len(small) <= COMPACT_FILES:
            continue
        path = folder / "usage" / f"date={day}" / f"{uuid.uuid4().hex}.parquet"
        schema = _empty().schema
        with pq.ParquetWriter(path, schema, compression="zstd") as merged:
            for each in small:
                source = pq.ParquetFile(folder / each.path)
                for batch in source.iter_batches(ROW_GROUP):
                    merged.write_batch(widened(batch))
        times = min(each.from_us for each in small), max(each.to_us for each in small)
        new.append(_file(folder, day, path, sum(each.rows for each in small), times))
        gone |= {each.path for each in small}
    if not new:
        return manifest, 0
    kept = tuple(each for each in manifest.files if each.path not in gone)
    newer = lake.commit(folder, msgspec.structs.replace(manifest, files=(*kept, *new)))
    return newer, len(gone)


def widened(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with null in the columns that its version did not have: columns are only
    added, at the end."""
    schema = _empty().schema
    missing = [pa.nulls(batch.num_rows, field.type) for field in list(schema)[batch.num_columns :]]
    return pa.RecordBatch.from_arrays([*batch.columns, *missing], schema=schema)


def _empty() -> pa.RecordBatch:
    return usage.rows(pa.RecordBatch.from_pylist([], usage.RAW), list(USAGE), None, {})
