"""The line of a flow that is held back: its speed, and when its parked tasks come back."""

from __future__ import annotations

import pytest

from late.scheduler.limits.limiter import (
    LOOK_MAX_US,
    LOOK_MIN_US,
    STANDS_US,
    ThrottledQueue,
)

S = 1_000_000


def moving(per_s: int, seconds: int = 10) -> tuple[ThrottledQueue, int]:
    """A line that has moved at this speed, and the time."""
    line = ThrottledQueue()
    line.measure(0)
    for tenth in range(10 * seconds):
        line.starts += per_s // 10
        line.measure((tenth + 1) * S // 10)
    return line, seconds * S


def test_a_young_line_says_nothing() -> None:
    line = ThrottledQueue()
    assert line.measure(0) is None
    line.starts += 50
    assert line.measure(S // 10) is None
    assert line.measure(S // 2) == pytest.approx(100)


def test_its_speed_is_that_of_the_last_second_or_so() -> None:
    line, now_us = moving(400)
    assert line.per_s == pytest.approx(400, rel=0.01)
    assert line.measure(now_us + 2 * S) == 0


def test_they_come_back_about_twice_as_fast_as_the_flow_moves() -> None:
    line, now_us = moving(100)
    looks = [line.join_us(now_us) for _ in range(1_000)]
    assert looks == sorted(looks)
    assert looks[0] >= now_us + LOOK_MIN_US
    assert 4.5 * S < looks[-1] - looks[0] < 5.5 * S
    assert line.keeps == 100, "as many as start until the first is back"


def test_a_line_that_stands_is_looked_at_seldom_and_within_a_minute() -> None:
    line, now_us = moving(0)
    looks = [line.join_us(now_us) for _ in range(10_000)]
    assert min(looks) >= now_us + STANDS_US
    assert max(looks) <= now_us + LOOK_MAX_US
    middle = sum(look < now_us + (STANDS_US + LOOK_MAX_US) / 2 for look in looks)
    assert 4_500 < middle < 5_500, "evenly"


def test_the_line_goes_on_where_it_ended() -> None:
    line, now_us = moving(0)
    first = [line.join_us(now_us) for _ in range(20)]
    then = line.join_us(now_us + S)
    assert then > first[-1]
    assert not line.over(first[-1])
    assert line.over(then)


def test_a_short_measurement_says_less_than_a_long_one() -> None:
    queue = ThrottledQueue()
    assert queue.measure(0) is None
    queue.starts = 10
    assert queue.measure(S) == 10.0
    queue.starts = 10
    assert queue.measure(S + S // 4) == 10.0 + (40.0 - 10.0) / 4
    queue.starts = 20
    assert queue.measure(3 * S + S // 4) == 10.0, "two seconds: all that counts"
