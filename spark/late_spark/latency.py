"""Waiting and running times of tasks by day: percentiles of the merged histograms.

`daily` is the only part that sees the usage: it leaves at most a thousand buckets a day and kind,
however many tasks there were.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from math import ceil

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from late.model.histogram import middle
from late_spark import drivers
from late_spark.calendar import Calendar

QUANTILES = (50, 95, 99)
KINDS = ("waiting", "busy")
FIELDS = tuple(f"{kind}_p{percent}_ms" for kind in KINDS for percent in QUANTILES)


def daily(usage: DataFrame, calendar: Calendar, queue: str | None = None) -> DataFrame:
    """Per local day, kind (`waiting`, `busy`) and bucket (`late.model.histogram`): the attempts.

    Args:
        queue: only this one; None takes all.
    """
    rows = drivers.within(usage, calendar).where(F.col("attempts") > 0)
    if queue is not None:
        rows = rows.where(F.col("queue") == queue)
    day = drivers.day(calendar).alias("day")
    parts = [
        rows.select(day, F.lit(kind).alias("kind"), F.explode(f"{kind}_hist"))
        .groupBy("day", "kind", F.col("key").alias("bucket"))
        .agg(F.sum("value").alias("attempts"))
        for kind in KINDS
    ]
    return parts[0].unionAll(parts[1])


def collect(frame: DataFrame) -> dict[date, dict[str, float]]:
    """The rows of `daily` as percentiles: day -> the `FIELDS` that it has, in milliseconds."""
    columns = frame.toArrow().to_pydict()
    found: dict[tuple[int, str], dict[int, int]] = defaultdict(dict)
    for day, kind, bucket, attempts in zip(*columns.values(), strict=True):
        found[day, kind][bucket] = attempts
    result: dict[date, dict[str, float]] = defaultdict(dict)
    for (day, kind), buckets in found.items():
        values = quantiles(buckets, QUANTILES)
        result[date(1970, 1, 1) + timedelta(days=day)] |= {
            f"{kind}_p{percent}_ms": us / 1e3 for percent, us in zip(QUANTILES, values, strict=True)
        }
    return dict(result)


def quantiles(buckets: Mapping[int, int], percents: Sequence[int]) -> list[float]:
    """In microseconds: what so many percent of the attempts did not exceed, within 3.2 %.

    Args:
        buckets: bucket -> attempts, at least one.
        percents: ascending, 1 to 100.
    """
    total = sum(buckets.values())
    wanted = [ceil(total * percent / 100) for percent in percents]
    found: list[float] = []
    through = 0
    for bucket in sorted(buckets):
        through += buckets[bucket]
        while len(found) < len(wanted) and through >= wanted[len(found)]:
            found.append(middle(bucket))
    return found
