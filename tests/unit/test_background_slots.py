"""Background leaves room for the foreground: slots, places in the window, and a slow database."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from late.dispatcher.local.slot import line_up
from late.model.queue_settings import QueueSettings
from late.model.task import TRANSACTION_POOL, Attempt, Cursor, Options, Outcome, Policy, TaskId
from late.scheduler.limits.background import background_room, reserve
from late.scheduler.limits.limits import Limits
from late.scheduler.limits.priority_queue import ReadyQueue
from late.scheduler.limits.ready_queues import ReadyQueues
from late.scheduler.scheduler import Scheduler
from late.store.base import Page
from tests.conformance.kit import record
from tests.unit.core_world import SECOND, World
from tests.unit.dispatcher_kit import attempt
from tests.unit.test_limits import entry
from tests.unit.test_passes import SHARDS, Slots, made

LOW = '{"priority":-1}'


@pytest.fixture(autouse=True)
def nothing_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast this machine is."""
    monkeypatch.setattr("late.scheduler.read_ahead.READAHEAD_MAX", 0)
    monkeypatch.setattr("late.scheduler.scheduler.TURN_S", 60.0)


class FullSlots(Slots):
    """Slots that know what they have."""

    @property
    def load(self) -> int:  # type: ignore[override]
        return len(self.got)

    def of(self, *, background: bool) -> list[Attempt]:
        return [each for each in self.got if each.is_background is background]


def read(scheduler: Scheduler, count: int, options: str | None) -> None:
    """Let the first shard read so many tasks."""
    some = [record(name="n", created_at_us=1, options=options) for _ in range(count)]
    scheduler.pages("g", [Page(SHARDS[0], some, Cursor("a"), "w", more=False, now_us=1)])


def end(scheduler: Scheduler, slots: FullSlots, attempts: Sequence[Attempt]) -> None:
    slots.got = [each for each in slots.got if each not in attempts]
    scheduler.finished([Outcome(each, "done", 1, 1) for each in attempts])


@pytest.mark.parametrize(
    ("slots", "kept"), [(1, 0), (2, 1), (3, 1), (4, 1), (8, 2), (16, 4), (100, 25)]
)
def test_a_quarter_is_kept_for_the_foreground(slots: int, kept: int) -> None:
    assert reserve(slots) == kept
    assert background_room(slots, 0, 0, slots=slots, slow=False) == slots - kept


@pytest.mark.parametrize(
    ("room", "load", "running", "slow", "found"),
    [
        (16, 0, 0, False, 12),
        (6, 10, 10, False, 2),  # The rest is the foreground's.
        (4, 12, 12, False, 0),
        (4, 12, 0, False, 4),  # The foreground has the others, and may have them.
        (1, 15, 3, False, 1),  # Beside a foreground that has all else, the weights decide.
        (0, 16, 0, False, 0),
        (18, 0, 0, False, 12),  # A few that go ahead would take the slots that are kept.
        (20, 0, 0, False, 12),
        (36, 0, 0, False, 28),  # Quick tasks: what goes ahead is not kept.
        (16, 0, 0, True, 1),
        (15, 1, 1, True, 0),
        (4, 12, 12, True, 0),
    ],
)
def test_background_has_room_for(
    room: int, load: int, running: int, slow: bool, found: int
) -> None:
    assert background_room(room, load, running, slots=16, slow=slow) == found


@pytest.mark.parametrize("slots", range(1, 40))
def test_background_always_has_one_slot(slots: int) -> None:
    for slow in (False, True):
        assert background_room(1, slots - 1, 0, slots=slots, slow=slow) == 1


@pytest.mark.parametrize("seed", range(20))
def test_a_bound_on_the_background_is_kept_as_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    one: ReadyQueue[int] = ReadyQueue(rng.choice([1, 2, 8]))
    several: ReadyQueue[int] = ReadyQueue(one.foreground)
    for _ in range(400):
        number = rng.choice([-9, -1, 0, 0, 5])
        push = rng.choice(["push", "push", "push_due", "push_front"])
        for queue in (one, several):
            getattr(queue, push)(number, number)
        if rng.random() < 0.3:
            count, left = rng.randrange(1, 12), rng.randrange(0, 4)
            found = several.take(count, left)
            expected: list[int] = []
            while len(expected) < count and one.can_pop(background=left > 0):
                expected.append(one.pop(background=left > 0))
                left -= expected[-1] < 0
            assert found == expected
            assert (len(several), several.background) == (len(one), one.background)


