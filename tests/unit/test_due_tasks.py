"""A task that has waited for its time does not wait behind a backlog as well."""

from __future__ import annotations

import random

import pytest

from late.scheduler.limits.priority_queue import ReadyQueue
from late.scheduler.settings import CoreSettings
from tests.unit.core_world import SECOND, World


def drive(world: World) -> None:
    """Read, load and settle what there is to."""
    for _ in range(6):
        world.read_page()
        world.answer()
        world.write()
        world.acknowledge()


@pytest.mark.parametrize("first", [True, False], ids=["before the backlog", "within its pages"])
def test_a_due_task_is_among_the_next_starts_of_a_large_backlog(first: bool) -> None:
    world = World(settings=CoreSettings())
    ahead = 0 if first else 500
    for _ in range(ahead):
        world.enqueue()
    delayed = world.enqueue(delay_us=5 * SECOND)
    for _ in range(100_000 - ahead):
        world.enqueue()
    drive(world)
    assert len(world.core.state.window) > 1_000
    world.now_us += 6 * SECOND
    drive(world)
    began = len(world.starts)
    world.grant(4)
    started = [attempt.record.task_id for attempt in world.starts[began:]]
    assert delayed in started[:2]
    assert len(started) == 4


def test_a_crowd_that_falls_due_leaves_the_backlog_half_of_the_starts() -> None:
    queue: ReadyQueue[str] = ReadyQueue()
    for n in range(6):
        queue.push_due(f"due {n}")
        queue.push(f"waits {n}")
    found = [queue.pop() for _ in range(4)] + queue.take(4)
    assert found == [f"{kind} {n}" for n in range(4) for kind in ("due", "waits")]


def test_what_came_due_keeps_its_priority() -> None:
    queue: ReadyQueue[str] = ReadyQueue()
    queue.push_due("low", -5)
    queue.push_all([f"high {n}" for n in range(20)], 5)
    assert queue.take(9).index("low") == 8


def test_a_queue_that_is_added_to_knows_its_length() -> None:
    queue: ReadyQueue[int] = ReadyQueue()
    for items in ([1, 2], [], [3, 4, 5]):
        queue.push_all(items)
    assert len(queue) == 5
    assert [queue.pop() for _ in range(5)] == [1, 2, 3, 4, 5]
    with pytest.raises(IndexError):
        queue.pop()


@pytest.mark.parametrize("seed", range(20))
def test_several_are_taken_as_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    one: ReadyQueue[int] = ReadyQueue(rng.choice([1, 2, 8]))
    several: ReadyQueue[int] = ReadyQueue(one.foreground)
    for number in range(400):
        priority = rng.choice([-9, -1, 0, 0, 5])
        push = rng.choice(["push", "push", "push_due", "push_front"])
        for queue in (one, several):
            getattr(queue, push)(number, priority)
        if rng.random() < 0.3:
            count = rng.randrange(1, 12)
            expected = [one.pop() for _ in range(min(count, len(one)))]
            assert several.take(count) == expected
            assert len(several) == len(one)
    assert several.take(1_000) == [one.pop() for _ in range(len(one))]
    assert list(several) == []
