"""What one shard does in named situations; `test_core_property.py` covers what nobody named."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from late.model.task import TRANSITIONS, Cursor, Outcome, Parked, Policy, ShardId
from late.scheduler.events_effects import Finished, PageRead, ParkedLoaded, Settled
from late.scheduler.limits.priority_queue import ReadyQueue
from late.scheduler.settings import CoreSettings
from late.scheduler.task_state import DUE_AFTER_US_MAX, Entry
from late.store.base import Page
from tests.unit.core_world import SECOND, World, answers, running_ids, settle


def test_the_checkpoint_stands_at_the_last_started_record() -> None:
    # Given five records, of which two slots start two
    world = World()
    ids = [world.enqueue() for _ in range(5)]
    world.read_page()
    world.grant(2)
    # When the first ends and is settled
    world.finish(world.running[0])
    settle(world)
    # Then the cursor covers what was started, and only the running one is open
    assert world.last.cursor.startswith("w@2,")
    assert [o.task_id for o in world.last.open] == [ids[1]]


def test_a_slow_task_holds_nobody_up() -> None:
    world = World()
    slow = world.enqueue()
    for _ in range(200):
        world.enqueue()
    for _ in range(200):
        world.read_page()
        world.grant(2)
        for attempt in [a for a in world.running if a.record.task_id != slow]:
            world.finish(attempt)
        settle(world)
    assert len(world.final) == 200
    assert [o.task_id for o in world.last.open] == [slow]


def test_the_tail_stops_at_the_window_and_goes_on_after_it() -> None:
    world = World(settings=CoreSettings(window=20, page_size=10))
    for _ in range(100):
        world.enqueue()
    for _ in range(5):
        world.read_page()
    assert world.core.state.unsettled == 20
    assert world.want is None
    world.drain()


def test_a_far_task_leaves_memory_and_comes_back_on_time() -> None:
    world = World()
    far = world.enqueue(delay_us=60 * SECOND)
    world.read_page()
    answers(world)
    settle(world)
    assert world.core.state.unsettled == 0
    assert list(world.timers) == [(world.now_us + 60 * SECOND, far)]
    for _ in range(600):
        world.now_us += SECOND // 10
        world.grant(1)
        answers(world)
        world.grant(1)
        if world.running:
            break
    assert running_ids(world) == [far]
    lateness_us = world.now_us - world.running[0].due_at_us
    assert 0 <= lateness_us <= SECOND // 5


def test_a_load_that_overlaps_a_parking_does_not_make_the_task_late() -> None:
    # Given a load of the next two seconds that has read the table but not answered yet
    world = World()
    world.grant(0)
    answers(world)
    world.now_us += 3 * SECOND // 2
    world.grant(0)
    assert world.answers
    # When a task due within it is parked meanwhile
    world.enqueue(delay_us=SECOND)
    world.read_page()
    settle(world)
    answers(world)
    # Then it starts in time, not with the next scan of what is overdue
    world.now_us += SECOND
    world.grant(1)
    assert len(world.running) == 1


def test_memory_for_timers_is_bounded_whatever_the_table_holds() -> None:
    world = World(settings=CoreSettings(timers_max=50, window=24, page_size=8))
    for _ in range(1_000):
        world.enqueue(delay_us=5 * SECOND)
    while len(world.timers) < 1_000:
        world.read_page()
        settle(world)
    for _ in range(40):
        world.now_us += SECOND // 10
        world.grant(0)
        answers(world)
        assert len(world.core.state.timers.parked) <= 50
    world.drain()
    assert len(world.starts) == 1_000


def test_retries_are_durable_before_they_start_and_end_in_the_dead_letters() -> None:
    world = World()
    task = world.enqueue()
    world.read_page()
    for number in range(1, 5):
        world.grant(1)
        assert [a.number for a in world.running] == [number]
        world.finish(world.running[0], kind="failed", error=f"boom {number}", jitter=0.5)
        world.now_us += 60 * SECOND
        world.grant(1)
        assert not world.running, "the retry is not in the journal yet"
        settle(world)
        answers(world)
    assert world.dead == [task]


def test_the_dead_letter_carries_every_error_and_the_reason() -> None:
    world = World()
    world.enqueue()
    world.read_page()
    world.grant(1)
    world.finish(world.running[0], kind="failed", error="no", retryable=False)
    settlement = world.core.settlement(world.now_us)
    assert settlement is not None
    [letter] = settlement.dead
    assert (letter.reason, letter.attempts) == ("gave_up", 1)
    assert [(e.attempt, e.error) for e in letter.errors] == [(1, "no")]


def test_a_failure_is_judged_by_what_ended_before_it() -> None:
    """All ends of one batch: of these that fail, none is one of an outage."""
    world = World(settings=CoreSettings(window=200, page_size=100))
    for _ in range(100):
        world.enqueue()
    world.read_page()
    world.grant(100)
    outcomes = [
        Outcome(attempt, "failed" if n % 8 == 3 else "done", world.now_us, 5, error="its own")
        for n, attempt in enumerate(world.running)
    ]
    assert len(outcomes) == 100
    world.running.clear()
    world.step(Finished(outcomes, world.now_us))
    settle(world)
    rows = world.timers.values()
    assert [(row.reason, row.attempts) for row in rows] == [("retry", 1)] * 13


def test_three_deaths_of_its_process_make_a_dead_letter_without_burning_attempts() -> None:
    world = World()
    task = world.enqueue()
    world.read_page()
    for _ in range(3):
        world.grant(1)
        assert world.running[0].number == 1
        world.finish(world.running[0], kind="died", jitter=0.0)
        settle(world)
        answers(world)
    assert world.dead == [task]


def test_an_interrupted_task_costs_no_attempt_and_is_first_again() -> None:
    world = World()
    first, _ = world.enqueue(), world.enqueue()
    world.read_page()
    world.grant(1)
    world.finish(world.running[0], kind="interrupted")
    world.grant(1)
    assert [(a.record.task_id, a.number) for a in world.running] == [(first, 1)]


def test_an_unknown_task_waits_for_its_handler_and_dies_after_a_day() -> None:
    world = World()
    task = world.enqueue("stranger")
    world.read_page()
    world.grant(1)
    settle(world)
    assert not world.running
    [row] = world.timers.values()
    assert (row.reason, row.attempts, row.due_at_us) == ("unknown", 0, world.now_us + SECOND)
    for _ in range(24 * 60 + 2):
        world.now_us += 61 * SECOND
        for _ in range(2):
            world.grant(1)
            answers(world)
            settle(world)
    assert world.dead == [task]
    assert world.starts == []


def test_an_unknown_task_is_tried_again_ever_less_often() -> None:
    world = World()
    world.enqueue("stranger")
    world.read_page()
    waits = []
    for _ in range(10):
        for _ in range(2):
            world.grant(1)
            answers(world)
            settle(world)
        [row] = world.timers.values()
        waits.append((row.due_at_us - world.now_us) // SECOND)
        world.now_us = row.due_at_us
    assert waits == [1, 1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_task_that_waited_for_its_time_has_its_day_from_then_on() -> None:
    world = World()
    task = world.enqueue("stranger", delay_us=3 * 86_400 * SECOND)
    world.read_page()
    settle(world)
    world.now_us += 3 * 86_400 * SECOND + SECOND
    for _ in range(4):
        world.grant(1)
        answers(world)
        settle(world)
    assert world.dead == []
    [row] = world.timers.values()
    assert (row.reason, row.attempts) == ("unknown", 0)
    assert [(e.attempt, e.at_us) for e in row.errors] == [(1, world.now_us)]
    world.now_us += 86_400 * SECOND
    for _ in range(4):
        world.grant(1)
        answers(world)
        settle(world)
    assert world.dead == [task]


def test_options_from_the_future_are_not_run_without_what_they_ask() -> None:
    world = World()
    task_id = world.enqueue()
    world.log[0] = msgspec.structs.replace(world.log[0], options='{"quorum":3}')
    world.read_page()
    world.grant(1)
    settle(world)
    assert not world.running
    assert [(r.record.task_id, r.reason) for r in world.timers.values()] == [(task_id, "unknown")]


def test_options_that_are_no_json_are_a_dead_letter_at_once() -> None:
    world = World()
    task_id = world.enqueue()
    world.log[0] = msgspec.structs.replace(world.log[0], options="{")
    world.read_page()
    settle(world)
    assert world.dead == [task_id]
    assert world.starts == []


def test_an_expired_task_never_runs_and_is_counted() -> None:
    world = World()
    world.enqueue(expires_in_us=SECOND)
    world.read_page()
    world.now_us += SECOND
    world.grant(1)
    settlement = world.core.settlement(world.now_us)
    assert settlement is not None
    assert [(u.outcome, u.count) for u in settlement.usage] == [("enqueued", 1), ("expired", 1)]
    assert world.starts == []


def test_a_unique_key_is_freed_with_the_end_of_its_task_in_the_default_group() -> None:
    for group, freed in (("default", [("u", "a00001")]), ("g", [])):
        world = World()
        world.core.state.lease = msgspec.structs.replace(world.core.state.lease, group=group)
        world.core.state.pending._lease = world.core.state.lease
        world.enqueue(unique_key="u")
        world.read_page()
        world.grant(1)
        world.finish(world.running[0])
        settlement = world.core.settlement(world.now_us)
        assert settlement is not None
        assert list(settlement.released_keys) == freed


def test_a_settlement_that_is_out_does_not_change() -> None:
    world = World()
    for _ in range(2):
        world.enqueue()
    world.read_page()
    world.grant(2)
    world.finish(world.running[0])
    first = world.core.settlement(world.now_us)
    assert first is not None
    copy = msgspec.json.encode(first)
    world.finish(world.running[0])
    assert world.core.settlement(world.now_us) is None, "one at a time"
    assert msgspec.json.encode(first) == copy
    world.core.step(Settled(world.now_us))
    second = world.core.settlement(world.now_us)
    assert second is not None
    assert second.seq == first.seq + 1


def test_an_idle_cursor_is_written_now_and_then_so_that_pruning_goes_on() -> None:
    world = World(settings=CoreSettings(idle_settle_us=10 * SECOND))
    world.enqueue()
    world.read_page()
    world.grant(1)
    world.finish(world.running[0])
    settle(world)
    # Others commit to other shards: the cursor moves on, and no record comes.
    moved = Page(ShardId(0), [], Cursor("9"), "w", False, world.now_us)
    world.core.step(PageRead(moved))
    assert world.core.settlement(world.now_us) is None
    settlement = world.core.settlement(world.now_us + 10 * SECOND)
    assert settlement is not None
    assert (settlement.cursor, settlement.usage) == ("9", ())


def test_late_results_are_counted_and_change_nothing() -> None:
    world = World()
    world.enqueue()
    world.read_page()
    world.grant(1)
    [attempt] = world.running
    world.finish(attempt)
    world.running.append(attempt)
    world.finish(attempt)
    assert world.core.state.late_results == 1
    assert world.core.state.running == 0


def test_a_row_inserted_by_an_operator_is_found_within_the_scan() -> None:
    world = World()
    for _ in range(8):
        world.now_us += SECOND
        world.grant(0)
        answers(world)
    task = world.enqueue()
    record = world.record(task)
    world.log.clear()
    world.timers[world.now_us, task] = Parked(record, world.now_us, "retry")
    for _ in range(6):
        world.now_us += SECOND
        world.grant(1)
        answers(world)
    world.grant(1)
    assert running_ids(world) == [task]


def test_a_stopped_shard_starts_nothing_and_becomes_clean() -> None:
    world = World()
    for _ in range(5):
        world.enqueue()
    world.read_page()
    world.grant(2)
    world.stop()
    assert world.core.state.clean
    assert len(world.starts) == 2
    world.take_over()
    world.drain()


def test_background_work_gets_one_start_in_nine_beside_foreground() -> None:
    queue: ReadyQueue[int] = ReadyQueue()
    for n in range(90):
        queue.push(0, priority=5 if n % 2 else 0)
        queue.push(-1, priority=-1)
    first = [queue.pop() for _ in range(90)]
    assert first.count(-1) == 10
    assert len([queue.pop() for _ in range(len(queue))]) == 90
    with pytest.raises(IndexError):
        queue.pop()


def test_higher_priority_goes_first_and_equals_in_order() -> None:
    queue: ReadyQueue[str] = ReadyQueue()
    for name, priority in (("a", 0), ("b", 9), ("c", 0), ("d", 9)):
        queue.push(name, priority)
    assert [queue.pop() for _ in range(4)] == ["b", "d", "a", "c"]


@given(st.lists(st.tuples(st.sampled_from([-1, 0, 5]), st.integers(0, 4))))
def test_several_at_once_are_those_that_come_one_by_one(turns: list[tuple[int, int]]) -> None:
    at_once: ReadyQueue[int] = ReadyQueue(foreground=2)
    one_by_one: ReadyQueue[int] = ReadyQueue(foreground=2)
    for number, (priority, count) in enumerate(turns):
        for queue in (at_once, one_by_one):
            queue.push(number, priority)
        several = [one_by_one.pop() for _ in range(min(count, len(one_by_one)))]
        assert at_once.take(count) == several
        assert len(at_once) == len(one_by_one)


def test_a_transition_that_is_not_in_the_table_is_our_own_mistake() -> None:
    world = World()
    world.enqueue()
    entry = Entry(record=world.log[0], policy=Policy())
    for state in TRANSITIONS:
        entry.state = "done"
        with pytest.raises(AssertionError):
            entry.move(state)


def test_the_deadline_of_retries_counts_from_the_first_failure_of_the_series() -> None:
    # Given a task that is due for two days before it gets its turn
    world = World()
    task = world.enqueue()
    world.read_page()
    world.now_us += 48 * 3_600 * SECOND
    world.grant(1)
    world.finish(world.running[0], kind="failed", error="x", jitter=0.0)
    settle(world)
    answers(world)
    # Then it still has its retries
    world.grant(1)
    assert [a.number for a in world.running] == [2]
    # But not one that would begin a day after the first failure
    world.finish(world.running[0], kind="failed", error="x", after_us=25 * 3_600 * SECOND)
    settle(world)
    assert world.dead == [task]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"options": "{"}, "undecodable"),
        ({"options": "\x00"}, "undecodable"),
        ({"name": "rm -rf /"}, "invalid_name"),
        ({"name": "x" * 129}, "invalid_name"),
        ({"queue": "a b"}, "invalid_name"),
        ({"queue": "a b", "options": '{"priority":3}'}, "invalid_name"),
        ({"options": '{"ordering_key":"a b"}'}, "invalid_name"),
        ({"options": '{"at_us":253402300800000000}'}, "invalid_schedule"),
        ({"options": '{"delay_us":99999999999999}'}, "invalid_schedule"),
    ],
)
def test_a_row_that_cannot_be_is_a_dead_letter_and_hurts_nobody(
    change: dict[str, str], reason: str
) -> None:
    world = World()
    bad, good = world.enqueue(), world.enqueue()
    world.log[0] = msgspec.structs.replace(world.log[0], **change)
    world.read_page()
    world.grant(2)
    assert running_ids(world) == [good]
    settlement = world.core.settlement(world.now_us)
    assert settlement is not None
    [letter] = settlement.dead
    assert (letter.record.task_id, letter.reason, letter.attempts) == (bad, reason, 0)


@pytest.mark.parametrize(("beyond_us", "letters"), [(0, 0), (1, 1)])
def test_a_task_is_due_at_the_latest_time_there_is_or_never(beyond_us: int, letters: int) -> None:
    world = World()
    world.enqueue(delay_us=DUE_AFTER_US_MAX + beyond_us)
    world.read_page()
    settlement = world.core.settlement(world.now_us)
    assert settlement is not None
    assert (len(settlement.dead), len(settlement.parked)) == (letters, 1 - letters)


def test_in_a_backlog_tasks_stay_in_memory_behind_a_head_that_waits_for_a_slot() -> None:
    world = World()
    for key in ("a", "b", "c"):
        world.enqueue(ordering_key=key)
        world.enqueue(ordering_key=key)
    world.read_page()
    world.grant(1)  # the head of `a` runs; those of `b` and `c` wait
    world.now_us += 5 * SECOND
    world.grant(0)
    settle(world)
    assert sorted(r.record.task_id for r in world.timers.values()) == ["a00002"]


def test_keys_that_are_free_at_once_are_loaded_a_few_at_a_time() -> None:
    world = World(settings=CoreSettings(window=200, page_size=50))
    for n in range(40):
        world.enqueue(ordering_key=f"k{n}")
        world.enqueue(ordering_key=f"k{n}")
    for _ in range(2):
        world.read_page()
    world.grant(40)
    world.now_us += 2 * SECOND
    world.grant(0)
    settle(world)
    assert len(world.timers) == 40
    for attempt in list(world.running):
        world.finish(attempt)
    assert (
        sum(isinstance(e, ParkedLoaded) and bool(e.request.held_key) for e, _ in world.answers) == 4
    )
    world.drain()
