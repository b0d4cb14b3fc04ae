"""Ordering keys in one shard: across failures, owners, pages and the end of a window."""

from __future__ import annotations

import msgspec

from late.model.task import HELD_US, Cursor, Parked, Record
from late.scheduler.events_effects import PageRead
from late.store.base import Page
from tests.unit.core_world import SECOND, World, answers, running_ids, settle


def test_a_failing_task_holds_its_key_until_it_is_done() -> None:
    world = World()
    first, second = (world.enqueue(ordering_key="trip-7") for _ in range(2))
    other = world.enqueue(ordering_key="trip-8")
    world.read_page()
    world.grant(5)
    assert running_ids(world) == [first, other]
    world.finish(world.running[0], kind="failed", error="x", jitter=1.0)
    settle(world)
    answers(world)
    for _ in range(3):
        world.now_us += SECOND // 4
        world.grant(5)
        assert second not in running_ids(world)
    world.now_us += 2 * SECOND
    world.grant(5)
    answers(world)
    world.grant(5)
    assert first in running_ids(world)
    world.drain()
    assert [i for i in (a.record.task_id for a in world.starts) if i != other] == [
        first,
        first,
        second,
    ]


def test_a_task_without_a_handler_keeps_its_key_also_at_the_next_owner() -> None:
    world = World()
    first, _ = world.enqueue("stranger", ordering_key="k"), world.enqueue(ordering_key="k")
    world.read_page()
    for _ in range(2):
        for _ in range(3):
            world.grant(5)
            settle(world)
            answers(world)
        held = {row.held_key for row in world.timers.values() if row.record.task_id == first}
        assert held == {"k"}
        world.take_over(died=False)
        world.read_page()
    world.grant(5)
    assert world.starts == []


def test_a_core_with_a_key_that_wants_its_next_task_is_not_quiet() -> None:
    world = World()
    world.grant(5)
    answers(world)
    state = world.core.state
    assert state.quiet_us() > 0
    state.keys.wants["k"] = None
    assert state.quiet_us() == 0


def test_a_key_stays_blocked_across_a_takeover() -> None:
    # Given a key whose head is parked for a retry and whose second task is parked behind it
    world = World()
    first, second = (world.enqueue(ordering_key="k") for _ in range(2))
    world.read_page()
    world.grant(5)
    world.finish(world.running[0], kind="failed", error="x", jitter=1.0)
    world.now_us += SECOND // 2
    settle(world)
    world.now_us += SECOND
    world.grant(0)
    settle(world)
    assert {(r.record.task_id, r.due_at_us == HELD_US) for r in world.timers.values()} == {
        (first, False),
        (second, True),
    }
    # When another owner comes
    world.take_over()
    third = world.enqueue(ordering_key="k")
    world.drain()
    # Then the order holds
    seen = list(dict.fromkeys(a.record.task_id for a in world.starts))
    assert seen == [first, second, third]


def read(world: World, records: list[Record], cursor: str) -> None:
    """A page of a log whose order is not that of the inserts; `cursor` with `@`: more are left."""
    more, world.want = "@" in cursor, None
    world.step(PageRead(Page(world.shard_id, records, Cursor(cursor), "w", more, world.now_us)))


def later_first(world: World) -> tuple[Record, Record]:
    """Two tasks of a key: the second one has the lower position, and names that of the first."""
    first = world.record(world.enqueue(ordering_key="k"))
    second = world.record(world.enqueue(ordering_key="k", committed_below=first.position + 100))
    return first, msgspec.structs.replace(second, position=first.position - 1)


def test_a_task_waits_for_an_earlier_one_of_its_page() -> None:
    world = World()
    first, second = later_first(world)
    read(world, [second, first], "9")
    world.grant(5)
    assert running_ids(world) == [first.task_id]


def test_a_task_waits_for_an_earlier_one_of_a_later_page() -> None:
    world = World()
    first, second = later_first(world)
    read(world, [second], f"w@{first.position + 99},x")
    world.grant(5)
    assert running_ids(world) == []
    read(world, [first], f"w@{first.position + 100},x")
    world.grant(5)
    assert running_ids(world) == [first.task_id]
    world.finish(world.running[0])
    world.grant(5)
    assert running_ids(world) == [second.task_id]


def test_a_task_without_an_earlier_one_waits_for_the_end_of_its_window_at_most() -> None:
    world = World()
    _, second = later_first(world)
    read(world, [second], "w@1,x")
    world.grant(5)
    assert world.core.state.keys.unread
    assert not world.core.state.keys.gated, "nothing of another shard is waited for"
    read(world, [], "9")
    world.grant(5)
    assert running_ids(world) == [second.task_id]


def test_an_owner_inside_of_a_window_waits_as_well() -> None:
    # Given a task that was put off before what is earlier was read
    world = World()
    first, second = later_first(world)
    world.timers[HELD_US, second.task_id] = Parked(second, HELD_US, "held", held_key="k")
    # When another owner takes the shard over in the middle of the window
    world.last = msgspec.structs.replace(world.last, cursor=Cursor("w@1,x"))
    world.take_over(died=False)
    for _ in range(3):
        world.now_us += SECOND
        world.grant(5)
        answers(world)
    assert running_ids(world) == []
    # Then it starts what is earlier first
    read(world, [first], "9")
    for _ in range(3):
        world.grant(5)
        answers(world)
    assert running_ids(world) == [first.task_id]
