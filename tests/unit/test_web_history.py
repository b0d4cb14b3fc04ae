"""The history of queues, groups and targets: slots, gaps, figures, and what is drawn of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from late.control.status.usage import Key as Shard
from late.control.status.usage import UsageRead
from late.model.histogram import bucket
from late.model.ids import new_id
from late.model.task import CONTROL_QUEUE, ENQUEUED, EndDetail, StepDetail, TaskId, Usage
from late.store import open_store
from late.store.base import Step
from late.web.models import drawings, history
from late.web.models.history import (
    HOUR_US,
    MINUTE_US,
    Slot,
    Slots,
    figures,
    merge,
    points,
    slots_of,
    taker,
)
from late.web.usage import past_week
from late.web.usage.past_week import PastWeek
from tests.conformance.kit import own
from tests.integration.control_kit import execute
from tests.unit.test_web_last_hour import Journal, watched_by
from tests.unit.test_web_routes import token
from tests.unit.web_kit import fill, page

NOW_US = 500_000 * HOUR_US + 30 * MINUTE_US
SHARD: Shard = ("default", 0)
HOUR = NOW_US // HOUR_US * HOUR_US


def runs(queue: str, seconds: float, count: int = 1, target: str = "local") -> Usage:
    spent = ((bucket(round(seconds * 1e6)), count),)
    return Usage(queue, "send", target, "done", count, count, waiting=spent, busy=spent)


def read(*usages: tuple[int, Usage], group: str = "default", **changes: Any) -> UsageRead:
    """A read of usage with times in microseconds."""
    given = {"read": {SHARD: 1}, "whole": True} | changes
    return UsageRead(NOW_US, tuple((group, each) for _, each in usages),
                     times=tuple(at for at, _ in usages), **given)  # fmt: skip


def drawn(slots: Slots, window: str, **changes: Any) -> tuple[history.Point, ...]:
    given: dict[str, Any] = {
        "now_us": NOW_US, "known": (0, NOW_US), "takes": lambda key: True,
    } | changes  # fmt: skip
    return points(slots, window, **given)


def test_a_window_has_its_slots_and_only_hours_have_the_present_one() -> None:
    for window, (slot_us, count) in history.WINDOWS.items():
        found = drawn({}, window)
        assert len(found) == count
        whole = [point.until_us - point.at_us == slot_us for point in found]
        assert whole == [True] * (count - 1) + [window == "1h"]
        assert found[-1].until_us == NOW_US
    assert drawn({}, "24h")[-1].minutes == 30


def test_what_was_not_read_is_a_gap_and_no_zero() -> None:
    known = (HOUR - 5 * HOUR_US + 1, HOUR - HOUR_US)
    found = [point.slot is None for point in drawn({}, "24h", known=known)]
    assert found == [True] * 18 + [False] * 4 + [True] * 2
    left_out = drawn({}, "1h", gaps=[(NOW_US - 2 * MINUTE_US, NOW_US - MINUTE_US)])
    assert [point.slot is None for point in left_out] == [False] * 58 + [True, False]
    assert drawings.gaps(drawn({}, "24h", known=(HOUR - HOUR_US, NOW_US))) == ((0, 550.0),)
    nothing = figures("24h", drawn({}, "24h", known=(0, 0)))
    assert (nothing.known, nothing.slots, nothing.run_s) == (0, 24, (None, None, None))


def test_figures_are_those_of_one_queue_group_or_target() -> None:
    slots = slots_of(read((HOUR, Usage("mail", "send", "local", ENQUEUED, 9)),
                          (HOUR, runs("mail", 1.0, 90)), (HOUR - HOUR_US, runs("mail", 8.0, 10)),
                          (HOUR, Usage("mail", "send", "bank", "dead", 2, 2)),
                          (HOUR, Usage("mail", "send", "bank", "expired", 3)),
                          (HOUR, Usage("mail", "send", "bank", "retried", 0, 5)),
                          (HOUR, Usage(CONTROL_QUEUE, "x", "local", "done", 7, 7)),
                          (HOUR, runs("shop", 30.0))), HOUR_US)  # fmt: skip
    merge(slots, slots_of(read((HOUR, runs("mail", 60.0, 1_000)), group="audit"), HOUR_US))

    def told(kind: history.Kind, name: str, group: str = "", sees: str = "") -> history.Figures:
        takes = taker(kind, name, lambda queue: queue.startswith(sees), group)
        return figures("24h", drawn(slots, "24h", takes=takes))

    mail = told("queue", "mail", "default")
    assert (mail.arrived, mail.done, mail.dead, mail.failed) == (9, 100, 2, 7)
    assert mail.others == (("expired", 3),)
    assert mail.run_s == pytest.approx((1.0, 8.0, 8.0), rel=0.04)
    assert (mail.late_s, mail.is_whole) == (mail.run_s, True)
    assert mail.longest_s == pytest.approx(8.0, rel=0.04)
    assert told("group", "default").done == 101
    assert told("group", "default", sees="shop").done == 1, "a caller with some queues"
    assert (told("target", "bank").dead, told("target", "bank").done) == (2, 0)


def test_an_hour_with_too_many_queues_is_a_gap_for_those_that_it_lacks() -> None:
    slots: Slots = {}
    merge(slots, slots_of(read(*((HOUR, runs(f"q{n}", 1.0)) for n in range(5))), HOUR_US), 3)
    assert len(slots[HOUR]) == 3
    for queue, known in (("q1", 24), ("q4", 23)):
        takes = taker("queue", queue, lambda queue: True)
        assert figures("24h", drawn(slots, "24h", takes=takes, most=3)).known == known


def test_what_waited_is_counted_back_from_now_until_nobody_knows() -> None:
    def point(arrived: int, ended: int) -> history.Point:
        return history.Point(0, 1, Slot(arrived, 0, {"done": ended}))

    found = [point(0, 0), history.Point(0, 1, None), point(5, 0), point(7, 2)]
    assert history.waited(found, 9) == (None, None, 4, 9)
    assert history.waited([point(0, 0), point(99, 0)], 9) == (None, 9), "redriven meanwhile"


def test_lines_end_at_gaps_and_charts_are_told_in_words() -> None:
    gap = history.Point(0, MINUTE_US, None)
    some = [history.Point(0, MINUTE_US, Slot(n, 0, {"done": n})) for n in (4, 0)]
    flow, failed, run, *_ = drawings.charts([*some, gap, some[0], gap], 3)
    assert flow.says == "arrived 4, ended 4"
    assert (flow.top, run.top, run.says) == ("4", "", "nothing")
    assert flow.lines[0].path == "M60 2L180 88M420 2h1"
    assert failed.gaps == ((240.0, 120.0), (480.0, 120.0))
    hour = drawings.queue_hour([*some, gap])
    assert (hour.says, hour.p95_s, hour.path != "") == ("4 ended in 2 min", None, True)
    assert drawings.queue_hour([gap]).says == "being read"


def test_a_heat_map_has_columns_and_rows_within_its_bounds() -> None:
    few = {bucket(10 ** (n % 9)): 1 + n for n in range(40)}
    week = [history.Point(n, n + 1, Slot(busy=few if n % 3 else {})) for n in range(168)]
    drawn = drawings.heat(week)
    assert drawn is not None
    assert len(drawn.shades) == drawings.SHADES
    cells = [float(x) for path in drawn.shades for x in re.findall(r"M([\d.]+) ", path)]
    assert len(set(cells)) <= drawings.COLUMNS
    assert len("".join(drawn.shades)) < 12_000
    assert drawings.heat([history.Point(0, 1, Slot(busy={5: 9}))]) is None


async def test_a_week_is_read_on_from_its_first_count() -> None:
    old = NOW_US - 20 * 24 * HOUR_US
    journal = Journal(
        read((NOW_US - 50 * HOUR_US, runs("mail", 1.0)), whole=False),
        read((NOW_US, runs("mail", 1.0)), read={SHARD: 5}),
        UsageRead(NOW_US, (), {}, whole=False, anew=True),
        read((old, runs("mail", 1.0)), (NOW_US, runs("mail", 1.0))),
    )
    week = PastWeek(watched_by(journal))
    await looked(week)
    assert (week.whole, week.until_us, week.first_us) == (True, NOW_US, NOW_US - 50 * HOUR_US)
    assert len(week.hours) == 2
    assert week.since_us == HOUR + HOUR_US - past_week.WEEK_US
    await looked(week)
    assert list(week.hours) == [HOUR], "begun anew, and older ones are forgotten"


async def looked(week: PastWeek) -> None:
    week._due_at = 0.0
    await week.look()
    assert week._reading is not None
    await week._reading


async def test_the_screens_of_a_queue_a_group_and_a_target_begin_with_it(tmp_path: Path) -> None:
    async with page(tmp_path) as it:
        await fill(it.url)
        execute(it.url, "update late_settlement set settled_at_us = settled_at_us - 120000000")
        await it.shown("queues/mail")
        for read in (it.site._context.last_hour, it.site._context.past_week):
            assert read._reading is not None
            await read._reading  # No page waits for it.
        for path in ("queues/mail", "groups/default", "targets/local"):
            shown = await it.shown(path + "?span=24h")
            assert "History in numbers" in shown, path
            row = re.search(r'<th scope="row">24h</th>(.*?)</tr>', shown)
            assert row is not None, path
            assert "<td>1</td>" in row[1], path
        text = await it.shown("queues/mail?span=nothing&group=none")
        assert 'span=1h&group=default" aria-current' in text
        listed = await it.shown("queues")
        assert 'class="spark"' in listed
        assert re.search("1 ended in (59|60) min", listed), "a minute may have passed since"


def test_the_slowest_slots_come_first() -> None:
    busy = (2.0, 9.0, 0.0, 5.0, 7.0)
    found = [
        history.Point(n, n + 1, Slot(busy={bucket(round(s * 1e6)): 1} if s else {}))
        for n, s in enumerate(busy)
    ]
    assert [each.at_us for each in history.slowest([*found, history.Point(9, 10, None)])] == [
        1, 4, 3,
    ]  # fmt: skip


async def test_of_what_is_done_a_caller_sees_the_own_queues_alone(tmp_path: Path) -> None:
    whose = {"mail": str(new_id(3)), "payments": str(new_id(3)), "": str(new_id(3))}
    some, known = token("some", "view", queues=("mail",))
    everything, whole = token("all", "view")
    async with page(tmp_path, tokens=[known, whole]) as it:
        store = open_store(it.url)
        await store.open()
        try:
            owner = await own(store, 4)
            await owner.settle(history=tuple(
                Step(TaskId(task_id), it.control.now(), "done",
                     msgspec.json.encode(EndDetail(1, queue=queue, name="send")).decode())
                for queue, task_id in whose.items()
            ))  # fmt: skip
        finally:
            await store.close()

        async def shown(bearer: str, query: str = "") -> set[str]:
            head = {"Authorization": f"Bearer {bearer}"}
            answer = await it.get(f"tasks?state=done{query}", headers=head)
            assert answer.status_code == 200
            return {queue for queue, task_id in whose.items() if task_id in answer.text}

        assert await shown(everything) == set(whose)
        assert await shown(everything, "&queue=payments") == {"payments"}
        assert await shown(some) == {"mail"}, "and none whose queue nobody knows"
        head = {"Authorization": f"Bearer {some}"}
        assert (await it.get("tasks?state=done&queue=payments", headers=head)).status_code == 404


async def test_examples_of_a_slow_time_are_tasks_that_ran_so_long(tmp_path: Path) -> None:
    async with page(tmp_path) as it:
        await fill(it.url)
        now, ids = it.control.now(), [str(new_id(3)) for _ in range(2)]
        details = [StepDetail(1, started_at_us=now - us) for us in (9_000_000, 90_000)]
        store = open_store(it.url)
        await store.open()
        try:
            owner = await own(store, 4)
            await owner.settle(history=tuple(
                Step(TaskId(task_id), now, "done", msgspec.json.encode(detail).decode())
                for task_id, detail in zip(ids, details, strict=True)
            ))  # fmt: skip
        finally:
            await store.close()
        shown = await it.shown("tasks?state=done&group=default&longer=2s")
        assert (ids[0] in shown, ids[1] in shown) == (True, False)
        assert "ran 9.0 s" in shown
        past = await it.shown("tasks?state=done&until=2020-01-01T00:00:00Z")
        assert ids[0] not in past
        refused = await it.get("tasks?state=parked&longer=2s")
        assert (refused.status_code, "running or done" in refused.text) == (400, True)
        for wrong in ("longer=soon", "since=noon"):
            assert (await it.get(f"tasks?state=done&{wrong}")).status_code == 400
        sent = {"state": "parked", "longer": "2s", "do": "apply"}
        assert (await it.post("tasks/cancel", sent)).status_code == 400