async def test_background_leaves_slots_for_the_foreground() -> None:
    slots = FullSlots()
    scheduler = made(slots, SHARDS[:1])
    read(scheduler, 40, LOW)
    scheduler._pass()
    assert len(slots.got) == 12
    scheduler._work.clear()
    scheduler._pass()
    assert len(slots.got) == 12
    assert not scheduler._work.is_set(), "nothing is won by looking again at once"

    read(scheduler, 3, None)
    scheduler._pass()
    assert len(slots.of(background=False)) == 3
    end(scheduler, slots, slots.of(background=True)[:2])
    scheduler._pass()
    assert len(slots.of(background=True)) == 12


async def test_beside_a_foreground_that_has_all_slots_background_gets_its_part() -> None:
    slots = FullSlots()
    scheduler = made(slots, SHARDS[:1])
    read(scheduler, 400, None)
    read(scheduler, 100, LOW)
    started = 0
    for _ in range(20):
        scheduler._pass()
        assert len(slots.got) == 16
        started += len(slots.of(background=True))
        end(scheduler, slots, slots.got)
    assert started == 20 * 16 // 9


@pytest.mark.parametrize(("concurrency", "at_once"), [(1, 1), (2, 1), (4, 3)])
async def test_small_pools_run_background_too(concurrency: int, at_once: int) -> None:
    slots = FullSlots()
    scheduler = made(slots, SHARDS[:1], concurrency=concurrency)
    read(scheduler, 6, LOW)
    for _ in range(6):
        scheduler._pass()
        assert 1 <= len(slots.got) <= at_once
        end(scheduler, slots, slots.got[:1])
        if not scheduler.ready:
            break
    assert scheduler.ready == 0


async def test_slow_settlements_hold_the_background_back_and_leave_it_one() -> None:
    slots, commit_s = FullSlots(), [0.6]
    scheduler = made(slots, SHARDS[:1], commit_s=lambda: commit_s[0])
    read(scheduler, 30, LOW)
    read(scheduler, 8, None)
    scheduler._pass()
    assert len(slots.of(background=False)) == 8, "the foreground goes on"
    assert len(slots.of(background=True)) == 1
    end(scheduler, slots, slots.of(background=True))
    scheduler._pass()
    assert len(slots.of(background=True)) == 1, "nothing is held back for ever"
    commit_s[0] = 0.4
    scheduler._pass()
    assert len(slots.of(background=True)) == 8, "all that the foreground leaves"


@pytest.mark.parametrize(("commit_s", "background"), [(0.15, 1), (0.05, 3)])
async def test_much_that_is_not_recorded_in_time_holds_the_background_back_first(
    monkeypatch: pytest.MonkeyPatch, commit_s: float, background: int
) -> None:
    """Quick tasks between two quick commits are much, too, and hold nothing back."""
    monkeypatch.setattr("late.scheduler.scheduler.UNRECORDED_MAX", 16)
    slots = FullSlots()
    scheduler = made(slots, SHARDS[:1], commit_s=lambda: commit_s)
    read(scheduler, 9, None)
    scheduler._pass()
    end(scheduler, slots, slots.got)
    read(scheduler, 10, LOW)
    read(scheduler, 2, None)
    scheduler._pass()
    assert (len(slots.of(background=False)), len(slots.of(background=True))) == (2, background)


class Room:
    """A pool that takes so many."""

    queued: tuple[Attempt, ...] = ()

    def __init__(self, room: int) -> None:
        self.room = room
        self.got: list[Attempt] = []

    def submit(self, attempts: Sequence[Attempt]) -> None:
        self.got += attempts
        self.room -= len(attempts)

    def abandon(self, group: str, shard_id: int, epoch: int) -> None: ...


