"""Ticks: catch-up, overlap, and exactly one id per tick."""

from __future__ import annotations

import msgspec
import pytest

from late.model.ids import shard_of
from late.model.task import Options, Schedule, TaskId
from late.model.ticks import fires_at_us
from late.scheduler.events_effects import SchedulesRead
from late.scheduler.schedules import ShardSchedules, fire
from tests.unit.core_world import SECOND, World

MINUTE = 60_000_000
START = 1_000 * 24 * 60 * MINUTE


def schedule(**changes: object) -> Schedule:
    plain = Schedule(
        name="nightly",
        shard_id=3,
        rule="* * * * *",
        zone="UTC",
        catch_up="latest",
        catch_up_max=3,
        overlap="allow",
        queue="reports",
        task_name="report",
        payload=b"{}",
        options=None,
        anchor_us=0,
        next_due_at_us=START,
    )
    return msgspec.structs.replace(plain, **changes)  # type: ignore[arg-type]


def due_headers(tick_tasks: tuple[object, ...]) -> list[str]:
    return [msgspec.json.decode(t.headers)["late-due"][-14:-9] for t in tick_tasks]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("catch_up", "late_minutes", "fired"),
    [
        ("skip", 0, ["00:00"]),
        ("latest", 0, ["00:00"]),
        ("all", 0, ["00:00"]),
        ("skip", 10, ["00:10"]),
        ("latest", 10, ["00:10"]),
        ("all", 10, ["00:08", "00:09", "00:10"]),
    ],
)
def test_catch_up_after_a_downtime(catch_up: str, late_minutes: int, fired: list[str]) -> None:
    tick = fire(schedule(catch_up=catch_up), START + late_minutes * MINUTE)
    assert due_headers(tick.tasks) == fired
    assert tick.next_due_at_us == START + (late_minutes + 1) * MINUTE


def test_skip_leaves_out_what_is_older_than_the_grace() -> None:
    daily = schedule(rule="0 0 * * *", catch_up="skip")
    assert fire(daily, START + MINUTE).tasks
    assert not fire(daily, START + 2 * MINUTE).tasks


def test_overlap_skip_leaves_a_tick_out_while_the_last_one_runs() -> None:
    running = schedule(overlap="skip", open_task_id=TaskId("x"))
    tick = fire(running, START)
    assert not tick.tasks
    assert tick.next_due_at_us == START + MINUTE
    assert fire(schedule(overlap="skip"), START).tasks


def test_overlap_queue_orders_the_ticks() -> None:
    [task] = fire(schedule(overlap="queue"), START).tasks
    options = msgspec.json.decode(task.options or "", type=Options)
    assert options.ordering_key == "schedule:nightly"
    assert options.schedule == "nightly"


def test_a_tick_has_one_id_whoever_computes_it() -> None:
    [first] = fire(schedule(), START).tasks
    [again] = fire(schedule(), START + 1).tasks
    [other] = fire(schedule(next_due_at_us=START + MINUTE), START + MINUTE).tasks
    assert first.task_id == again.task_id != other.task_id
    assert shard_of(first.task_id) == 3


def test_a_rule_broken_by_hand_never_fires_again() -> None:
    tick = fire(schedule(rule="nonsense"), START)
    assert tick.tasks == ()
    assert tick.next_due_at_us is None


def test_schedules_move_on_as_they_fire() -> None:
    recurring = ShardSchedules()
    recurring.replace([schedule(), schedule(name="paused", paused=True)])
    assert recurring.next_due_us == START
    assert recurring.take_due(START - 1) == ()
    [tick] = recurring.take_due(START)
    assert tick.due_at_us == START
    assert recurring.take_due(START) == ()
    assert recurring.next_due_us == START + MINUTE


def test_the_end_of_a_tick_lets_the_next_one_run() -> None:
    recurring = ShardSchedules()
    recurring.replace([schedule(overlap="skip")])
    [first] = recurring.take_due(START)
    [second] = recurring.take_due(START + MINUTE)
    assert first.tasks
    assert not second.tasks
    recurring.ended("nightly", first.tasks[0].task_id)
    [third] = recurring.take_due(START + 2 * MINUTE)
    assert third.tasks


