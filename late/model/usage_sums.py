"""Sums of usage: pure. Rows with one key are one row whose counts are the sums of theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from late.model.task import Histogram, Usage

_NUMBERS = (
    "count",
    "attempts",
    "busy_us",
    "waiting_us",
    "payload_bytes",
    "retries",
    "lateness_us",
    "delayed",
)
"""The fields that add up; with the two histograms and the key they are all that there is."""

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


def difference(whole: Iterable[Usage], part: Iterable[Usage]) -> tuple[Usage, ...]:
    """Take the counts of `part`, which are in those of `whole`, out of them.

    Raises:
        ValueError: `part` has counts that `whole` does not have.
    """
    taken = [_negative(each) for each in part]
    left = summed([*whole, *taken])
    for usage in left:
        counts = [*_numbers(usage), *(n for _, n in usage.waiting), *(n for _, n in usage.busy)]
        if min(counts) < 0:
            raise ValueError(f"more of {key_of(usage)} than there is")
    return tuple(usage for usage in left if any(_numbers(usage)) or usage.waiting or usage.busy)


def _numbers(usage: Usage) -> tuple[int, ...]:
    return tuple(getattr(usage, name) for name in _NUMBERS)


def _negative(usage: Usage) -> Usage:
    return msgspec.structs.replace(
        usage,
        waiting=tuple((index, -count) for index, count in usage.waiting),
        busy=tuple((index, -count) for index, count in usage.busy),
        **{name: -getattr(usage, name) for name in _NUMBERS},
    )


def _sum(rows: list[Usage]) -> Usage:
    if len(rows) == 1:
        return rows[0]
    return msgspec.structs.replace(
        rows[0],
        waiting=_merged(row.waiting for row in rows),
        busy=_merged(row.busy for row in rows),
        **{name: sum(getattr(row, name) for row in rows) for name in _NUMBERS},
    )


def _merged(histograms: Iterable[Histogram]) -> Histogram:
    counts: Counter[int] = Counter()
    for histogram in histograms:
        for index, count in histogram:
            counts[index] += count
    return tuple(sorted((index, count) for index, count in counts.items() if count))
