"""How many workers are wanted, as a number."""

from __future__ import annotations

import math

import pytest

from late.autoscaler.keda.demand import Signals, workers_wanted
from late.control.views import Count, QueueStatus

IDLE = Signals(backlog=0, age_s=0.0, rate=0.0, busy_s=0.0, workers=2, shards=8)


@pytest.mark.parametrize(
    ("backlog", "rate", "busy_s", "workers"),
    [
        (0, 0.0, 0.0, 0),  # nothing to do
        (1, 0.0, 0.0, 1),  # nobody knows how long it takes
        (0, 100.0, 0.32, 2),  # 32 slots busy
        (6000, 100.0, 0.32, 4),  # as many again to drain 6,000 in a minute
        (10**9, 100.0, 0.32, 8),  # no more than shards
        (5, 0.5, 0.01, 1),
    ],
)
def test_wanted(backlog: int, rate: float, busy_s: float, workers: int) -> None:
    seen = Signals(backlog, 1.0, rate, busy_s, 2, 8)
    assert workers_wanted(seen, slots=16, drain_s=60.0) == workers


def test_a_look_that_saw_no_task_held_within_its_bound_does_not_say_that_there_is_none() -> None:
    def waiting(held: Count) -> int:
        return QueueStatus("default", "mail", Count(2), Count(3), held=held).waiting

    assert [waiting(Count(0)), waiting(Count(4)), waiting(Count(4, True))] == [5, 9, 9]
    assert waiting(Count(0, True)) == 6


def test_drain_time_and_saturation() -> None:
    seen = Signals(backlog=600, age_s=4.0, rate=100.0, busy_s=0.16, workers=2, shards=8)
    assert seen.drain_s == 6.0
    assert seen.saturation(16) == 0.5
    assert IDLE.drain_s == 0.0
    assert Signals(1, 1.0, 0.0, 0.0, 0, 8).drain_s == math.inf
    assert Signals(1, 1.0, 5.0, 1.0, 0, 8).saturation(16) == 0.0
