"""A core whose database's clock is set back."""

from __future__ import annotations

from tests.unit.core_world import SECOND, World, settle


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


def test_a_clock_that_goes_back_hides_no_killer() -> None:
    world = World()
    killer = world.enqueue()
    world.read_page()
    world.grant(1)
    assert [attempt.record.task_id for attempt in world.running] == [killer]
    world.now_us -= 60 * SECOND
    world.take_over()
    world.read_page()
    world.grant(1)
    # It seems to be newer than the death, and may have caused it: its mark is written first.
    assert world.running == []
    settle(world)
    assert [attempt.record.task_id for attempt in world.running] == [killer]
    assert [s.task_id for s in world.last.suspects if s.running] == [killer]
