"""Behind the flood of one tenant the tasks of another one, and of other queues, are read."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from late.model.queue_settings import QueueSettings
from late.model.task import TaskId
from late.scheduler.limits.limits import Limits
from late.scheduler.limits.ready_queues import ReadyQueues
from late.scheduler.limits.recent_tenants import LATELY_US, RecentTenants
from tests.unit.core_world import SECOND, World
from tests.unit.test_limits import entry

FAIR = QueueSettings(fair_key="tenant")


def test_a_queue_has_several_tenants_for_a_while_after_another_one_came() -> None:
    seen = RecentTenants()
    seen.came("q", "a", 0)
    seen.came("q", "a", SECOND)
    seen.came("other", "b", SECOND)
    assert not seen.several("q", SECOND)
    seen.came("q", "b", 2 * SECOND)
    seen.came("q", "b", 9 * SECOND)
    assert seen.several("q", 2 * SECOND + LATELY_US - 1)
    assert not seen.several("q", 2 * SECOND + LATELY_US)
    assert not seen.several("other", 2 * SECOND)


def flood(*, before: str | None) -> tuple[World, TaskId]:
    """Read a flood of one tenant with one task of another behind it, whose id is returned. The two
    slots that the flood has at first have tasks that do not end, and then there are two more.

    Args:
        before: the tenant of a task that came before the flood.
    """
    world = World()
    world.turn(q=FAIR)
    if before is not None:
        world.enqueue(headers=f'{{"tenant":"{before}"}}')
        world.drain()
    for _ in range(5 * world.settings.window):
        world.enqueue(headers='{"tenant":"acme"}')
    wanted = world.enqueue(headers='{"tenant":"bolt"}')
    for n in range(100):
        world.read_page()
        world.grant(2 if n < 99 else 4)
        world.write()
        world.acknowledge()
        world.now_us += SECOND // 10
    return world, wanted


def test_another_tenant_behind_a_flood_is_read_and_gets_a_slot() -> None:
    world, wanted = flood(before="bolt")
    assert wanted in [attempt.record.task_id for attempt in world.starts]
    world.drain()


@pytest.mark.parametrize("before", [None, "acme"])
def test_the_flood_of_a_lone_tenant_costs_no_row_of_the_timer_table(before: str | None) -> None:
    world, wanted = flood(before=before)
    assert not world.core.state.timers.parked
    assert wanted not in [attempt.record.task_id for attempt in world.starts]
    world.drain()


def test_what_has_a_row_of_the_timer_table_and_the_first_ones_stay() -> None:
    limits = Limits()
    limits.set({"q": FAIR}, {}, 0)
    limits.begin({"g": 1}, {"g": 1}, 0)
    queues = ReadyQueues("g", limits)
    for number in range(101):
        each = entry(number)
        each.record = replace(each.record, headers=f'{{"tenant":"{"ba"[number > 0]}"}}')
        each.timer_key = (SECOND, "x") if number % 2 else None
        each.move("ready")
        queues.push(each)
    assert queues.tenants_surplus(10) == [], "nobody knows yet how fast it moves"
    queues.open(SECOND, {"local": 0})
    parked = [each for each, _, reason in queues.tenants_surplus(10) if reason == "limited"]
    assert [each.record.sequence for each in parked] == list(range(12, 101, 2))
