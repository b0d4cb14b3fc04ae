"""Durations in buckets that grow with the duration: small, exact to add up, good for percentiles.

Sixteen buckets for each doubling: a bucket is at most 1/16 of its lower bound wide, so that its
middle is within 1/32 (3.2 %) of everything in it. Below 32 µs each value has its own. Two
histograms are merged by adding their counts, in any order; nothing else is lost than the place
within a bucket. (A t-digest is smaller for one long series, but merging many loses more, and what
it says depends on the order.)

Source: the layout is HdrHistogram's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

ERROR = 1 / 32
"""The largest relative error of `middle(bucket(v))`."""
LAST = 1023
"""The highest bucket of all durations that a 64-bit integer holds."""


def bucket(us: int) -> int:
    """The bucket of a duration of `us` >= 0 microseconds; the longer, the higher."""
    if us < 32:
        return us
    shift = us.bit_length() - 5
    return (shift << 4) + (us >> shift)


def histogram(durations: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """(bucket, count) of all `durations` in microseconds, ascending by bucket."""
    # One step for each bucket and not for each duration: those of one settlement share a few.
    ordered, found, start = sorted(durations), [], 0
    while start < len(ordered):
        index = bucket(ordered[start])
        end = bisect_left(ordered, lower(index + 1), start)
        found.append((index, end - start))
        start = end
    return tuple(found)


def lower(index: int) -> int:
    """The least duration of a bucket, in microseconds."""
    if index < 32:
        return index
    shift = (index >> 4) - 1
    return (index - (shift << 4)) << shift


def middle(index: int) -> float:
    """The middle of a bucket, in microseconds."""
    return index if index < 32 else (lower(index) + lower(index + 1)) / 2
