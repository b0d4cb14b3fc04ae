"""The tenant behind an unusual day. A second look at the usage, at these days' tasks only.

The sums of a report do not tell tenants apart, for they are as many as customers. Spark finds the
one that differs most, so that only one for each question comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from late_spark import drivers, schema
from late_spark.anomalies import Span
from late_spark.calendar import Calendar

_EPOCH = date(1970, 1, 1)


def behind(usage: DataFrame, calendar: Calendar, spans: Sequence[Span]) -> dict[Span, str]:
    """Say for each span which tenant's tasks differ most from those of other days, a day.

    Nothing is said where no tenant is recorded."""
    if not spans:
        return {}
    asked = usage.sparkSession.createDataFrame(
        [(at, span.queue, span.name, (span.first - _EPOCH).days, (span.last - _EPOCH).days)
         for at, span in enumerate(spans)],
        "at int, queue string, name string, first int, last int",
    )  # fmt: skip
    ended = F.when(F.col("outcome").isin(*schema.ENDS), F.col("count")).otherwise(0)
    inside = F.col("day").between(F.col("first"), F.col("last"))
    days = F.col("last") - F.col("first") + 1
    within = F.sum(F.when(inside, F.col("ended")).otherwise(0)) / F.max(days)
    beside = F.sum(F.when(inside, 0).otherwise(F.col("ended")))
    rest = F.greatest(F.lit(1), F.lit(len(calendar.days)) - F.max(days))
    rows = (
        drivers.within(usage, calendar)
        .select("queue", "name", "tenant", drivers.day(calendar).alias("day"), ended.alias("ended"))
        .join(F.broadcast(asked), ["queue", "name"])
        .groupBy("at", "tenant")
        .agg((within - beside / rest).alias("off"))
        .groupBy("at")
        .agg(
            F.max(F.when(F.col("tenant") != "", F.struct(
                F.abs("off").alias("size"), F.col("tenant").alias("tenant"), F.col("off"),
            ))).alias("most"),
            F.sum("off").alias("whole"),
        )
        .collect()
    )  # fmt: skip
    found = {}
    for row in rows:
        if row.most is not None and row.whole:
            share = row.most.off / row.whole
            found[spans[row["at"]]] = f"tenant {row.most.tenant} is {share:.0%} of the difference"
    return found
