"""The database's clock is set back by ten minutes: what waits for a while waits no longer for that.

Delays, retries and schedules do: they are due at a time.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest

from late.clock import SET_BACK_US, was_set_back
from late.model.queue_settings import QueueSettings
from late.model.task import Cursor, ShardId
from late.scheduler.core.shard_core import ShardCore
from late.scheduler.core.timers import RESCAN_US, Timers
from late.scheduler.events_effects import PageRead, SettleSoon
from late.scheduler.limits.adaptive_limit import AdaptiveLimit, SlowStart
from late.scheduler.limits.circuit_breaker import CircuitBreaker
from late.scheduler.limits.limiter import Limiter, ThrottledQueue, TokenBucket
from late.scheduler.limits.outages import FAILED_MIN, Outages
from late.scheduler.scheduler import CALM_PASS_S, Scheduler
from late.scheduler.settings import CoreSettings
from late.store.base import Page
from tests.simulator.loop import SimLoop
from tests.unit.core_world import SECOND, World, settle
from tests.unit.test_outages import ended, record

NOW_US = 10_000 * SECOND
BACK_US = NOW_US - 600 * SECOND


def test_a_little_is_no_step() -> None:
    assert not was_set_back(NOW_US - SET_BACK_US, NOW_US)
    assert was_set_back(NOW_US - SET_BACK_US - 1, NOW_US)


def test_a_bucket_fills_again() -> None:
    bucket = TokenBucket(10.0, 1.0, NOW_US)
    bucket.take()
    assert not bucket.has(BACK_US)
    assert bucket.has(BACK_US + SECOND // 10)


def test_a_bucket_earns_nothing_by_a_clock_that_goes_to_and_fro() -> None:
    """As a lower bound does, by some milliseconds with each reply."""
    bucket = TokenBucket(10.0, 1.0, NOW_US)
    bucket.take()
    for _ in range(1_000):
        assert not bucket.has(NOW_US + 50_000)
        assert not bucket.has(NOW_US - SET_BACK_US + 50_000)


def test_an_open_circuit_is_tried() -> None:
    breaker = CircuitBreaker(0.5, 1, 60.0)
    breaker.ended(False, NOW_US)
    assert not breaker.admits(NOW_US + SECOND)
    assert breaker.admits(BACK_US)
    assert breaker.state == "half-open"


def test_a_circuit_forgets_old_calls() -> None:
    breaker = CircuitBreaker(0.5, 4, 5.0)
    breaker.ended(True, NOW_US)
    for _ in range(3):
        breaker.ended(False, BACK_US)
        breaker.ended(True, BACK_US)
    breaker.ended(False, BACK_US + 30 * SECOND)
    assert not breaker.failing(2, 0.0), "only the last is young"


def test_a_limit_is_cut() -> None:
    limit = AdaptiveLimit()
    limit.overloaded(NOW_US)
    before = limit.limit
    limit.overloaded(BACK_US)
    assert limit.limit < before
    before = limit.limit
    limit.overloaded(BACK_US + SECOND - 1)
    assert limit.limit == before


def test_a_slow_start_ends() -> None:
    slow = SlowStart(10.0, NOW_US)
    assert slow.of(100, NOW_US + 5 * SECOND) < 100
    assert slow.of(100, BACK_US) == 10
    assert slow.of(100, BACK_US + 10 * SECOND) == 100


def test_the_speed_of_a_flow_is_measured() -> None:
    line = ThrottledQueue()
    line.measure(NOW_US)
    line.measure(BACK_US)
    line.starts += 50
    assert line.measure(BACK_US + SECOND) == pytest.approx(50)


def test_a_queue_with_a_retry_budget_retries() -> None:
    limiter = Limiter(QueueSettings(retry_min=1.0), NOW_US)
    while limiter.opens_at_us(retry=True, now_us=NOW_US) == NOW_US:
        limiter.start(retry=True, now_us=NOW_US)
    at_us = limiter.opens_at_us(retry=True, now_us=BACK_US)
    assert at_us is not None
    assert at_us <= BACK_US + SECOND
    assert limiter.opens_at_us(retry=True, now_us=at_us) == at_us


def test_an_outage_is_seen() -> None:
    outages = Outages()
    outages.done("g", [ended(100 + n) for n in range(10)], NOW_US)
    for number in range(FAILED_MIN):
        seen = outages.failed("g", record(number), BACK_US + number)
    assert not seen
    # Nothing has worked since, for long enough
    assert outages.failed("g", record(9), BACK_US + 2 * SECOND)
    # And failures are as old as they were
    outages.done("g", [ended(200 + n) for n in range(20)], BACK_US + 3 * SECOND)
    assert not outages.names(BACK_US + 3 * SECOND)


def test_rows_of_others_are_looked_for() -> None:
    timers = Timers(horizon_us=2 * SECOND, timers_max=100)
    while (load := timers.load(NOW_US)) is not None:
        timers.answer(load, [])
    timers.follow_clock(BACK_US)
    assert timers.load(BACK_US + RESCAN_US - 1) is None
    assert timers.load(BACK_US + RESCAN_US) is not None


def test_a_cursor_gets_into_the_journal() -> None:
    world = World(settings=CoreSettings(idle_settle_us=10 * SECOND))
    world.enqueue()
    world.read_page()
    world.grant(1)
    world.finish(world.running[0])
    settle(world)
    world.grant(0)
    state, before_us = world.core.state, world.now_us
    assert state.quiet_from_us <= before_us < state.quiet_until_us
    assert before_us - 600 * SECOND < state.quiet_from_us
    world.now_us -= 600 * SECOND
    world.grant(0)
    world.now_us += 10 * SECOND
    page = Page(ShardId(0), [], Cursor("9"), "w", False, world.now_us)
    assert SettleSoon in [type(effect) for effect in world.core.step(PageRead(page))]


def test_tasks_behind_a_key_leave_a_full_window() -> None:
    """Else a shard would stand still whose first task of a key waits for its retry."""
    world = World()
    for _ in range(20):
        world.enqueue(ordering_key="k")
    while world.core.state.reading:
        world.read_page()
    world.grant(1)
    assert world.core.state.full
    world.now_us -= 600 * SECOND
    world.grant(0)
    settle(world)
    assert not world.core.state.full


def test_the_loop_comes_again() -> None:
    """Also where the clock goes back between the end of a pass and the wait for the next."""
    assert looks(lambda number: NOW_US if number == 1 else BACK_US) >= 6


def test_a_clock_that_stands_still_is_not_looked_at_again_and_again() -> None:
    """The time of a task that is due in a moment does not come before the database is back."""
    world = World()
    world.enqueue(delay_us=SECOND)
    world.read_page()
    world.now_us += SECOND - 10
    assert 6 <= looks(lambda number: world.now_us, world.core, trusted=False) <= 20


def looks(
    now_us: Callable[[int], int], core: ShardCore | None = None, *, trusted: bool = True
) -> int:
    """Run the scheduler's loop for four calm passes; return how often it asks for the time.

    `now_us` has the number of the question.
    """
    loop = SimLoop()
    asked = itertools.count(1)

    async def main() -> None:
        scheduler = Scheduler(
            None,  # type: ignore[arg-type]
            {}, slots=NoSlots(), concurrency=1, now_us=lambda: now_us(next(asked)),
            settle_soon=lambda *_: None, read_soon=lambda: None, trusted=lambda: trusted,
        )  # fmt: skip
        if core is not None:
            scheduler.cores["default", ShardId(0)] = core
        running = asyncio.get_running_loop().create_task(scheduler.run())
        await asyncio.sleep(4 * CALM_PASS_S)
        running.cancel()

    try:
        loop.run_until_complete(main())
    finally:
        loop.forget()
    return next(asked) - 1


class NoSlots:
    load = 0

    def submit(self, attempts: object) -> None: ...

    def abandon(self, group: str, shard_id: int, epoch: int) -> None: ...


def test_a_few_tasks_of_a_later_time_and_its_last_success_say_nothing_of_now() -> None:
    breaker = CircuitBreaker(0.5, 20, 5.0)
    breaker.ended(True, NOW_US, "good")
    for number in range(5):
        breaker.ended(False, NOW_US, number)
    for second in range(70):
        for task in ("a", "b", "a", "b"):
            breaker.ended(False, BACK_US + second * SECOND, task)
        assert (breaker.state == "open") is (second >= 60)
