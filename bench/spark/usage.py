"""Usage rows of the real shape, as many as one likes: skewed, with days and nights.

Every column is a function of the row's number (`xxhash64`), so that the same size gives the same
data on any machine, and Spark makes it as fast as it can write it. What is real about it:

- few queues have most of the work, and few tenants most of theirs (a power of a uniform number);
- 6 % of the attempts are retried, mostly on two days (a retry storm), 0.2 % end dead;
- times are spread over three orders of magnitude, in the histograms as well.

The shape says how many rows there are for a task. `demo` is the example service's where its trips
come one by one: a row counts one task, and a tenth of the rows count tasks that were
enqueued, so that there are 1.19 rows for a task that ends. `busy` has a row for eight tasks that
end: one at night, and dozens in a burst.
"""

from __future__ import annotations

from typing import NamedTuple

from late_spark import frames
from late_spark.calendar import DAY_US
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

QUEUES, TASKS, TENANTS, SHARDS, OWNERS = 40, 5, 2_000, 64, 12


class Shape(NamedTuple):
    """The rows for tasks that end."""

    per_row: int
    """Tasks for a row that counts ends, in the mean."""
    enqueued: float
    """The share of rows that count tasks that were enqueued."""

    @property
    def rows_per_task(self) -> float:
        """Return it without the storm: 94 of 100 of the other rows count ends."""
        return 1 / (0.94 - self.enqueued) / self.per_row


SHAPES = {"demo": Shape(1, 0.1), "busy": Shape(8, 0.0)}


def rows(spark: SparkSession, tasks: int, from_us: int, days: int, shape: Shape) -> DataFrame:
    """Usage of about so many tasks that ended, in the columns of `frames.USAGE`."""
    number = max(1, round(tasks * shape.rows_per_task))
    made = _named(_placed(spark.range(number), from_us, days))
    maps = ("waiting_hist", "busy_hist")
    return _counted(made, shape).select(
        *(F.col(f.name) if f.name in maps else F.col(f.name).cast(f.dataType) for f in frames.USAGE)
    )


def _even(salt: int) -> Column:
    """In [0, 1), by the row's number."""
    return (F.xxhash64(F.col("id"), F.lit(salt)).bitwiseAND(2**52 - 1)) / float(2**52)


def _placed(frame: DataFrame, from_us: int, days: int) -> DataFrame:
    """Place tasks in time: evenly by day, and more at noon than at night (the mean of two)."""
    day = F.floor(_even(1) * days)
    within = (_even(2) + _even(3)) / 2
    at = F.lit(from_us) + (day + within) * DAY_US
    return frame.select(
        "id",
        day.alias("day"),
        F.floor(at).cast("long").alias("settled_us"),
        F.floor(_even(4) * SHARDS).cast("int").alias("shard_id"),
    )


def _named(frame: DataFrame) -> DataFrame:
    queue = F.floor(F.pow(_even(5), 3) * QUEUES).cast("int")
    tenant = F.floor(F.pow(_even(6), 4) * TENANTS).cast("int")
    return (
        frame.withColumn("q", queue)
        .withColumn("queue", F.format_string("queue-%02d", "q"))
        .withColumn(
            "name", F.format_string("queue%02d.task%d", "q", F.floor(F.pow(_even(7), 2) * TASKS))
        )
        .withColumn("tenant", F.when(F.col("q") % 3 == 0, F.format_string("tenant-%04d", tenant)))
        .withColumn("owner", F.when(F.col("q") % 13 != 12,
                                    F.format_string("team-%02d", F.col("q") % OWNERS)))
        .withColumn("consumer_group", F.when(_even(8) < 0.9, "default").otherwise("audit"))
    )  # fmt: skip


def _counted(frame: DataFrame, shape: Shape) -> DataFrame:
    storm = F.col("day").isin(9, 10) & (F.col("q") == 1)
    u = _even(9)
    outcome = (
        F.when(u < 0.002, "dead").when(u < 0.06, "retried")
        .when(u < 0.06 + shape.enqueued, "enqueued").when(storm & (u < 0.6), "retried")
        .otherwise("done")
    )  # fmt: skip
    count = F.floor(1 - F.log(1 - _even(10)) * (shape.per_row - 1)).cast("long")
    busy = F.floor(200 * F.exp(6 * _even(11))).cast("long")
    waiting = F.floor(500 * F.exp(5 * F.pow(_even(12), 2))).cast("long")
    n = F.col("count")
    ended = F.col("outcome") != "enqueued"
    again = F.when(F.col("outcome") == "retried", n).otherwise(F.floor(n / 20))
    return (
        frame.withColumn("outcome", outcome)
        .withColumn("count", count)
        .withColumn("busy", busy)
        .withColumn("waiting", waiting)
        .withColumn("settled_at", F.timestamp_micros("settled_us"))
        .withColumn("seq", F.col("id"))
        .withColumn("epoch", F.lit(1))
        .withColumn("worker", F.format_string("worker-%02d", F.col("shard_id") % 8))
        .withColumn("target", F.lit("local"))
        .withColumn("attempts", F.when(ended, n).otherwise(0))
        .withColumn("retries", again)
        .withColumn("busy_us", F.when(ended, F.col("busy") * n).otherwise(0))
        .withColumn("waiting_us", F.col("waiting") * n)
        .withColumn("bytes", F.when(F.col("outcome") == "retried", 0).otherwise(n * 180))
        .withColumn("lateness_us", again * 300)
        .withColumn("delayed", again)
        .withColumn("waiting_hist", F.create_map(_bucket("waiting"), n))
        .withColumn("busy_hist", F.create_map(_bucket("busy"), n))
        .withColumn("counts", F.lit(None))
    )


def _bucket(name: str) -> Column:
    """`late.model.histogram.bucket` of a duration of 32 µs or more."""
    shift = F.floor(F.log2(F.col(name))).cast("int") - 4
    return (shift * 16 + F.floor(F.col(name) / F.pow(F.lit(2), shift))).cast("int")