def test_after_a_long_downtime_the_ticks_of_many_schedules_are_spread() -> None:
    recurring = ShardSchedules()
    names = [f"every-minute-{n:02}" for n in range(5)]
    recurring.replace([schedule(name=n, catch_up="all", catch_up_max=600) for n in names])
    fired: list[str] = []
    rounds = 0
    while (due := recurring.next_due_us) is not None and due <= START + 700 * MINUTE:
        ticks = recurring.take_due(START + 700 * MINUTE)
        assert sum(len(tick.tasks) for tick in ticks) <= 1_200
        fired += [tick.schedule for tick in ticks]
        rounds += 1
    assert fired == names
    assert rounds == 3


def test_a_tick_that_waits_for_its_settlement_wakes_nobody_again() -> None:
    world = World()
    due_us = world.now_us + SECOND
    world.step(SchedulesRead([schedule(rule="every 1s", next_due_at_us=due_us, shard_id=0)]))
    assert world.core.state.wake_at_us() == due_us
    world.now_us = due_us
    world.grant(1)  # asks for a settlement, which may take as long as the database is away
    assert world.core.state.wake_at_us() is None
    settlement = world.core.settlement(world.now_us)
    assert settlement is not None
    assert [tick.due_at_us for tick in settlement.ticks] == [due_us]
    assert world.core.state.wake_at_us() == due_us + SECOND


def test_jitter_moves_a_tick_within_its_bound_and_is_the_same_for_everybody() -> None:
    hourly = schedule(rule="0 * * * *", jitter_us=10 * MINUTE)
    moved = [
        fires_at_us(msgspec.structs.replace(hourly, name=f"s{n}"), START) - START
        for n in range(1_000)
    ]
    assert all(0 <= each <= 10 * MINUTE for each in moved)
    assert len({each // MINUTE for each in moved}) == 10, "no minute is left out"
    assert max(moved.count(each) for each in moved) < 5
    # Fixed, since workers of two versions must agree.
    assert fires_at_us(hourly, START) - START == 37_974_629
    assert fires_at_us(hourly, START) != fires_at_us(hourly, START + 60 * MINUTE) - 60 * MINUTE
    assert fires_at_us(schedule(), START) == START


def test_a_tick_with_jitter_is_fired_when_it_has_moved_to_and_not_before() -> None:
    hourly = schedule(rule="0 * * * *", jitter_us=10 * MINUTE)
    mine, fires_us = ShardSchedules(), fires_at_us(hourly, START)
    mine.replace([hourly])
    assert mine.next_due_us == fires_us > START
    assert mine.take_due(fires_us - 1) == ()
    [tick] = mine.take_due(fires_us)
    assert (tick.due_at_us, tick.skipped) == (START, 0)
    assert [task.task_id for task in tick.tasks] == [
        fire(schedule(rule="0 * * * *"), START).tasks[0].task_id
    ], "its id is that of the tick without jitter"
    assert mine.next_due_us == fires_at_us(hourly, START + 60 * MINUTE)
    assert not mine.slips, "it is not late"


@pytest.mark.parametrize("catch_up", ["skip", "latest", "all"])
@pytest.mark.parametrize("name", [f"s{n}" for n in range(8)])
def test_each_tick_is_fired_once_with_the_longest_jitter(catch_up: str, name: str) -> None:
    mine = ShardSchedules()
    mine.replace([schedule(name=name, catch_up=catch_up, jitter_us=MINUTE // 2)])
    due = []
    for now_us in range(START, START + 121 * MINUTE, 20 * SECOND):
        due += [header for tick in mine.take_due(now_us) for header in due_headers(tick.tasks)]
    assert due[:120] == [f"{n // 60:02d}:{n % 60:02d}" for n in range(120)]
