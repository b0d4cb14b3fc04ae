"""What nobody fetched from a pulled queue is handed out as soon as somebody asks, in each order in
which asking, reading, parking and settling may come, and never before a task's own time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import cast

import msgspec
import pytest

from late.model.queue_settings import QueueSettings
from late.model.task import Attempt, Epoch, Parked, ShardId
from late.scheduler.core import reads
from late.scheduler.core.timers import Timers
from late.scheduler.core.unclaimed import UnclaimedTasks
from late.scheduler.events_effects import Load, LoadFailed
from late.scheduler.scheduler import Scheduler
from late.store.base import Lease, Page, Store
from tests.unit.core_world import POLICIES, SECOND, World
from tests.unit.unclaimed_kit import (
    MAIL,
    POST,
    called,
    far,
    fetch,
    give,
    inherited,
    letters,
    look,
    park,
    settle,
    world,
)


def test_who_asks_before_the_first_page_is_read_gets_it() -> None:
    made = world()
    made.asked[MAIL] = 5
    look(made)
    ids = letters(made, 20)
    made.read_page()
    look(made)
    assert [a.record.task_id for a in made.starts] == ids[:5]


def test_who_asks_between_pages_gets_what_was_put_off() -> None:
    made = world(60)
    while not made.timers:
        park(made, 0.25)
    assert made.want is not None or made.core.state.unsettled, "there is more to read"
    got = fetch(made, 6)
    assert len(got) == 6


@pytest.mark.parametrize("idle_s", [3.0, 20.0])
def test_who_asks_when_all_was_parked_gets_all_of_it_at_once(idle_s: float) -> None:
    made = world(60)
    park(made, idle_s)
    assert {row.reason for row in made.timers.values()} == {"unfetched"}
    assert len(made.timers) >= 50
    assert len(far(made)) >= 30
    got: list[str] = []
    for _ in range(20):  # the clock stands still, so nothing of it falls due
        got += fetch(made, 3)
        for attempt in list(made.running):
            made.finish(attempt)
        settle(made)
    assert len(got) == len(set(got)) == 60
    assert not made.unsettled()
    assert not made.timers


def test_a_quiet_core_is_not_passed_by() -> None:
    """All that it has is in the table, or not due for seconds: it says that it is quiet."""
    for due_s in ([30.0, 40.0], [1.0, 1.5]):
        made = inherited(*due_s)
        for _ in range(4):
            made.read_page()
            look(made)
        assert made.core.state.quiet_until_us > made.now_us
        assert len(fetch(made, 4)) == 2


async def test_the_loop_asks_a_quiet_core_when_a_consumer_waits() -> None:
    made = world()
    ids = give(made, 30.0, 40.0)
    pool = FakePool()
    scheduler = Scheduler(
        cast(Store, Rows(list(made.timers.values()))),
        POLICIES,
        slots=Slots(),
        pools={MAIL: pool},
        concurrency=1,
        now_us=lambda: made.now_us,
        settle_soon=lambda shard, outcomes, urgent: None,
        read_soon=lambda: None,
        on_fenced=lambda shard: None,
    )
    shard = ("g", ShardId(0))
    scheduler.acquired([Lease(*shard, "me", Epoch(1), 1, made.last.cursor, (), {})])
    page = Page(ShardId(0), [], made.last.cursor, "w", more=False, now_us=made.now_us)
    scheduler.pages("g", [page])
    for _ in range(4):
        scheduler._pass()
        await asyncio.sleep(0)
    assert scheduler.cores[shard].state.quiet_until_us > made.now_us
    pool.room = 5
    for _ in range(4):
        scheduler._pass()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert [attempt.record.task_id for attempt in pool.got] == ids


class FakePool:
    """A pool of which `room` is asked for."""

    queued: tuple[Attempt, ...] = ()

    def __init__(self) -> None:
        self.room = 0
        self.got: list[Attempt] = []

    def submit(self, attempts: Sequence[Attempt]) -> None:
        self.got += attempts
        self.room -= len(attempts)

    def abandon(self, group: str, shard_id: int, epoch: int) -> None: ...


class Slots:
    load = 0
    queued: tuple[Attempt, ...] = ()

    def submit(self, attempts: Sequence[Attempt]) -> None: ...

    def abandon(self, group: str, shard_id: int, epoch: int) -> None: ...


class Rows:
    """A store of parked tasks."""

    def __init__(self, rows: list[Parked]) -> None:
        self.rows = rows

    async def due(self, *_: object, until_us: int, after: tuple[int, str], **__: object) -> object:
        return [r for r in self.rows
                if after < (r.due_at_us, r.record.task_id) and r.due_at_us <= until_us]  # fmt: skip


def test_a_want_while_a_settlement_is_out_gets_what_it_parks() -> None:
    made = world(30)
    while made.out is None or not any(r.reason == "unfetched" for r in made.out.parked):
        made.read_page()
        look(made)
        made.acknowledge()
        made.write()
        made.now_us += SECOND // 4
    parking = {row.record.task_id for row in made.out.parked}
    before = set(fetch(made, 40))  # in the table, and its owner does not know that
    assert not parking & before
    made.acknowledge()
    got = set(fetch(made, 40))
    for _ in range(6):
        settle(made)
        got |= set(fetch(made, 40))
    assert parking <= got | before


def test_what_is_parked_while_the_table_is_read_is_found_too() -> None:
    made = world(40)
    park(made)
    event, epoch = called(made)
    made.asked[MAIL] = 0
    more = letters(made, 20)
    for _ in range(16):  # all of it is read and parked before the answer is back
        made.read_page()
        made.grant(0)
        made.answers.clear()
        settle(made)
        made.now_us += SECOND // 4
    made.answers.append((event, epoch))
    made.answer()
    got: set[str] = set()
    for _ in range(30):
        got |= set(fetch(made, 4))
        for attempt in list(made.running):
            made.finish(attempt)
        settle(made)
    assert set(more) <= got


def test_a_load_that_fails_is_asked_for_again() -> None:
    made = world(40)
    park(made)
    event, _ = called(made)
    made.step(LoadFailed(event.request))
    got: set[str] = set()
    for _ in range(20):
        got |= set(fetch(made, 3))
    assert len({a.record.task_id for a in made.starts}) == 40


def test_who_comes_after_one_who_left_gets_the_rest() -> None:
    made = world(60)
    park(made)
    first = fetch(made, 3)
    made.asked[MAIL] = 0  # it has left, and what it was about to get is put off again
    park(made, 5.0)
    for attempt in list(made.running):
        made.finish(attempt)
    second: list[str] = []
    for _ in range(25):
        second += fetch(made, 3)
        for attempt in list(made.running):
            made.finish(attempt)
        settle(made)
    assert len({*first, *second}) == 60


def test_the_first_due_come_first_and_a_few_at_a_time() -> None:
    made = world(60)
    park(made, 6.0)
    order = [row.record.task_id for _, row in sorted(made.timers.items())]
    got: list[str] = []
    most = made.settings.limited_max // 2
    for _ in range(30):
        got += fetch(made, 1, passes=3)
        assert made.core.state.ready_queues.ready_for(MAIL) <= made.settings.limited_max + most
        for attempt in list(made.running):
            made.finish(attempt)
        settle(made)
    called = [task_id for task_id in got if task_id in order]
    assert called == order[: len(called)]
    assert len(called) > 10


def test_only_the_queue_that_is_asked_for_is_called() -> None:
    made = world(30)
    parcels = [made.enqueue("parcel", queue="post") for _ in range(30)]
    park(made, 8.0)
    fetch(made, 100)
    rest = {row.record.task_id for row in made.timers.values()}
    assert len(rest & set(parcels)) >= 20
    assert not {a.record.task_id for a in made.starts} & set(parcels)
    made.asked[MAIL] = 0
    got: set[str] = set()
    for _ in range(20):
        got |= set(fetch(made, 3, POST))
    assert got == set(parcels)


def test_a_delay_and_a_backoff_are_not_cut_short() -> None:
    made = world(30)
    later = letters(made, 3, delay_us=40 * SECOND)
    failing = letters(made, 1)[0]
    made.asked[MAIL] = 0
    park(made)
    while failing not in {a.record.task_id for a in made.running}:
        fetch(made, 5)
        for attempt in list(made.running):
            if attempt.record.task_id != failing:
                made.finish(attempt)
        settle(made)
    (attempt,) = (a for a in made.running if a.record.task_id == failing)
    made.finish(attempt, kind="failed", error="boom", jitter=1.0)
    settle(made)
    (retry,) = (row for row in made.timers.values() if row.record.task_id == failing)
    assert retry.reason == "retry"
    assert retry.due_at_us > made.now_us
    began = len(made.starts)
    for _ in range(10):
        fetch(made, 10)  # the world judges each start: none is early
        for each in list(made.running):
            made.finish(each)
        settle(made)
    assert not {a.record.task_id for a in made.starts[began:]} & {failing, *later}
    made.now_us = retry.due_at_us + 41 * SECOND
    assert {failing, *later} <= set(fetch(made, 10))


def test_what_is_in_memory_is_not_cut_short_either() -> None:
    made = world()
    soon = letters(made, 3, delay_us=3 * SECOND // 2)
    park(made, 0.75)
    assert len(made.timers) == 3
    assert not far(made)
    assert fetch(made, 5) == []
    made.now_us += SECOND
    assert fetch(made, 5) == soon


def test_what_a_knob_holds_back_is_not_called() -> None:
    made = inherited(*[30.0 + n for n in range(12)])
    made.turn(mail=QueueSettings(paused=True))
    rows = dict(made.timers)
    for _ in range(4):
        assert fetch(made, 10) == []
        settle(made)
        assert made.core.state.ready_queues.ready_for(MAIL) == 0
    assert dict(made.timers) == rows
    made.turn()
    assert len(fetch(made, 10)) == 10


def test_what_a_knob_has_put_off_is_not_called() -> None:
    made = world(40)
    made.turn(mail=QueueSettings(concurrency=1))
    made.asked[MAIL] = 10
    park(made, 3.0)
    assert {row.reason for row in made.timers.values()} == {"limited"}


def test_another_queues_rows_stay_as_they_are() -> None:
    made = inherited(*[30.0 + n for n in range(6)])
    give(made, *[31.0 + n for n in range(6)], name="parcel", queue="post")
    made.take_over(died=False)
    parcels = {key: row for key, row in made.timers.items() if row.record.queue == "post"}
    for _ in range(6):
        fetch(made, 6)
        assert made.core.state.ready_queues.ready_for(POST) == 0
        for attempt in list(made.running):
            made.finish(attempt)
        settle(made)
    assert made.timers == parcels


def test_a_queue_of_which_nothing_was_put_off_holds_no_other_up() -> None:
    made = world()
    give(made, *[30.0 + n for n in range(6)], name="parcel", queue="post")
    made.take_over(died=False)
    assert fetch(made, 1) == [], "and it is known by now that there is none"
    assert len(fetch(made, 5, POST)) == 5


def test_what_was_rescheduled_meanwhile_is_not_called() -> None:
    made = inherited(1.0, 1.2, 1.4)
    for _ in range(3):
        made.read_page()
        look(made)
    first = made.log[0].task_id
    made.command("reschedule", first, at_us=made.now_us + 50 * SECOND)
    for _ in range(4):
        made.read_page()
        look(made)
        settle(made)
    got = fetch(made, 5)
    assert set(got) == {record.task_id for record in made.log[1:3]}


def test_what_falls_due_by_itself_is_not_kept_for_a_call() -> None:
    """Else the second heap would grow with each round of a jam that nobody fetches."""
    made = inherited(*[0.5 + n / 10 for n in range(10)])
    for _ in range(20):
        made.read_page()
        look(made)
        made.now_us += SECOND // 4
    assert not made.core.state.timers.has_unfetched(MAIL)


def test_what_leaves_memory_again_is_known_to_be_in_the_table() -> None:
    made = inherited(*[1.0 + n / 20 for n in range(10)])
    made.settings = msgspec.structs.replace(made.settings, timers_max=16)
    for _ in range(3):
        made.read_page()
        look(made)
    timers, calling = made.core.state.timers, made.core.state.unclaimed
    calling._clear.add(MAIL)
    timers._timers_max = 4
    reads.shrink(made.core.state)
    assert len(timers.parked) == 3
    assert MAIL not in calling._clear
    assert len(timers.take_unclaimed(MAIL, 100)) == 3


def test_a_pool_is_clear_only_when_nothing_went_behind_the_reading() -> None:
    timers = Timers(horizon_us=2 * SECOND, timers_max=16)
    calling = UnclaimedTasks(timers)
    request = calling.load({MAIL: 2}, 0)
    assert request is not None
    assert calling.load({MAIL: 2}, 0) is None, "one at a time"
    assert calling.answered((40 * SECOND, "a")) == MAIL
    calling.went(MAIL)  # due in five seconds
    request = calling.load({MAIL: 2}, 0)
    assert request is not None
    assert request.after == (40 * SECOND, "a")
    calling.answered(None)
    assert calling.may_have([MAIL])
    request = calling.load({MAIL: 2}, 0)
    assert request is not None
    assert request.after == (0, "")
    calling.answered(None)
    assert not calling.may_have([MAIL])
    assert calling.may_have([POST])
    turns = {calling.load({MAIL: 1, POST: 1, "pull:c": 1}, 0) and calling.answered((1, "a"))
             for _ in range(4)}  # fmt: skip
    assert turns == {POST, "pull:c"}


def test_once_read_the_table_is_not_read_again() -> None:
    made = world(20)
    park(made)
    for _ in range(12):
        fetch(made, 3)
        for attempt in list(made.running):
            made.finish(attempt)
        settle(made)
    assert not made.unsettled()
    asked: list[Load] = []
    carry_out = made.carry_out

    def noted(effect: object) -> None:
        asked.extend([effect] if isinstance(effect, Load) else [])
        carry_out(effect)  # type: ignore[arg-type]

    made.carry_out = noted  # type: ignore[method-assign,assignment]
    fetch(made, 3)
    made.grant(0)
    assert not asked
    assert made.core.state.quiet_until_us > made.now_us
    assert not made.core.state.unclaimed.may_have([MAIL])


@pytest.mark.parametrize("seed", range(40))
def test_in_any_order_nothing_is_lost_early_or_twice(seed: int) -> None:
    """The world judges every start and every settlement; in the end a consumer gets all."""
    made = World(seed)
    made.pools = (MAIL, POST)
    made.take_over(died=False)
    rng = random.Random(seed)
    for _ in range(400):
        match rng.randrange(14):
            case 0 | 1:
                letters(made, rng.randrange(6))
            case 2:
                letters(made, 1, delay_us=rng.choice([1, 5, 90]) * SECOND // 2)
            case 3:
                made.enqueue("parcel", queue="post", ordering_key=rng.choice("ab"))
            case 4 | 5:
                made.read_page()
            case 6:
                made.asked = {MAIL: rng.choice([0, 0, 3, 9]), POST: rng.choice([0, 0, 4])}
            case 7 | 8:
                made.grant(0)
            case 9:
                made.answer()
            case 10:
                made.write()
            case 11:
                made.acknowledge()
            case 12:
                for attempt in list(made.running):
                    again = rng.random() < 0.2
                    made.finish(attempt, kind="interrupted" if again else "done")
            case _:
                made.now_us += rng.choice([0, 1, 4, 20]) * SECOND // 4
        if rng.random() < 0.01:
            made.take_over()
        elif rng.random() < 0.01:
            made.stop()
            made.take_over(died=False)
        if rng.random() < 0.02:
            made.fail_answer()
    for _ in range(600):
        made.asked = {MAIL: 3, POST: 3}
        made.read_page()
        made.grant(4)
        while made.answers:
            made.answer()
        for attempt in list(made.running):
            made.finish(attempt)
        settle(made)
        if not made.unsettled():
            break
        made.now_us += SECOND // 4
    assert not made.unsettled()
    assert not made.timers
