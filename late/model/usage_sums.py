"""Sums of usage: pure. Rows with one key are one row whose counts are the sums of theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from late.model.task import Histogram, Usage

Key = tuple[str, str, str, str, str | None]


def key_of(usage: Usage) -> Key:
    """Return what counts are kept by: queue, name, target, outcome and tenant."""
    return usage.queue, usage.name, usage.target, usage.outcome, usage.tenant


def summed(usages: Iterable[Usage]) -> tuple[Usage, ...]:
    """Add up the rows of each key, ascending by key as a settlement has them. Exact: every field is
    a count, a sum or a histogram."""
    rows: dict[Key, list[Usage]] = {}
    for usage in usages:
        rows.setdefault(key_of(usage), []).append(usage)
    # No tenant and the tenant "" do not compare.
    keys = sorted(rows, key=lambda key: (*key[:4], key[4] or "", key[4] is None))
    return tuple(_sum(rows[key]) for key in keys)


def _sum(rows: list[Usage]) -> Usage:
    first = rows[0]
    if len(rows) == 1:
        return first
    return Usage(
        first.queue,
        first.name,
        first.target,
        first.outcome,
        count=sum(row.count for row in rows),
        attempts=sum(row.attempts for row in rows),
        busy_us=sum(row.busy_us for row in rows),
        waiting_us=sum(row.waiting_us for row in rows),
        payload_bytes=sum(row.payload_bytes for row in rows),
        retries=sum(row.retries for row in rows),
        lateness_us=sum(row.lateness_us for row in rows),
        delayed=sum(row.delayed for row in rows),
        waiting=_merged(row.waiting for row in rows),
        busy=_merged(row.busy for row in rows),
        tenant=first.tenant,
    )


def _merged(histograms: Iterable[Histogram]) -> Histogram:
    counts: Counter[int] = Counter()
    for histogram in histograms:
        for index, count in histogram:
            counts[index] += count
    return tuple(sorted(counts.items()))
