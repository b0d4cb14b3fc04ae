"""What a worker owes, as its watchdog is told: also of one that has given its shards up."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from late.errors import StoreRefused
from late.model.task import Cursor, Epoch, OpenTask, ShardId, TaskId
from late.scheduler.scheduler import Scheduler
from late.store.base import Lease, Store
from late.worker.assembly import duties
from late.worker.watch.progress import Watchdog
from tests.unit.test_fence_report import Slots

STALL_S = 10


class Alone:
    """The only worker of its fleet: what it gives up, nobody takes."""

    def __init__(self) -> None:
        self.dog = Watchdog(STALL_S)
        self.scheduler = SimpleNamespace(
            ready=0, unrecorded=0, settlements=0, loading=False, loads=0
        )
        self.stuck = SimpleNamespace(everywhere=False, tasks=[], over=0)
        self.slots = SimpleNamespace(waiting=0, running=0, stuck=self.stuck, ended=0)
        self.tailer = SimpleNamespace(reading=False, reads=0)

    def live(self, seconds: int) -> None:
        """Each second with room and trust, a ready task runs."""
        for _ in range(seconds):
            trusted = not self.dog.stalled
            if trusted and self.scheduler.ready and not self.scheduler.unrecorded:
                self.scheduler.ready -= 1
                self.slots.ended += 1
            parts: Any = (self.scheduler, self.slots, self.tailer)
            self.dog.look(1.0, duties(*parts, trusted=trusted))


def test_a_fleet_that_could_not_settle_for_a_while_works_again_with_nobodys_help() -> None:
    """Given a backlog and a journal that somebody has locked, so that the worker has run what it
    may before it is recorded, when the lock goes, then it starts tasks again."""
    worker = Alone()
    worker.scheduler.ready, worker.scheduler.unrecorded = 5, 2_000
    worker.live(STALL_S + 1)
    assert worker.dog.stalled == {"settle", "start"}
    worker.scheduler.unrecorded, worker.scheduler.settlements = 0, 1
    worker.live(2 * STALL_S + 6)
    assert worker.dog.stalled == frozenset()
    assert worker.scheduler.ready == 0


def test_who_may_start_and_does_not_owes_it() -> None:
    worker = Alone()
    worker.scheduler.ready, worker.scheduler.unrecorded = 1, 1
    worker.live(STALL_S - 1)
    assert worker.dog.stalled == frozenset()
    worker.live(2)
    assert "start" in worker.dog.stalled


def test_slots_that_are_stuck_are_owed_without_trust_too() -> None:
    worker = Alone()
    worker.stuck.everywhere, worker.scheduler.ready = True, 1
    worker.live(10 * STALL_S)
    assert worker.dog.stalled == {"slots"}
    worker.stuck.everywhere, worker.stuck.over = False, 1
    worker.live(2)
    assert worker.dog.stalled == frozenset()


def test_one_task_that_holds_its_share_is_owed_by_who_exits_for_it() -> None:
    worker = Alone()
    worker.stuck.tasks = ["charge"]
    parts: Any = (worker.scheduler, worker.slots, worker.tailer)

    def owed(exits: bool) -> bool:
        found = duties(*parts, trusted=True, exits=exits)
        return next(duty.owed for duty in found if duty.name == "slots")

    assert (owed(False), owed(True)) == (False, True)


def test_what_the_store_refuses_for_good_is_owed_while_nothing_else_is_settled() -> None:
    """One row that nobody may write must not take worker after worker down: who settles for its
    other shards gets on. Nor does one that has given all up owe it, or it would never come back."""
    worker = Alone()
    parts: Any = (worker.scheduler, worker.slots, worker.tailer)
    for _ in range(3 * STALL_S):
        worker.scheduler.settlements += 1
        worker.dog.look(1.0, duties(*parts, trusted=True, refused=True))
    assert worker.dog.stalled == frozenset()
    for _ in range(STALL_S):
        worker.dog.look(1.0, duties(*parts, trusted=True, refused=True))
    assert worker.dog.stalled == {"settle"}
    for _ in range(STALL_S):
        worker.dog.look(1.0, duties(*parts, trusted=False, refused=True))
    assert worker.dog.stalled == frozenset()


async def test_open_tasks_that_cannot_be_fetched_are_a_log_that_cannot_be_read() -> None:
    """A shard is not read before the open tasks of its checkpoint are back: without them the tail
    is not asked to read anything, and says so."""

    class Refusing:
        asked = 0

        async def fetch(self, *_: Any) -> list[Any]:
            self.asked += 1
            if self.asked == 1:
                raise StoreRefused("no right to read late_task")
            return []

        async def due(self, *_: Any, **__: Any) -> list[Any]:
            return []

    scheduler = Scheduler(
        cast(Store, Refusing()), {}, slots=Slots(), concurrency=1, now_us=lambda: 1,
        settle_soon=lambda shard, outcomes, urgent: None, read_soon=lambda: None,
    )  # fmt: skip
    lease = Lease("default", ShardId(3), "me", Epoch(1), 1, Cursor("5"),
                  (OpenTask(5, TaskId("t")),), {})  # fmt: skip
    scheduler.acquired([lease])
    await asyncio.sleep(0)
    assert scheduler.wanted() == {}
    tailer: Any = SimpleNamespace(reading=False, reads=7)
    slots: Any = Alone().slots

    def read() -> tuple[bool, int]:
        [found] = [d for d in duties(scheduler, slots, tailer, trusted=True) if d.name == "read"]
        return found.owed, found.done

    assert read() == (True, 7)
    async with asyncio.timeout(120):
        while not scheduler.wanted():  # noqa: ASYNC110  asked again after a pause
            await asyncio.sleep(0.01)
        while read()[0]:  # noqa: ASYNC110  what is parked is asked for as well
            await asyncio.sleep(0.01)
    assert read()[1] > 7
