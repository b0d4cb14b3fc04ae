"""The ledger counts what a death makes others repeat, as far as the journal knows that it began."""

from __future__ import annotations

from late.model.task import Usage
from late.scheduler.core.state import RUNS_LOOK_US
from late.scheduler.settings import CoreSettings
from late.scheduler.usage import LOST
from late.store.base import Settlement
from tests.unit.core_world import SECOND, World, settle

SETTINGS = CoreSettings(idle_settle_us=3_600 * SECOND)


def running(world: World, count: int = 1) -> None:
    """Let so many more tasks start."""
    for _ in range(count):
        world.enqueue()
    world.read_page()
    world.grant(len(world.running) + count)


def at_rest() -> World:
    """One task has run and is settled."""
    world = World(settings=SETTINGS)
    running(world)
    world.finish(world.running[0])
    settle(world)
    return world


def settlement(world: World, waiting: frozenset[str] = frozenset()) -> Settlement:
    """Write the next settlement and return it."""
    found = world.core.settlement(world.now_us, waiting)
    assert found is not None
    world.out, world.applied_out = found, False
    world.write()
    world.acknowledge()
    return found


def lost(of: Settlement) -> list[Usage]:
    return [usage for usage in of.usage if usage.outcome == LOST]


def dies(world: World) -> None:
    """Another worker takes over, and the open tasks are here again."""
    world.take_over()
    world.answer()
    world.read_page()


def long_running() -> World:
    """Two tasks run, and the settlement of a third one says so."""
    world = at_rest()
    running(world, 3)
    world.finish(world.running[0])
    assert [task.started for task in settlement(world).open] == [True, True]
    return world


def test_what_ran_when_its_worker_died_is_counted_as_repeated() -> None:
    world = long_running()
    dies(world)
    running(world)
    settle(world)  # of the marks
    (usage,) = lost(world.last)
    assert (usage.count, usage.attempts, usage.retries, usage.target) == (2, 2, 2, "local")
    assert usage.busy_us == 0
    assert sum(n for _, n in usage.busy) == sum(n for _, n in usage.waiting) == 2


def test_it_is_counted_once() -> None:
    world = long_running()
    dies(world)
    running(world)
    settle(world)
    world.finish(world.running[0])
    settle(world)
    assert lost(world.last) == []


def test_a_successor_that_dies_before_it_settles_leaves_it_to_the_next() -> None:
    world = long_running()
    for _ in range(3):
        dies(world)
    running(world)
    settle(world)
    assert [usage.count for usage in lost(world.last)] == [2]


def test_what_only_waits_has_not_begun() -> None:
    world = at_rest()
    running(world, 3)
    first, second, third = world.running
    world.finish(first)
    told = settlement(world, frozenset((third.record.task_id,)))
    assert {task.task_id: task.started for task in told.open} == {
        second.record.task_id: True,
        third.record.task_id: False,
    }


def test_an_interrupted_attempt_is_not_counted_twice() -> None:
    world = long_running()
    world.finish(world.running[0], kind="interrupted")
    world.finish(world.running[0])
    told = settlement(world)
    assert [task.started for task in told.open] == [False]
    assert [u.count for u in told.usage if u.outcome == "interrupted"] == [1]


def test_a_start_is_written_once_it_has_run_for_a_while() -> None:
    world = at_rest()
    running(world)
    for step in range(4):
        world.now_us += RUNS_LOOK_US
        world.grant(1)
        assert world.core.settlement(world.now_us) is None or step
        if world.core.state.pending.out is not None:
            break
    else:
        raise AssertionError("never written")
    assert step <= 2
    told = world.core.state.pending.out
    assert [task.started for task in told.open] == [True]
    assert {usage.outcome for usage in told.usage} == {"enqueued"}


def test_it_just_runs_on_and_no_more_is_written() -> None:
    world = at_rest()
    running(world)
    for _ in range(3):
        world.now_us += SECOND
        world.grant(1)
        settle(world)
    seq = world.last.seq
    for _ in range(20):
        world.now_us += SECOND
        world.grant(1)
        settle(world)
    assert world.last.seq == seq


def test_quick_tasks_cost_no_row_of_their_own() -> None:
    world = at_rest()
    running(world)
    for _ in range(20):
        world.now_us += RUNS_LOOK_US
        running(world)
        world.grant(2)
        world.finish(world.running[0])
        settle(world)
        state = world.core.state
        assert not state.long_run
        assert not any((state.tick_due, state.write_due()))


def test_new_long_tasks_cost_a_row_a_second_at_most() -> None:
    world = at_rest()
    seq, began_us = world.last.seq, world.now_us
    while world.now_us < began_us + 20 * SECOND:
        world.now_us += 100_000
        if len(world.core.state.window) < 20:
            running(world)
        world.grant(len(world.running))
        settle(world)
    assert world.last.seq - seq <= 21
