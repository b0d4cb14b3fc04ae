"""When the parked tasks of a jammed flow come back."""

from __future__ import annotations

from late.scheduler.line import LOOK_MAX_US, LOOK_MIN_US, Line

S = 1_000_000


def test_they_come_back_about_twice_as_fast_as_the_flow_moves() -> None:
    line = Line(0)
    for second in range(10):  # long enough for the average
        line.starts = 100
        line.join_us((second + 1) * S)
    now_us = 10 * S
    looks = [line.join_us(now_us) for _ in range(1_000)]
    assert looks == sorted(looks)
    assert 4.5 * S < looks[-1] - looks[0] < 6 * S


def test_a_long_line_comes_back_within_a_minute_and_evenly() -> None:
    line = Line(0)
    looks = [line.join_us(0) for _ in range(10_000)]
    assert min(looks) >= LOOK_MIN_US
    assert max(looks) <= LOOK_MAX_US
    middle = sum(look < (LOOK_MIN_US + LOOK_MAX_US) / 2 for look in looks)
    assert 4_500 < middle < 5_500


def test_the_line_goes_on_where_it_ended() -> None:
    line = Line(0)
    first = [line.join_us(0) for _ in range(20)]
    then = line.join_us(1 * S)
    assert then > first[-1]
    assert not line.over(first[-1])
    assert line.over(then)


def test_a_flow_that_stood_still_begins_anew() -> None:
    line = Line(0)
    line.join_us(0)
    assert line.join_us(100 * S) >= 100 * S + LOOK_MIN_US
