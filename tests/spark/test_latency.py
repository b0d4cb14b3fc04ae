"""Percentiles by day: exact to the bucket, and of the days and queues that are meant."""

from __future__ import annotations

from datetime import date
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from late_spark import latency
from late_spark.calendar import Calendar

from late.model.histogram import ERROR, histogram
from tests.spark.conftest import Related
from tests.spark.usage_kit import BERLIN, row


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=200))
def test_quantiles_are_those_of_the_times_themselves(times: list[int]) -> None:
    times.sort()
    found = latency.quantiles(dict(histogram(times)), (1, 50, 95, 99, 100))
    for percent, us in zip((1, 50, 95, 99, 100), found, strict=True):
        exact = times[ceil(len(times) * percent / 100) - 1]
        assert us == pytest.approx(exact, rel=ERROR)


def test_histograms_are_added_up_by_local_day(related: Related) -> None:
    # Given two rows of one day of Berlin, one of the next, and one outside of the range
    slow = {"waiting_hist": dict(histogram([20] * 98)), "busy_hist": dict(histogram([31] * 98))}
    fast = {"waiting_hist": dict(histogram([10] * 2)), "busy_hist": dict(histogram([2] * 2))}
    other = {"waiting_hist": dict(histogram([5])), "busy_hist": dict(histogram([6]))}
    rows = [
        row("2026-03-27T23:00:00Z", "mail", "send", "done", 98, **slow),
        row("2026-03-28T22:59:59Z", "mail", "send", "retried", 2, **fast),
        row("2026-03-28T23:00:00Z", "pay", "charge", "done", 1, **other),
        row("2026-03-28T23:00:00Z", "pay", "charge", "enqueued", 9, attempts=0,
            waiting_hist=dict(histogram([30] * 9))),
        row("2026-03-31T23:00:00Z", "mail", "send", "done", 1, **other),
    ]  # fmt: skip
    usage = related(rows)
    days = Calendar.of("2026-03-28", "2026-03-31", BERLIN)
    # When they are put together
    found = latency.collect(latency.daily(usage, days))
    # Then each day has the percentiles of its attempts; arrivals are none
    assert found == {
        date(2026, 3, 28): {
            "waiting_p50_ms": 0.02, "waiting_p95_ms": 0.02, "waiting_p99_ms": 0.02,
            "busy_p50_ms": 0.031, "busy_p95_ms": 0.031, "busy_p99_ms": 0.031,
        },
        date(2026, 3, 29): {
            "waiting_p50_ms": 0.005, "waiting_p95_ms": 0.005, "waiting_p99_ms": 0.005,
            "busy_p50_ms": 0.006, "busy_p95_ms": 0.006, "busy_p99_ms": 0.006,
        },
    }  # fmt: skip
    assert set(latency.collect(latency.daily(usage, days, "pay"))) == {date(2026, 3, 29)}
