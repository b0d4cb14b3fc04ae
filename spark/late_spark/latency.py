"""Waiting and running times of tasks by day: percentiles of the merged histograms.

`daily` is the only part that sees the usage: it leaves at most a thousand buckets a day and kind,
however many tasks there were.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from math import ceil

from late.model.histogram import middle
from late_spark import relation
from late_spark.calendar import Calendar
from late_spark.relation import Columns, Relation, total

QUANTILES = (50, 95, 99)
KINDS = ("waiting", "busy")
FIELDS = tuple(f"{kind}_p{percent}_ms" for kind in KINDS for percent in QUANTILES)


def daily(usage: Relation, calendar: Calendar, queue: str | None = None) -> Columns:
    """Per local day, kind (`waiting`, `busy`) and bucket (`late.model.histogram`): the attempts.

    Args:
        queue: only this one; None takes all.
    """
    chosen = f"{relation.within(calendar)} and attempts > 0"
    if queue is not None:
        chosen += " and queue = :queue"
    parts = [
        f"select {relation.day(calendar)} as day, '{kind}' as kind,"
        f" {relation.entries(kind)} as entry from usage where {chosen}"
        for kind in KINDS
    ]
    values = {} if queue is None else {"queue": queue}
    return usage.ask(
        f"""
        select day, kind, entry.key as bucket, {total("entry.value")} as attempts
        from ({" union all ".join(parts)}) as entries
        group by day, kind, entry.key
        """,
        **values,
    )


def collect(columns: Columns) -> dict[date, dict[str, float]]:
    """The rows of `daily` as percentiles: day -> the `FIELDS` that it has, in milliseconds."""
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
