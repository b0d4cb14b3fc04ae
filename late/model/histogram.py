"""Histograms of durations, whose buckets grow with the duration.

They are small, exact to add up and good for percentiles. There are sixteen buckets for each
doubling: a bucket is at most 1/16 of its lower bound wide, so its middle is within 1/32 (3.2 %) of
each value in it. Below 32 µs each value has its own bucket. Two histograms are merged by adding
their counts, in any order; only the place of a value within its bucket is lost. (A t-digest is
smaller for one long series, but merging many loses more, and its result depends on the order.)

Source: the layout is HdrHistogram's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping

ERROR = 1 / 32
"""The largest relative error of `middle(bucket(v))`."""
LAST = 1023
"""The bucket of the longest duration that a 64-bit integer holds."""


def bucket(us: int) -> int:
    """Return the bucket of a duration of `us` >= 0 microseconds. It rises with the duration."""
    if us < 32:
        return us
    shift = us.bit_length() - 5
    return (shift << 4) + (us >> shift)


def histogram(durations: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return (bucket, count) of `durations` in microseconds, ascending by bucket."""
    # The loop has one step per bucket and not per duration: the durations of one settlement are in
    # a few buckets.
    ordered, found, start = sorted(durations), [], 0
    while start < len(ordered):
        index = bucket(ordered[start])
        end = bisect_left(ordered, lower(index + 1), start)
        found.append((index, end - start))
        start = end
    return tuple(found)


def lower(index: int) -> int:
    """Return the least duration of a bucket, in microseconds."""
    if index < 32:
        return index
    shift = (index >> 4) - 1
    return (index - (shift << 4)) << shift


def middle(index: int) -> float:
    """Return the middle of a bucket, in microseconds."""
    return index if index < 32 else (lower(index) + lower(index + 1)) / 2


def percentile_us(counts: Mapping[int, int], share: float) -> float | None:
    """Return the duration, in microseconds, that `share` of those counted by bucket do not exceed;
    None if nothing is counted."""
    left = share * sum(counts.values())
    for index in sorted(counts):
        left -= counts[index]
        if left <= 0:
            return middle(index)
    return None
