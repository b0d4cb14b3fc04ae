"""A task that kills its worker is found by marks, and nothing else pays for it."""

from __future__ import annotations

import pytest

from late.model.task import Cursor, Epoch, ShardId, Suspect, TaskId
from late.scheduler.core.crash_suspects import ENTRIES_MAX, TRIAL_US, CrashSuspects
from late.scheduler.task_state import from_parked, from_record
from late.store.base import Lease
from late.store.common.suspects import inherited, suspects_of, suspects_text
from tests.conformance.kit import parked, record
from tests.unit.core_world import SECOND, World

DEATHS_AT_MOST = 4  # one that names nobody, one that names a handful, two on trial


def live_with(world: World, killers: set[TaskId], passes: int = 400) -> None:
    """Until all is settled; whoever starts a killer dies of it at once."""
    for _ in range(passes):
        world.read_page()
        while world.answers:
            world.answer()
        world.grant(4)
        world.write()
        if killers & {a.record.task_id for a in world.running}:
            world.take_over()
            continue
        world.acknowledge()
        if killers & {a.record.task_id for a in world.running}:
            world.take_over()
            continue
        for attempt in list(world.running):
            world.finish(attempt)
        if not world.unsettled():
            return
        world.now_us += SECOND // 4
    raise AssertionError(sorted(world.unsettled()))


@pytest.mark.parametrize("place", [0, 7, 60])
def test_a_killer_is_a_dead_letter_after_four_deaths_and_all_others_are_done(place: int) -> None:
    world = World()
    ids = [world.enqueue() for _ in range(80)]
    live_with(world, {ids[place]})
    assert world.dead == [ids[place]]
    assert world.deaths <= DEATHS_AT_MOST
    assert set(world.final) == set(ids)


def test_several_killers_cost_a_few_deaths_each_and_no_bystander() -> None:
    world = World()
    ids = [world.enqueue() for _ in range(80)]
    killers = {ids[3], ids[4], ids[50]}
    live_with(world, killers)
    assert set(world.dead) == killers
    assert world.deaths <= DEATHS_AT_MOST * len(killers)


def test_a_killer_that_comes_from_the_timer_table_is_found_too() -> None:
    world = World()
    killer = world.enqueue(delay_us=60 * SECOND)
    others = [world.enqueue(delay_us=60 * SECOND) for _ in range(10)]
    live_with(world, {killer})
    assert world.dead == [killer]
    assert world.deaths <= DEATHS_AT_MOST
    assert set(world.final) == {killer, *others}


def test_a_bystander_is_free_after_its_trial() -> None:
    # Given two tasks that ran under marks when their worker died
    world = World()
    ids = [world.enqueue() for _ in range(2)]
    world.read_page()
    world.grant(2)
    world.take_over()
    answer_all(world)
    world.grant(2)
    settle(world)
    assert len(world.running) == 2
    world.take_over()
    assert [(s.task_id, s.deaths) for s in world.last.suspects] == [(ids[0], 1), (ids[1], 1)]
    # When they run on trial, one after the other
    answer_all(world)
    for _ in range(2):
        world.grant(2)
        settle(world)
        assert len(world.running) == 1
        world.grant(2)
        settle(world)
        [attempt] = world.running
        world.finish(attempt, kind="failed", error="no", jitter=1.0)
        settle(world)
    # Then no mark is left, and a retry needs none
    assert world.last.suspects == ()
    world.now_us += 20 * SECOND
    world.grant(2)
    answer_all(world)
    world.grant(2)
    assert len(world.running) == 2


def test_a_hand_over_does_not_end_the_care() -> None:
    # Given a shard whose owner died, and whose next owner gives it back before anything runs
    world = World()
    old = world.enqueue()
    world.read_page()
    world.grant(1)
    world.take_over()
    world.stop()
    world.now_us += SECOND
    world.take_over(died=False)
    new = world.enqueue()
    answer_all(world)
    # Then what was there at the death needs a mark, and what came later does not
    world.grant(2)
    assert [a.record.task_id for a in world.running] == [new]
    settle(world)
    assert [a.record.task_id for a in world.running] == [new, old]


def test_nothing_is_marked_after_a_hand_over() -> None:
    world = World()
    for _ in range(3):
        world.enqueue()
    world.read_page()
    world.grant(1)
    world.stop()
    world.take_over(died=False)
    answer_all(world)
    world.read_page()
    world.grant(3)
    assert len(world.running) == 3  # at once: no settlement was needed


