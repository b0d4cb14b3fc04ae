"""The sums of `make bench-channels`."""

from __future__ import annotations

from bench.channels import Call, Found, summary


def test_the_time_of_errors_counts_overlaps_once_and_the_wait_ends_with_the_last() -> None:
    calls = [
        Call(0.0, 0.1, failed=False),
        Call(2.0, 3.0, failed=True),
        Call(4.0, 2.0, failed=True),
        Call(4.5, 0.5, failed=True),
        Call(8.0, 1.5, failed=True),
        Call(9.0, 2.5, failed=False),
    ]
    assert summary(calls, 1.0) == Found(calls=6, failed=4, error_s=5.5, found_s=10.5)
    assert summary(calls[:1], 1.0) == Found(calls=1, failed=0, error_s=0.0, found_s=0.0)
