"""The core under knobs: what is held back holds nobody up, and nothing of it is lost."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from late.model.group_settings import GroupSettings
from late.model.queue_settings import QueueSettings
from late.scheduler.settings import CoreSettings
from tests.unit.core_world import SECOND, World
from tests.unit.test_core_property import finish_one

PAUSED = QueueSettings(paused=True)


def ids(world: World) -> list[str]:
    return [attempt.record.task_id for attempt in world.running]


def go_on(world: World, slots: int) -> None:
    """Read, start and settle, and half a second passes."""
    world.read_page()
    world.grant(slots)
    world.write()
    world.acknowledge()
    world.now_us += SECOND // 2


def test_a_paused_queue_holds_nobody_up() -> None:
    world = World()
    world.turn(slow=PAUSED)
    held = [world.enqueue(queue="slow") for _ in range(4)]
    free = [world.enqueue() for _ in range(4)]
    world.read_page()
    world.grant(10)
    assert ids(world) == free
    world.turn()
    world.grant(10)
    assert ids(world) == free + held


def test_what_a_knob_holds_back_leaves_the_window_for_others() -> None:
    world = World()
    world.turn(slow=PAUSED)
    for _ in range(60):
        world.enqueue(queue="slow")
    last = world.enqueue()
    for _ in range(80):
        go_on(world, 4)
        if last in ids(world):
            break
    assert ids(world) == [last]
    assert {row.reason for row in world.timers.values()} == {"limited"}
    assert world.accounted() == world.unsettled()
    world.turn()
    world.drain()


def test_tasks_are_counted_as_ready_only_where_their_shard_works() -> None:
    world = World()
    world.turn(slow=PAUSED)
    for queue in ("slow", "slow", "slow", "q", "q"):
        world.enqueue(queue=queue)
    world.read_page()
    world.grant(0)
    state = world.core.state
    assert (state.ready, state.limited) == (2, 3)
    state.recovered = False
    assert (state.ready, state.limited) == (0, 0)
    state.recovered, state.stopped = True, True
    assert (state.ready, state.limited) == (0, 0)


def test_a_task_that_leaves_the_window_for_a_knob_keeps_its_key() -> None:
    world = World()
    world.turn(slow=PAUSED)
    for number in range(60):
        world.enqueue(queue="slow", ordering_key=f"k{number}")
    for _ in range(80):
        go_on(world, 4)
    limited = [row for row in world.timers.values() if row.reason == "limited"]
    assert limited
    assert all(row.held_key for row in limited)
    free = [world.enqueue(queue="free", ordering_key=row.held_key) for row in limited]
    for _ in range(20):
        go_on(world, 40)
    assert not set(free) & {attempt.record.task_id for attempt in world.starts}
    world.turn()
    world.drain()


def test_a_limit_counts_across_retries_and_releases() -> None:
    world = World()
    world.turn(q=QueueSettings(concurrency=2))
    for _ in range(5):
        world.enqueue()
    world.read_page()
    world.grant(10)
    assert len(world.running) == 2
    world.finish(world.running[0], kind="failed", error="boom")
    world.grant(10)
    assert len(world.running) == 2
    world.stop()
    world.take_over(died=False)
    world.drain()


def test_a_tick_of_rate_wakes_the_loop() -> None:
    world = World()
    world.turn(q=QueueSettings(rate=2.0, burst=1))
    for _ in range(3):
        world.enqueue()
    world.read_page()
    world.limits.begin({"g": 1}, {"g": 1}, world.now_us)
    world.grant(10)
    assert len(world.running) == 1
    assert world.limits.opens_at_us == world.now_us + SECOND // 2
    world.now_us += SECOND // 2
    world.grant(10)
    assert len(world.running) == 2


def test_old_tasks_of_a_queue_expire_without_options() -> None:
    world = World()
    world.turn(q=QueueSettings(expires_s=5))
    old = world.enqueue()
    world.now_us += 6 * SECOND
    fresh = world.enqueue()
    world.read_page()
    world.grant(10)
    assert ids(world) == [fresh]
    world.write()
    world.acknowledge()
    assert old in world.final


def skipping(max_age_s: float) -> World:
    world = World()
    world.limits.set_groups({world.core.state.lease.group: GroupSettings(max_age_s=max_age_s)})
    world.turn()
    return world


def test_a_group_skips_what_is_too_old_when_it_would_begin() -> None:
    world = skipping(5)
    old = world.enqueue()
    keyed = [world.enqueue(ordering_key="k") for _ in range(2)]
    world.now_us += 4 * SECOND
    fresh = world.enqueue(ordering_key="k")
    world.now_us += SECOND
    world.read_page()
    world.grant(10)
    assert ids(world) == [fresh], "a key goes on to the first that may begin"
    world.write()
    world.acknowledge()
    assert {old, *keyed} <= world.final.keys()
    assert world.accounted() == world.unsettled()


def test_the_age_counts_from_the_time_that_the_producer_asked_for() -> None:
    world = skipping(5)
    later = world.enqueue(delay_us=60 * SECOND)
    world.read_page()
    world.write()
    world.acknowledge()
    world.now_us += 61 * SECOND
    world.drain()
    assert later in {attempt.record.task_id for attempt in world.starts}


def test_what_has_begun_goes_on_at_any_age() -> None:
    world = skipping(5)
    world.enqueue()
    world.read_page()
    world.grant(1)
    world.finish(world.running[0], kind="failed", error="boom")
    world.write()
    world.acknowledge()
    world.now_us += 60 * SECOND
    world.drain()
    assert [attempt.number for attempt in world.starts] == [1, 2]


def test_other_groups_skip_nothing() -> None:
    world = World()
    world.limits.set_groups({"another": GroupSettings(max_age_s=5)})
    world.turn()
    task = world.enqueue()
    world.now_us += 60 * SECOND
    world.read_page()
    world.grant(1)
    assert ids(world) == [task]


def test_the_newest_go_first_once_the_oldest_has_waited_too_long() -> None:
    world = World()
    world.turn(q=QueueSettings(fresh_first_s=10, concurrency=1))
    tasks = [world.enqueue() for _ in range(3)]
    world.read_page()
    world.grant(1)
    assert ids(world) == tasks[:1]
    world.finish(world.running[0])
    world.now_us += 11 * SECOND
    world.grant(1)
    assert ids(world) == tasks[2:]


def test_a_crowd_is_spread_and_never_early() -> None:
    world = World(settings=CoreSettings(window=200, page_size=100))
    world.turn(q=QueueSettings(spread_s=10))
    for _ in range(50):
        world.enqueue(delay_us=SECOND)
    world.drain()
    times = sorted(attempt.due_at_us for attempt in world.starts)
    assert times[-1] - times[0] < 10 * SECOND


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
# One life in forty meets what these do: a task that settings put off, and a death that it needs
# a mark after.
@example(seed=59)
@example(seed=201)
@example(seed=284)
def test_random_lives_under_knobs_that_turn(seed: int) -> None:
    world = World(seed)
    rng = world.rng
    choices = [
        PAUSED,
        QueueSettings(),
        QueueSettings(rate=3.0),
        QueueSettings(expires_s=20),
        QueueSettings(foreground=1),
        QueueSettings(fresh_first_s=1),
        QueueSettings(spread_s=5),
    ]
    for _ in range(400):
        match rng.randrange(12):
            case 0 | 1:
                for _ in range(rng.randrange(5)):
                    options: dict[str, object] = {}
                    if rng.random() < 0.2:
                        options["delay_us"] = rng.choice([SECOND // 8, 3 * SECOND])
                    if rng.random() < 0.3:
                        options["ordering_key"] = rng.choice("ab")
                    if rng.random() < 0.2:
                        options["priority"] = rng.choice([-5, 3])
                    world.enqueue(queue=rng.choice("qrs"), **options)
            case 2 | 3:
                world.read_page()
            case 4 | 5:
                world.limits.begin({"g": 1}, {"g": 1}, world.now_us)
                world.grant(rng.randrange(5))
            case 6:
                world.answer()
            case 7 if world.log and rng.random() < 0.5:
                victim = rng.choice(world.log).task_id
                if rng.random() < 0.5:
                    world.command("cancel", victim)
                else:
                    world.command("reschedule", victim, at_us=world.now_us + rng.randrange(SECOND))
            case 7:
                world.turn(**{name: rng.choice(choices) for name in "qrs" if rng.random() < 0.6})
            case 8 | 9:
                if world.running:
                    finish_one(world)
            case 10:
                world.write()
                if rng.random() < 0.8:
                    world.acknowledge()
            case 11:
                world.now_us += rng.choice([1_000, SECOND // 3, 2 * SECOND])
                if rng.random() < 0.05:
                    world.take_over()
    world.turn()
    world.drain()
    counted = world.limits._counted
    assert not counted, "nothing runs any more, and nothing is counted"


@pytest.mark.parametrize("foreground", [1, 3])
def test_background_gets_its_turns_by_the_knob(foreground: int) -> None:
    world = World(settings=CoreSettings(window=200, page_size=100))
    world.turn(q=QueueSettings(foreground=foreground, concurrency=1))
    front = {world.enqueue(priority=1) for _ in range(24)}
    for _ in range(24):
        world.enqueue(priority=-1)
    world.read_page()
    for _ in range(20):
        world.grant(1)
        world.finish(world.running[0])
    started = [attempt.record.task_id in front for attempt in world.starts]
    assert sum(not each for each in started) == 20 // (foreground + 1)
