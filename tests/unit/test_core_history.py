"""Which steps of a task come into its history, and with which settlement."""

from __future__ import annotations

import msgspec

from late.scheduler.events_effects import Stop
from tests.unit.core_world import SECOND, SETTINGS, World, answers, settle


def test_an_interrupted_attempt_is_in_the_history_before_the_shard_goes() -> None:
    world = World()
    stays, goes = world.enqueue("kept"), world.enqueue("kept")
    world.read_page()
    world.grant(2)
    settle(world)  # the cursor covers both: nothing but the steps is left to be written
    for attempt in list(world.running):
        world.finish(attempt, kind="interrupted")
    assert world.core.state.idle
    assert not world.core.state.clean, "the journal does not say what was interrupted"
    world.step(Stop())
    settle(world)
    assert world.core.state.clean
    assert world.steps == [(stays, "interrupted"), (goes, "interrupted")]


def test_a_first_delay_is_in_the_history_once() -> None:
    world = World()
    task = world.enqueue("kept", delay_us=3_600 * SECOND)
    near = world.enqueue("kept", delay_us=SECOND // 10)
    world.read_page()
    world.grant(1)
    settle(world)
    assert world.steps == [(task, "delayed")], "the near one waits in memory"
    world.take_over()
    for _ in range(3):
        world.now_us += 1_900 * SECOND
        answers(world)
        world.read_page()
        world.grant(2)
        answers(world)
        world.grant(2)
        for attempt in list(world.running):
            world.finish(attempt)
        settle(world)
    assert sorted(world.steps) == sorted([(task, "delayed"), (near, "done"), (task, "done")])


def test_a_step_is_written_with_the_parking_that_it_tells_of() -> None:
    """A settlement parks no more than a transaction takes: the rest, and its steps, come later."""
    world = World(settings=msgspec.structs.replace(SETTINGS, settle_bytes=10))
    tasks = [world.enqueue("kept", b"0123456789", delay_us=3_600 * SECOND) for _ in range(3)]
    world.read_page()
    for count in (1, 2, 3):
        settle(world)
        assert world.steps == [(task, "delayed") for task in tasks[:count]]
        assert len(world.timers) == count
