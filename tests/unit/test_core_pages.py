"""Empty pages: others commit elsewhere, the cursor moves on, and the journal follows at leisure."""

from __future__ import annotations

from unittest.mock import Mock

import msgspec
import pytest

from late.model.queue_settings import QueueSettings
from late.model.task import ENQUEUED, Cursor, Record, ShardId, TaskId
from late.scheduler.events_effects import (
    Grant,
    PageRead,
    Read,
    Replayed,
    Settled,
    SettleSoon,
)
from late.scheduler.settings import CoreSettings
from late.store.base import Page
from tests.unit.core_world import SECOND, World, settle

IDLE_US = 10 * SECOND


def quiet_shard() -> World:
    """One task has run and is settled; nothing is left to do."""
    world = World(settings=CoreSettings(idle_settle_us=IDLE_US))
    world.enqueue()
    world.read_page()
    world.grant(1)
    world.finish(world.running[0])
    settle(world)
    world.grant(0)
    assert world.core.state.quiet_until_us > world.now_us
    return world


def empty(world: World, cursor: str, now_us: int) -> Page:
    return Page(ShardId(0), [], Cursor(cursor), "w", False, now_us)


def page_of(world: World, *records: Record, cursor: str) -> Page:
    return Page(ShardId(0), list(records), Cursor(cursor), "w", False, world.now_us)


def test_a_page_without_rows_moves_the_cursor_of_a_shard_that_is_passed_by() -> None:
    world = quiet_shard()
    due_us = world.now_us + IDLE_US
    for number, age_us in (("7", 0), ("9", IDLE_US - 1)):
        assert world.core.skip_page(empty(world, number, world.now_us + age_us))
        assert world.core.state.window.cursor == number
    # Then it is passed by no longer than until the cursor is due in the journal
    assert world.core.state.quiet_until_us == due_us
    effects = world.core.step(Grant(due_us, 0))
    assert [type(effect) for effect in effects] == [SettleSoon]
    settlement = world.core.settlement(due_us)
    assert settlement is not None
    assert (settlement.cursor, settlement.usage) == ("9", ())


def test_a_page_that_comes_when_the_cursor_is_due_is_not_passed_by() -> None:
    world = quiet_shard()
    due_us = world.now_us + IDLE_US
    assert not world.core.skip_page(empty(world, "9", due_us))
    assert world.core.state.window.cursor != "9"
    effects = world.core.step(PageRead(empty(world, "9", due_us)))
    assert SettleSoon in [type(effect) for effect in effects]


def test_a_command_that_waits_for_the_end_of_the_log_is_not_passed_by() -> None:
    world = quiet_shard()
    world.core.state.commands.waiting[TaskId("c")] = Mock()
    assert not world.core.skip_page(empty(world, "9", world.now_us))


def test_tasks_that_wait_for_their_key_are_looked_at_after_a_while() -> None:
    world = quiet_shard()
    for _ in range(2):
        world.enqueue(ordering_key="k")
    world.read_page()
    world.grant(1)
    world.grant(0)
    state = world.core.state
    assert world.now_us < state.quiet_until_us
    assert state.quiet_until_us == state.looked_at_us + state.settings.held_look_us


@pytest.mark.parametrize("pace_us", [SECOND, 3 * SECOND, 10 * SECOND, 17 * SECOND])
def test_passing_by_changes_nothing_but_the_work(pace_us: int) -> None:
    """The same pages, taken in both ways, make the same settlements at the same times."""

    def written(skips: bool) -> list[tuple[int, str]]:
        world, found = quiet_shard(), []
        began_us = world.now_us
        for number in range(5, 45):
            now_us = began_us + (number - 4) * pace_us
            page = empty(world, str(number), now_us)
            if not (skips and world.core.skip_page(page)):
                world.core.step(PageRead(page))
            if now_us >= world.core.state.quiet_until_us:
                world.core.step(Grant(now_us, 0))
                settlement = world.core.settlement(now_us)
                if settlement is not None:
                    found.append((now_us - began_us, settlement.cursor))
                    world.core.step(Settled(now_us))
                    world.core.step(Grant(now_us, 0))
        return found

    assert written(skips=True) == written(skips=False) != []


def test_a_second_row_of_a_task_that_waits_ends_unrun() -> None:
    world = World()
    task_id = world.enqueue()
    world.read_page()
    row = world.log[0]
    copy = msgspec.structs.replace(row, position=2)
    assert world.core.step(PageRead(page_of(world, row, cursor="1"))) == [Read(Cursor("1"))]
    effects = world.core.step(PageRead(page_of(world, copy, cursor="2")))
    assert Replayed([task_id]) in effects
    world.grant(5)
    assert [attempt.record.position for attempt in world.running] == [1]
    settlement = world.core.settlement(world.now_us)
    assert settlement is not None
    assert {usage.outcome: usage.count for usage in settlement.usage} == {
        ENQUEUED: 2,
        "discarded": 1,
    }


def test_knobs_that_are_set_leave_an_idle_shard_passed_by() -> None:
    world = quiet_shard()
    world.turn(q=QueueSettings(concurrency=1))
    world.grant(0)
    assert world.core.state.quiet_until_us > world.now_us
    # A task that the knob holds back is seen, and nothing is passed by
    for _ in range(2):
        world.enqueue()
    world.read_page()
    world.grant(2)
    world.grant(2)
    assert len(world.running) == 1
    assert world.core.state.quiet_until_us <= world.now_us
