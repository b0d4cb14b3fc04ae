"""The frames that every report is a function of.

A live store (`spark.read.format("late")`), the lake (`late lake export`) and generated data have
the same shape. Times are `_us`, microseconds since the Unix epoch by the database's clock, and
beside them Spark's timestamps.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

ENQUEUED = "enqueued"
"""Outcome of usage rows that count arrivals: tasks of the log that the group has taken note of,
each once. They are neither attempts nor ends, have no target and no times; `bytes` is 0, for the
payload is counted where the task ends."""
ENDS = ("done", "dead", "expired", "discarded", "cancelled")
"""Outcomes that end a task, once per consumer group."""
GOES_ON = ("retried", "stalled", "snoozed", "interrupted", "died", "not_capable")
"""Outcomes of attempts after which the task will be tried again. With `ENDS` and `ENQUEUED` these
are all: an outcome in no group would be work that nobody pays for."""

_INT, _LONG, _TEXT, _TIME = IntegerType(), LongType(), StringType(), TimestampType()
_HISTOGRAM = MapType(IntegerType(), LongType())


def _frame(*columns: tuple[str, DataType]) -> StructType:
    # All nullable, as Spark reads every Parquet file, so that lake and store are of one type.
    return StructType([StructField(name, kind) for name, kind in columns])


USAGE = _frame(
    ("settled_at", _TIME),
    ("settled_us", _LONG),
    ("consumer_group", _TEXT),
    ("shard_id", _INT),
    # (consumer_group, shard_id, seq) is one settlement.
    ("seq", _LONG),
    ("epoch", _LONG),
    ("worker", _TEXT),
    ("queue", _TEXT),
    ("name", _TEXT),
    # "" where nothing was executed.
    ("target", _TEXT),
    ("outcome", _TEXT),
    # Attempts under this outcome, or tasks that ended or arrived without one.
    ("count", _LONG),
    # Those of `count` that were started; of them, those after a task's first.
    ("attempts", _LONG),
    ("retries", _LONG),
    # Sums over the attempts: running, and from being due to the start.
    ("busy_us", _LONG),
    ("waiting_us", _LONG),
    # Payload bytes of tasks that ended.
    ("bytes", _LONG),
    # Start after due time, summed over the `delayed` attempts: those whose due time was set (a
    # delay, a time, a retry, a schedule) and not their arrival.
    ("lateness_us", _LONG),
    # The same times as histograms over the attempts: bucket (`late.model.histogram`) -> attempts.
    ("waiting_hist", _HISTOGRAM),
    ("busy_hist", _HISTOGRAM),
    # Value of the queue's fair key; NULL where the queue has none.
    ("tenant", _TEXT),
    # Who pays for the queue; NULL where nobody was named.
    ("owner", _TEXT),
    ("delayed", _LONG),
    # What handlers have counted (`ctx.count`): name -> sum. NULL in files of older versions.
    ("counts", MapType(StringType(), LongType())),
)
LATER = frozenset({"counts"})
"""Columns of usage that files of older versions do not have."""


_CALL: tuple[tuple[str, DataType], ...] = (
    ("queue", _TEXT),
    ("name", _TEXT),
    ("payload", BinaryType()),
    ("headers", _TEXT),
    ("options", _TEXT),
    ("created_at", _TIME),
    ("created_at_us", _LONG),
)
_PLACED: tuple[tuple[str, DataType], ...] = (("position", _LONG), ("sequence", _LONG), *_CALL)
_TRIED: tuple[tuple[str, DataType], ...] = (("attempts", _INT), ("deaths", _INT), ("errors", _TEXT))

TASKS = _frame(
    ("shard_id", _INT),
    ("position", _LONG),
    ("task_id", _TEXT),
    *_CALL,
)
"""The task log: what retention has left of it."""

DEAD = _frame(
    ("consumer_group", _TEXT),
    ("shard_id", _INT),
    ("dead_at", _TIME),
    ("dead_at_us", _LONG),
    ("task_id", _TEXT),
    ("reason", _TEXT),
    *_PLACED,
    *_TRIED,
)

TIMERS = _frame(
    ("consumer_group", _TEXT),
    ("shard_id", _INT),
    # NULL for a task that waits behind its ordering key: `due_at_us` is then beyond every time.
    ("due_at", _TIME),
    ("due_at_us", _LONG),
    ("task_id", _TEXT),
    ("reason", _TEXT),
    ("held_key", _TEXT),
    *_PLACED,
    *_TRIED,
)

JOURNAL = _frame(
    ("consumer_group", _TEXT),
    ("shard_id", _INT),
    ("seq", _LONG),
    ("settlement_id", _TEXT),
    ("epoch", _LONG),
    ("owner", _TEXT),
    ("cursor", _TEXT),
    ("open", _TEXT),
    ("usage", _TEXT),
    ("settled_at", _TIME),
    ("settled_at_us", _LONG),
    ("suspects", _TEXT),
)

TABLES = {"usage": USAGE, "tasks": TASKS, "dead": DEAD, "timers": TIMERS, "journal": JOURNAL}
"""The tables of `.option("table", …)`."""


def unrecorded() -> Column:
    """A condition on usage rows: written by a version that recorded no histograms, retries and
    lateness. Every attempt is in both histograms, so attempts without one say it."""
    return (F.col("attempts") > 0) & (F.size("waiting_hist") == 0)
