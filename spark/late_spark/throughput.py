"""The throughput: a pure function from usage rows to one row per time and key.

- **Arrivals** are counted when the checkpoint covers them, with their age, so they are put back by
  it: an arrival is off by at most the error of its age's bucket (3.2 %). What has arrived and not
  been started by the end of the usage is in no row yet.
- **Percentiles** are those of the merged histograms: within 3.2 % of an attempt's time.
- **Backlog** is arrivals minus ends, added up from the first row on: from the beginning of the
  journal it is the backlog itself, from the middle its change since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from zoneinfo import ZoneInfo

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from late_spark import times
from late_spark.calendar import midnight
from late_spark.frames import unrecorded
from late_spark.schema import ENDS, ENQUEUED

Every = Literal["hour", "day"]
DIMENSIONS: Mapping[str, str] = {
    "queue": "queue",
    "task": "name",
    "group": "consumer_group",
    "target": "target",
    "owner": "owner",
    "tenant": "tenant",
}
"""The dimensions of a report, and their columns of the usage. Arrivals have no target."""
HOUR_US = 3_600_000_000
MOVERS_DAYS = 7
"""The days that `movers` compares with as many days before."""
QUANTILES = (0.5, 0.95, 0.99)
_UNFAILED = ("done", "discarded", "cancelled", "snoozed", "interrupted")


@dataclass(frozen=True)
class Limit:
    """The limit of a queue at the time of the report; None: no limit, or one that moves."""

    concurrency: int | None = None
    rate: float | None = None


def report(
    usage: DataFrame,
    *,
    from_us: int,
    to_us: int,
    by: Sequence[str] = ("queue",),
    every: Every = "hour",
    tz: str = "UTC",
    limits: Mapping[str, Limit] | None = None,
) -> DataFrame:
    """One row per hour or local day and key, ascending; hours and days without work have none.

    Args:
        usage: `schema.USAGE`; from its first row on the backlog is added up.
        from_us, to_us: the range, from inclusive, to exclusive. It should begin with an hour or day
            (`begins`). The last one may be cut: its rates are those of the part that is in it.
        by: of `DIMENSIONS`.
        tz: whose days; hours are the same everywhere.
        limits: of queues, for the saturation; only where the report is by queue.

    Returns:
        `at`, one column per dimension (`tenant` is "" where there is none), then `enqueued`,
        `done`, `failed` (attempts), `retried`, `dead`, `expired`, `discarded`, `arrivals_per_s`,
        `ends_per_s`, `waiting_p50_s` … p99, `busy_p50_s` … p99, `longest_wait_s`,
        `lateness_mean_s`, `backlog`, `busy_slots` (attempts at once on average),
        `concurrency_used`, `rate_used` (shares of the knobs), `unrecorded` (attempts of versions
        that kept no histograms).
    """
    keys = _keys(by)
    names = ["at", *by]
    at = _at(F.col("settled_us"), every, tz)
    attempts = usage.where(F.col("outcome") != ENQUEUED).select(at.alias("at"), *keys, *_READ)
    arrivals = _arrivals(usage, keys, list(by), every, tz)
    sums = attempts.groupBy(*names).agg(*_sums())
    found = sums.join(arrivals, _same(sums, arrivals, names), "full").select(
        *(F.coalesce(sums[name], arrivals[name]).alias(name) for name in names),
        F.coalesce(arrivals["enqueued"], F.lit(0)).alias("enqueued"),
        *(F.coalesce(sums[name], F.lit(0)).alias(name) for name in _SUMMED),
    )
    found = _backlog(found, list(by))
    starts = F.col("at") >= _at(F.lit(from_us), every, tz)
    found = found.where(starts & (F.col("at") < _moment(to_us)))
    inside = (F.col("settled_us") >= from_us) & (F.col("settled_us") < to_us)
    waits = _percentiles(attempts.where(inside), names)
    joined = found.join(waits, _same(found, waits, names), "left").select(
        *(found[name] for name in found.columns), *(waits[name] for name in _TIMES)
    )
    span_s = _span_s(every, tz, to_us)
    return _finished(joined, list(by), span_s, limits or {}).orderBy(*names)


def begins(at_us: int, every: Every, tz: str) -> int:
    """Return the begin of the hour or local day of a time."""
    if every == "hour":
        return at_us - at_us % HOUR_US
    zone = ZoneInfo(tz)
    return midnight(times.moment(at_us).astimezone(zone).date(), zone)


def movers(
    usage: DataFrame, *, to_us: int, by: Sequence[str] = ("queue",), days: int = MOVERS_DAYS
) -> DataFrame:
    """Keys by how much their ends changed, most first: the last `days` against those before."""
    span = days * 24 * HOUR_US
    recent = F.col("settled_us") >= to_us - span
    ends = F.when(F.col("outcome").isin(*ENDS), F.col("count")).otherwise(0)
    inside = (F.col("settled_us") >= to_us - 2 * span) & (F.col("settled_us") < to_us)
    found = (
        usage.where(inside)
        .groupBy(*_keys(by))
        .agg(
            F.sum(F.when(~recent, ends).otherwise(0)).alias("before"),
            F.sum(F.when(recent, ends).otherwise(0)).alias("after"),
            (F.sum(F.when(~recent, F.col("busy_us")).otherwise(0)) / 1e6).alias("busy_before_s"),
            (F.sum(F.when(recent, F.col("busy_us")).otherwise(0)) / 1e6).alias("busy_after_s"),
        )
    )
    change = F.col("after") - F.col("before")
    share = F.when(F.col("before") > 0, change / F.col("before"))
    return found.select("*", change.alias("change"), share.alias("change_share")).orderBy(
        F.abs(change).desc(), *by
    )


# ---------------------------------------------------------------------- pieces

_READ = (
    "settled_us", "outcome", "count", "attempts", "busy_us", "lateness_us", "delayed",
    "waiting_hist", "busy_hist",
)  # fmt: skip
_SUMMED = (
    "done", "failed", "retried", "dead", "expired", "discarded", "ended", "attempts", "busy_us",
    "lateness_us", "delayed", "unrecorded",
)  # fmt: skip
_TIMES = (
    *(f"{kind}_p{round(100 * q)}_s" for kind in ("waiting", "busy") for q in QUANTILES),
    "longest_wait_s",
)


def _keys(by: Sequence[str]) -> list[Column]:
    """Return the columns of the dimensions. Usage from before the queue had a fair key has null as
    its tenant, and a task without the header an empty text: both have none."""
    keys = {name: F.col(column) for name, column in DIMENSIONS.items()}
    keys["tenant"] = F.coalesce(keys["tenant"], F.lit(""))
    return [keys[name].alias(name) for name in by]


def _moment(us: int) -> Column:
    return F.timestamp_micros(F.lit(us))


def _at(us: Column, every: Every, tz: str) -> Column:
    """The begin of the hour, or of the local day, as a moment."""
    if every == "hour":
        return F.timestamp_micros((us - F.pmod(us, F.lit(HOUR_US))).cast("long"))
    local = F.date_trunc("day", F.from_utc_timestamp(F.timestamp_micros(us.cast("long")), tz))
    return F.to_utc_timestamp(local, tz)


def _span_s(every: Every, tz: str, to_us: int) -> Column:
    """Return the length of a row's hour or local day within the range: a day may have 23 or 25
    hours."""
    begin = F.unix_micros("at")
    end = begin + HOUR_US
    if every == "day":
        local = F.from_utc_timestamp(F.col("at"), tz) + F.expr("interval 1 day")
        end = F.unix_micros(F.to_utc_timestamp(local, tz))
    return (F.least(end, F.lit(to_us)) - begin) / 1e6


def _same(left: DataFrame, right: DataFrame, names: Sequence[str]) -> Column:
    # Null-safe: an unknown owner is a key like any other.
    condition = F.lit(True)
    for name in names:
        condition = condition & left[name].eqNullSafe(right[name])
    return condition


def _of(*outcomes: str) -> Column:
    return F.sum(F.when(F.col("outcome").isin(*outcomes), F.col("count")).otherwise(0))


def _sums() -> list[Column]:
    failed = ~F.col("outcome").isin(*_UNFAILED)
    return [
        _of("done").alias("done"),
        F.sum(F.when(failed, F.col("attempts")).otherwise(0)).alias("failed"),
        _of("retried").alias("retried"),
        _of("dead").alias("dead"),
        _of("expired").alias("expired"),
        _of("discarded").alias("discarded"),
        _of(*ENDS).alias("ended"),
        *(F.sum(name).alias(name) for name in ("attempts", "busy_us", "lateness_us", "delayed")),
        F.sum(F.when(unrecorded(), F.col("attempts")).otherwise(0)).alias("unrecorded"),
    ]


def _lower(index: str) -> str:
    """`late.model.histogram.lower` in SQL."""
    shift = f"(shiftright({index}, 4) - 1)"
    far = f"shiftleft(cast({index} - shiftleft({shift}, 4) as bigint), {shift})"
    return f"if({index} < 32, cast({index} as bigint), {far})"


def _middle(index: str) -> Column:
    """`late.model.histogram.middle` in SQL, in microseconds."""
    inner = f"({_lower(index)} + {_lower(f'({index} + 1)')}) / 2"
    return F.expr(f"if({index} < 32, cast({index} as double), {inner})")


def _arrivals(
    usage: DataFrame, keys: list[Column], by: list[str], every: Every, tz: str
) -> DataFrame:
    """Compute when tasks came, from their age when they were counted."""
    exploded = usage.where(F.col("outcome") == ENQUEUED).select(
        *keys, "settled_us", F.explode("waiting_hist").alias("bucket", "tasks")
    )
    came_us = (F.col("settled_us") - _middle("bucket")).cast("long")
    placed = exploded.select(_at(came_us, every, tz).alias("at"), *by, "tasks")
    return placed.groupBy("at", *by).agg(F.sum("tasks").alias("enqueued"))


def _percentiles(attempts: DataFrame, names: list[str]) -> DataFrame:
    """Merge the histograms of each key and read the quantiles off: the bucket in which so many of
    its attempts lie at or below."""
    buckets = None
    for kind in ("waiting", "busy"):
        part = attempts.select(
            *names, F.lit(kind).alias("kind"),
            F.explode(f"{kind}_hist").alias("bucket", "tasks"),
        )  # fmt: skip
        buckets = part if buckets is None else buckets.unionAll(part)
    assert buckets is not None
    merged = buckets.groupBy(*names, "kind", "bucket").agg(F.sum("tasks").alias("tasks"))
    of_key = Window.partitionBy(*names, "kind")
    counted = merged.select(
        "*",
        F.sum("tasks").over(of_key.orderBy("bucket")).alias("through"),
        F.sum("tasks").over(of_key).alias("total"),
    )

    def quantile(kind: str, q: float) -> Column:
        reached = (F.col("kind") == kind) & (F.col("through") >= F.ceil(F.col("total") * q))
        return F.min(F.when(reached, F.col("bucket")))

    columns = {
        f"{kind}_p{round(100 * q)}_s": quantile(kind, q)
        for kind in ("waiting", "busy")
        for q in QUANTILES
    }
    columns["longest_wait_s"] = F.max(F.when(F.col("kind") == "waiting", F.col("bucket")))
    found = counted.groupBy(*names).agg(*(column.alias(name) for name, column in columns.items()))
    return found.select(*names, *((_middle(name) / 1e6).alias(name) for name in columns))


def _backlog(found: DataFrame, by: list[str]) -> DataFrame:
    so_far = Window.partitionBy(*by).orderBy("at").rowsBetween(Window.unboundedPreceding, 0)
    change = F.col("enqueued") - F.col("ended")
    return found.withColumn("backlog", F.sum(change).over(so_far))


def _finished(
    joined: DataFrame, by: list[str], span_s: Column, limits: Mapping[str, Limit]
) -> DataFrame:
    busy_slots = F.col("busy_us") / 1e6 / span_s

    def share(value: Column, name: str) -> Column:
        chosen = {queue: getattr(limit, name) for queue, limit in limits.items()}
        pairs = [F.lit(each) for pair in chosen.items() if pair[1] for each in pair]
        if "queue" not in by or not pairs:
            return F.lit(None).cast("double")
        return value / F.create_map(*pairs)[F.col("queue")]

    return joined.select(
        "at", *by, "enqueued", "done", "failed", "retried", "dead", "expired", "discarded",
        (F.col("enqueued") / span_s).alias("arrivals_per_s"),
        (F.col("ended") / span_s).alias("ends_per_s"),
        *_TIMES,
        F.when(F.col("delayed") > 0, F.col("lateness_us") / F.col("delayed") / 1e6)
        .alias("lateness_mean_s"),
        "backlog",
        busy_slots.alias("busy_slots"),
        share(busy_slots, "concurrency").alias("concurrency_used"),
        share(F.col("attempts") / span_s, "rate").alias("rate_used"),
        "unrecorded",
    )  # fmt: skip
