"""Sums of usage: pure. Rows with one key are one row whose counts are the sums of theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from late.model.task import Counts, Histogram, Usage

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
"""The fields that add up; with the two histograms, the counts by name and the key they are all that
there is."""

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
        if min(_every_number(usage)) < 0:
            raise ValueError(f"more of {key_of(usage)} than there is")
    return tuple(usage for usage in left if any(_every_number(usage)))


def _numbers(usage: Usage) -> tuple[int, ...]:
    return tuple(getattr(usage, name) for name in _NUMBERS)


def _every_number(usage: Usage) -> list[int]:
    named = [*usage.waiting, *usage.busy, *usage.counts]
    return [*_numbers(usage), *(number for _, number in named)]


def _negative(usage: Usage) -> Usage:
    return msgspec.structs.replace(
        usage,
        waiting=tuple((index, -count) for index, count in usage.waiting),
        busy=tuple((index, -count) for index, count in usage.busy),
        counts=tuple((name, -count) for name, count in usage.counts),
        **{name: -getattr(usage, name) for name in _NUMBERS},
    )


def _sum(rows: list[Usage]) -> Usage:
    if len(rows) == 1:
        return rows[0]
    return msgspec.structs.replace(
        rows[0],
        waiting=_merged(row.waiting for row in rows),
        busy=_merged(row.busy for row in rows),
        counts=named_sums(row.counts for row in rows),
        **{name: sum(getattr(row, name) for row in rows) for name in _NUMBERS},
    )


def _merged(histograms: Iterable[Histogram]) -> Histogram:
    counts: Counter[int] = Counter()
    for histogram in histograms:
        for index, count in histogram:
            counts[index] += count
    return tuple(sorted((index, count) for index, count in counts.items() if count))


def named_sums(counts: Iterable[Counts]) -> Counts:
    """Add up counts by name, ascending by name. A name whose sum is 0 is left out."""
    sums: Counter[str] = Counter()
    for each in counts:
        for name, number in each:
            sums[name] += number
    return tuple(sorted((name, number) for name, number in sums.items() if number))
