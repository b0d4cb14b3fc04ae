"""A settlement that commits in a transaction of handlers: what it carries, and what it leaves."""

from __future__ import annotations

from late.model.task import Attempt, Outcome
from tests.unit.core_world import World, answers, running_ids
from tests.unit.shared_world import share


def started(world: World, count: int) -> None:
    world.read_page()
    world.grant(count)
    answers(world)
    world.grant(count)


def test_it_carries_its_own_ends_and_nothing_that_waits() -> None:
    world = World()
    first, second, third = (world.enqueue("kept") for _ in range(3))
    started(world, 3)
    world.finish(world.running[0])
    assert share(world, [world.running[0]], "committed")
    assert world.ends == [second]
    assert world.steps == [(second, "done")]
    assert {task.task_id for task in world.last.open} == {first, third}
    world.write()
    world.acknowledge()
    assert world.ends == [second, first]
    assert world.steps == [(second, "done"), (first, "done")]


def test_the_next_of_a_key_starts_when_it_has_committed() -> None:
    world = World()
    first, second = (world.enqueue(ordering_key="a") for _ in range(2))
    started(world, 3)
    assert running_ids(world) == [first]
    assert share(world, [*world.running], "rolled back")
    world.grant(3)
    assert running_ids(world) == [first]
    assert share(world, [*world.running], "committed")
    world.grant(3)
    assert running_ids(world) == [second]


def test_nothing_else_of_the_shard_is_settled_meanwhile() -> None:
    world = World()
    world.enqueue()
    world.enqueue()
    started(world, 2)
    world.write()
    world.acknowledge()
    one, other = world.running
    shared = world.core.share([_done(world, one)], world.now_us)
    assert shared is not None
    world.finish(other)
    assert world.core.settlement(world.now_us) is None
    assert world.core.share([_done(world, one)], world.now_us) is None
    world.core.unshare()
    settlement = world.core.settlement(world.now_us)
    assert settlement is not None
    assert settlement.settlement_id != shared.settlement.settlement_id


def test_each_one_has_a_name_of_its_own() -> None:
    """By it the journal tells which of several with one number has committed."""
    world = World()
    world.enqueue()
    started(world, 1)
    names = set()
    for _ in range(3):
        shared = world.core.share([_done(world, world.running[0])], world.now_us)
        assert shared is not None
        assert shared.settlement.seq == shared.substitute.seq
        names |= {shared.settlement.settlement_id, shared.substitute.settlement_id}
        world.core.unshare()
    assert len(names) == 6


def test_an_attempt_that_is_not_waited_for_cannot_end_in_one() -> None:
    world = World()
    world.enqueue()
    started(world, 1)
    [attempt] = world.running
    world.finish(attempt, kind="failed", error="boom")
    assert world.core.share([_done(world, attempt)], world.now_us) is None
    assert world.core.state.pending.out is None


def test_a_substitute_ends_nothing() -> None:
    world = World()
    task = world.enqueue()
    started(world, 1)
    assert share(world, [*world.running], "replaced")
    assert world.ends == []
    assert share(world, [*world.running], "committed")
    assert world.ends == [task]


def _done(world: World, attempt: Attempt) -> Outcome:
    return Outcome(attempt, "done", world.now_us, 5)
