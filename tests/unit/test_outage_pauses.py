"""In an outage a try that has failed is followed by a pause, which grows with the outage."""

from __future__ import annotations

import pytest

from late.scheduler.limits.limits import Limits
from late.scheduler.limits.outages import PAUSE_MAX_US, PAUSE_MIN_US, SILENCE_US
from late.scheduler.limits.ready_queues import ReadyQueues
from tests.unit.test_outages import JOB, S, ended, failures, ready, starts


def out() -> tuple[Limits, ReadyQueues]:
    limits = Limits()
    made = ready(limits, range(100, 2_000))
    failures(limits, range(10))
    return limits, made


@pytest.mark.parametrize(
    ("age_us", "pause_us"),
    [(0, PAUSE_MIN_US), (8 * S, S // 2), (80 * S, PAUSE_MAX_US), (9_000 * S, PAUSE_MAX_US)],
)
def test_the_pause_is_a_part_of_the_time_that_it_has_lasted(age_us: int, pause_us: int) -> None:
    limits, made = out()
    [tried] = starts(limits, made, age_us)
    limits.ended([ended(tried, "failed", error="away")], age_us)
    assert starts(limits, made, age_us + pause_us - 1) == []
    assert limits.opens_at_us == age_us + pause_us, "the worker comes back by itself"
    assert len(starts(limits, made, age_us + pause_us)) == 1


def test_a_minute_of_failures_that_take_no_time_is_some_ninety_tries() -> None:
    limits, made = out()
    now_us = tries = 0
    while now_us < 60 * S:
        for tried in starts(limits, made, now_us):
            limits.ended([ended(tried, "failed", error="away")], now_us)
            tries += 1
        assert starts(limits, made, now_us) == []
        assert limits.opens_at_us is not None
        now_us = limits.opens_at_us
    assert tries == 88


def test_one_that_works_ends_the_pause() -> None:
    limits, made = out()
    first, second = starts(limits, made)[0], 0
    limits.ended([ended(first, "failed", error="away")], 80 * S)
    [second] = starts(limits, made, 85 * S)
    limits.ended([ended(second)], 85 * S)
    assert len(starts(limits, made, 85 * S)) == 2


def test_no_pause_outlives_a_clock_that_is_set_back() -> None:
    limits, made = out()
    [tried] = starts(limits, made, 8_000 * S)
    limits.ended([ended(tried, "failed", error="away")], 8_000 * S)
    assert len(starts(limits, made, 4_000 * S)) == 1


def test_what_is_parked_comes_back_within_the_time_that_it_has_lasted() -> None:
    limits, made = out()
    outages = limits.outages
    assert outages.sooner_us(JOB, 60 * S, 0) == SILENCE_US
    assert outages.sooner_us(JOB, 68 * S, 8 * S) == 16 * S
    assert outages.sooner_us(JOB, 190 * S, 130 * S) == 190 * S
    assert outages.sooner_us(JOB, 8 * S + 1, 8 * S) == 8 * S + 1, "none later than without it"
    parked = []
    for now_us in (0, S, 2 * S, 8 * S):
        for tried in starts(limits, made, now_us):
            limits.ended([ended(tried, "failed", error="away")], now_us)
        starts(limits, made, now_us)
        parked += [again_us - now_us for _, again_us, _ in made.surplus(100)]
    assert len(parked) > 1_000
    assert max(parked) <= 2 * S
