"""A core whose database's clock is set back."""

from __future__ import annotations

from tests.unit.core_world import SECOND, World


def test_a_clock_that_goes_back_changes_no_order() -> None:
    world = World()
    first = world.enqueue(ordering_key="a")
    delayed = world.enqueue(ordering_key="b", delay_us=SECOND)
    world.now_us -= 60 * SECOND
    world.grant(0)
    second = world.enqueue(ordering_key="a")
    world.read_page()
    world.grant(4)
    # What was told to wait waits for the clock, and the other one does not.
    assert [attempt.record.task_id for attempt in world.running] == [first]
    world.finish(world.running[0])
    world.grant(4)
    assert [attempt.record.task_id for attempt in world.running] == [second]
    assert delayed not in {attempt.record.task_id for attempt in world.starts}
