"""How much of what nobody fetched is called back at once, whatever its queue, rate and pool."""

from __future__ import annotations

import msgspec

from late.model.queue_settings import QueueSettings
from late.scheduler.core.unclaimed import FAR_US
from tests.unit.unclaimed_kit import MAIL, POST, fetch, give, park, settle, world


def test_a_task_that_is_known_under_another_queue_is_called_a_few_at_a_time() -> None:
    """Given letters whose records have another queue than the one they are fetched from."""
    made = world()
    give(made, *[5.0 + n / 10 for n in range(300)], queue="former")
    made.take_over(died=False)
    most = made.settings.limited_max // 2
    for _ in range(40):  # the clock stands still, and somebody takes one now and then
        fetch(made, 1, passes=1)
        here = sum(e.state == "ready" for e in made.core.state.timers.parked.values())
        assert made.core.state.ready_queues.ready_for(MAIL) == here <= most + most // 2
    assert len(made.starts) > 0


def test_what_nobody_fetched_under_a_slow_rate_is_called_once_the_rate_is_lifted() -> None:
    made = world(60)
    made.turn(mail=QueueSettings(rate=0.1))
    made.limits.begin({"g": 1}, {"g": 1}, made.now_us)
    park(made, 6.0)
    assert {row.reason for row in made.timers.values()} == {"unfetched"}
    assert all(due_us - made.now_us < FAR_US for due_us, _ in made.timers)
    made.turn()
    got: set[str] = set()
    for _ in range(20):  # the clock stands still
        got |= set(fetch(made, 3))
        for attempt in list(made.running):
            made.finish(attempt)
        settle(made)
    assert len(got) == 60


def test_pools_share_what_is_called_back() -> None:
    made = world()
    made.settings = msgspec.structs.replace(made.settings, window=96, timers_max=200)
    give(made, *[30.0 + n / 10 for n in range(60)])
    give(made, *[30.0 + n / 10 for n in range(60)], name="parcel", queue="post")
    made.take_over(died=False)
    most = made.settings.limited_max // 2
    for _ in range(40):  # the clock stands still
        made.asked[POST] = 1
        fetch(made, 1, passes=1)
        assert (
            max(made.core.state.ready_queues.ready_for(pool) for pool in (MAIL, POST)) <= most // 2
        )
    assert {attempt.target for attempt in made.starts} == {MAIL, POST}
