"""Buckets of durations: in order, without holes, and as exact as they say."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from late.model import histogram

DURATIONS = st.integers(0, 2**62)


@given(DURATIONS)
def test_a_duration_lies_in_its_bucket(us: int) -> None:
    index = histogram.bucket(us)
    assert histogram.lower(index) <= us < histogram.lower(index + 1)
    assert index <= histogram.LAST


@given(DURATIONS)
def test_the_middle_is_within_the_error_that_is_stated(us: int) -> None:
    assert abs(histogram.middle(histogram.bucket(us)) - us) <= us * histogram.ERROR


def test_buckets_follow_one_another_without_a_hole() -> None:
    found = {histogram.bucket(us) for us in range(5_000)}
    assert found == set(range(max(found) + 1))
    bounds = [histogram.lower(index) for index in range(histogram.LAST)]
    assert bounds == sorted(set(bounds))


@given(st.lists(DURATIONS))
def test_a_histogram_counts_each_duration_in_its_bucket(found: list[int]) -> None:
    expected = sorted(Counter(map(histogram.bucket, found)).items())
    assert histogram.histogram(found) == tuple(expected)