async def test_background_leaves_room_in_the_pool_of_shared_transactions() -> None:
    pool = Room(20)
    scheduler = made(
        FullSlots(), SHARDS[:1], {"n": Policy(target=TRANSACTION_POOL)},
        pools={TRANSACTION_POOL: pool},
    )  # fmt: skip
    read(scheduler, 40, LOW)
    for _ in range(3):
        scheduler._pass()
    assert len(pool.got) == 16, "a quarter of the worker's 16 slots stays free"
    read(scheduler, 5, None)
    scheduler._pass()
    assert len([each for each in pool.got if not each.is_background]) == 4
    pool.room, ended = 3, [each for each in pool.got if each.is_background]
    scheduler.finished([Outcome(each, "done", 1, 1) for each in ended])
    pool.got.clear()
    scheduler._pass()
    scheduler._pass()
    assert len([each for each in pool.got if each.is_background]) == 1, "it has one at least"


def test_a_limited_queue_keeps_to_the_room_of_the_background() -> None:
    limits = Limits()
    limits.set({"q": QueueSettings(concurrency=100)}, {}, 0)
    limits.begin({"g": 1}, {"g": 1}, 0)
    queues = ReadyQueues("g", limits)
    for number in range(10):
        each = entry(number)
        each.options = Options(priority=-1 if number < 8 else 0)
        each.move("ready")
        queues.push(each)
    queues.open(0, {"local": 9}, {"local": 3})
    started = []
    while (found := queues.next()) is not None:
        started.append(found)
    assert sorted(each.options.priority for each in started) == [-1, -1, -1, 0, 0]
    queues.undo(started[0])
    queues.open(0, {"local": 9})
    assert queues.next() is not None, "who names no bound has none"


def test_starts_of_the_foreground_tell_how_fast_the_background_moves() -> None:
    queues = ReadyQueues("g", Limits())

    def push(number: int, priority: int) -> None:
        each = entry(number)
        each.options = Options(priority=priority)
        each.move("ready")
        queues.push(each)

    for number in range(100):
        push(number, -1)
    assert queues.background_surplus(5) == []
    for tenth in range(1, 11):
        for number in range(20):
            push(1_000 * tenth + number, 0)
        queues.open(tenth * SECOND // 10, {"local": 22}, {"local": 2})
        assert len(queues.unlimited()) == 22
    queues.open(SECOND, {"local": 0}, {"local": 0})
    assert queues.background_surplus(5) == [], "the rest starts within the second"


def backlog(*, foreground_before: bool) -> tuple[World, TaskId]:
    """Read a backlog of background with one foreground task behind it, whose id is returned. The
    only background slot has a task that does not end."""
    world = World()
    if foreground_before:
        world.enqueue()
        world.drain()
    for _ in range(5 * world.settings.window):
        world.enqueue(priority=-1)
    wanted = world.enqueue()
    for _ in range(100):
        world.read_page()
        world.grant(2, background=1 - len([a for a in world.running if a.is_background]))
        world.write()
        world.acknowledge()
        world.now_us += SECOND // 10
    return world, wanted


def test_the_foreground_behind_a_backlog_is_read() -> None:
    world, wanted = backlog(foreground_before=True)
    assert [a.record.task_id for a in world.running if not a.is_background] == [wanted]
    world.drain()


def test_a_backlog_of_background_alone_is_not_parked() -> None:
    world, _ = backlog(foreground_before=False)
    assert not world.core.state.timers.parked
    assert all(each.is_background for each in world.running)
    world.drain()


def test_the_foreground_waits_before_the_background_for_a_slot() -> None:
    low = [replace(attempt(), options=Options(priority=-1)) for _ in range(3)]
    high = [attempt() for _ in range(2)]
    waiting = deque(low[:2])
    line_up(waiting, [high[0], low[2]])
    line_up(waiting, [high[1]])
    assert list(waiting) == [*high, *low]
    line_up(plain := deque(high[:1]), high[1:])
    assert list(plain) == high