def test_what_was_marked_and_not_started_when_the_shard_is_given_back_is_no_suspect() -> None:
    world = World()
    task = world.enqueue()
    world.read_page()
    world.grant(1)
    world.take_over()
    answer_all(world)
    world.grant(1)
    world.stop()
    assert not world.running
    world.take_over(died=False)
    answer_all(world)
    world.grant(1)
    settle(world)
    assert [a.record.task_id for a in world.running] == [task]
    assert not [mark for mark in world.last.suspects if mark.deaths]


def test_a_takeover_that_a_dead_worker_had_sent_wipes_no_mark() -> None:
    # Given a killer that runs under a mark
    world = World()
    killer = world.enqueue()
    world.read_page()
    world.grant(1)
    world.take_over()
    answer_all(world)
    world.grant(1)
    settle(world)
    assert [a.record.task_id for a in world.running] == [killer]
    # When its worker takes the shard once more, and is known to be dead only then
    world.take_over(died=False)
    world.take_over()
    # Then the death counts
    assert [(s.task_id, s.deaths) for s in world.last.suspects] == [(killer, 1)]


def test_marks_count_where_the_owner_died_and_only_then() -> None:
    marks = (
        Suspect(TaskId("a"), 0, True),
        Suspect(TaskId("b"), 1, True),
        Suspect(TaskId("c"), 1, False),
        Suspect(TaskId("d"), 0, False),
    )
    assert inherited(marks, died=True) == (
        Suspect(TaskId("a"), 1),
        Suspect(TaskId("b"), 2),
        Suspect(TaskId("c"), 1),
    )
    assert inherited(marks, died=False) == marks
    assert suspects_of(suspects_text(marks)) == marks
    assert suspects_text(()) is None
    assert suspects_of(None) == ()


def answer_all(world: World) -> None:
    while world.answers:
        world.answer()
    world.read_page()


def settle(world: World) -> None:
    world.write()
    world.acknowledge()


def test_all_that_wait_for_their_mark_are_counted() -> None:
    shard = ShardId(0)
    suspect, other = record(), record()
    marks = (Suspect(suspect.task_id, 1, False),)
    lease = Lease("g", shard, "me", Epoch(2), 1, Cursor(""), (), {}, taken_at_us=9, suspects=marks)
    suspects = CrashSuspects(lease)
    for row in (suspect, other):
        entry = from_record(row, {})
        entry.index = 1
        assert suspects.defers(entry, "none", until_us=2**50, now_us=2**50)
    assert suspects.waiting == 2


def test_a_parked_task_from_before_the_clock_went_back_may_have_been_with_the_dead_one() -> None:
    """It waited behind its ordering key: its due time is ahead, and says nothing."""
    row = record(created_at_us=1_000 * SECOND)
    entry = from_parked(parked(1_001 * SECOND, of=row), {})
    taken_at_us = now_us = 400 * SECOND
    shard = ShardId(0)
    lease = Lease("g", shard, "me", Epoch(2), 1, Cursor(""), (), {}, taken_at_us=taken_at_us)
    suspects = CrashSuspects(lease)
    assert suspects.is_wary_of(entry, taken_at_us, now_us)
    assert not suspects.is_wary_of(entry, taken_at_us, 1_001 * SECOND)


def test_a_clock_that_is_behind_by_a_slow_answer_brings_no_mark() -> None:
    """What has just come seems to be of the future by milliseconds, and is beyond the window."""
    now_us = 400 * SECOND
    entry = from_record(record(created_at_us=now_us + SECOND // 20), {})
    entry.index = ENTRIES_MAX + 1
    lease = Lease("g", ShardId(0), "me", Epoch(2), 1, Cursor(""), (), {}, taken_at_us=SECOND)
    assert not CrashSuspects(lease).is_wary_of(entry, SECOND, now_us)


def test_a_trial_that_does_not_end_holds_the_others_up_for_a_minute() -> None:
    """Two workers died while six tasks ran. One of these hangs, and the others are innocent."""
    world = World()
    ids = [world.enqueue() for _ in range(6)]
    world.read_page()
    for _ in range(2):
        world.grant(6)
        world.write()
        world.acknowledge()
        assert len(world.running) == 6
        world.take_over()
        while world.answers:
            world.answer()
    begun: dict[str, int] = {}
    for _ in range(600):
        world.grant(4)
        world.write()
        world.acknowledge()
        for attempt in list(world.running):
            begun.setdefault(attempt.record.task_id, world.now_us)
            if attempt.record.task_id != ids[0]:
                world.finish(attempt)
        world.now_us += SECOND // 4
    assert begun.keys() == set(ids)
    [first, second, *_] = [begun[each] for each in ids]
    assert TRIAL_US <= second - first <= TRIAL_US + SECOND
    assert max(begun.values()) <= second + 2 * SECOND, "one after the other again"
    assert [attempt.record.task_id for attempt in world.running] == ids[:1]
    world.take_over()
    world.drain()
