"""How many workers are wanted, as a number."""

from __future__ import annotations

import math

import msgspec
import pytest

from late.autoscaler.keda.demand import Signals, workers_wanted
from late.control.status.held_back import Pace, held_in_memory, helped
from late.control.views import Count, QueueStatus, Reported
from late.model.queue_settings import QueueSettings
from late.model.worker_report import Held, LimitedKey, TargetReport, WorkerReport

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
    failing = msgspec.structs.replace(seen, failed=60.0)
    assert failing.drain_s == 15.0, "an attempt that fails comes again"
    assert msgspec.structs.replace(seen, failed=100.0).drain_s == math.inf
    assert Signals(1, 1.0, 5.0, 1.0, 0, 8).saturation(16) == 0.0


QUEUE = QueueStatus("default", "pay", Count(600), Count(400))
BUSY = Pace(rate=50.0, slots=8.0)


def test_what_more_workers_would_not_start_asks_for_none() -> None:
    outage = Signals(2_000, 60.0, 10.0, 0.5, 2, 8, helped=0, limits=("pay waits for target bank",))
    assert workers_wanted(outage, slots=16, drain_s=60.0) == 1
    all_of_it = Signals(2_000, 60.0, 10.0, 4.0, 2, 8)
    assert workers_wanted(all_of_it, slots=16, drain_s=60.0) == 8
    still = Signals(2_000, 60.0, 0.0, 0.5, 2, 8, helped=0)
    assert workers_wanted(still, slots=16, drain_s=60.0) == 1, "somebody has to try the target"


@pytest.mark.parametrize(
    ("settings", "held", "parked", "expected"),
    [
        ({}, {}, 0, (1_000, "")),
        ({"paused": True}, {}, 0, (0, "queue pay is paused")),
        ({"rate": 55.0}, {}, 0, (0, "queue pay has its rate of 55/s")),
        ({"rate": 100.0}, {}, 0, (1_000, "")),
        ({"concurrency": 8}, {}, 0, (0, "queue pay has its 8 attempts at once")),
        ({"concurrency": "auto"}, {}, 0, (1_000, "")),
        ({}, {"target bank": 400}, 0, (0, "pay waits for target bank")),
        ({}, {"target bank": 100}, 0, (750, "pay waits for target bank")),
        ({}, {}, 7_888, (1_000, "")),
        ({"fair_key": "shop"}, {}, 7_888, (8_888, "")),
    ],
)
def test_what_more_workers_would_start(
    settings: dict[str, object], held: dict[str, int], parked: int, expected: tuple[int, str]
) -> None:
    knobs = QueueSettings(**settings)  # type: ignore[arg-type]
    assert helped(QUEUE, knobs, BUSY, held, parked) == expected


def test_what_circuits_hold_is_added_up_over_the_workers_that_were_heard_of() -> None:
    def report(age_s: float) -> Reported:
        target = TargetReport("bank", open_since_us=1, held=(Held("default", "pay", 200),))
        return Reported(WorkerReport("w", "h:1", every_s=15.0, targets=(target,)), 1, age_s, True)

    found = held_in_memory([report(1.0), report(2.0), report(600.0)])
    assert found == {("default", "pay"): {"target bank": 400}}


def test_what_limit_keys_hold_is_named_and_no_reason_for_more_workers() -> None:
    keys = tuple(
        LimitedKey("default", "pay", f"shop-{n}", 2, 100 + n, concurrency=2) for n in range(5)
    )
    told = WorkerReport("w", "h:1", every_s=15.0, limited_keys=keys)
    held = held_in_memory([Reported(told, 1, 1.0, True)])["default", "pay"]
    assert helped(QUEUE, QueueSettings(key_concurrency=2), BUSY, held, 0) == (
        0,
        "pay waits for key shop-4, 2 of 2 running, 104 wait; key shop-3, 2 of 2 running, 103 wait;"
        " key shop-2, 2 of 2 running, 102 wait and 2 more",
    )
    assert LimitedKey("g", "q", "k", 0, 1, rate=0.5).text == (
        "key k, 0 running, 0.5/s at most, 1 wait"
    )
