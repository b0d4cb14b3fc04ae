"""Tasks by their state on every store, page by page, and what is done to all that match."""

from __future__ import annotations

import json
from collections.abc import Iterator

import msgspec
import pytest
from sqlalchemy import insert as insert_into

from late.cli.output import moment
from late.cli.show import show
from late.control import Control
from late.control.task_list import commands as together
from late.control.task_list import pages
from late.control.task_list.model import ListedTask, State, TaskFilter, cursor_of, key_of
from late.errors import ConfigError
from late.model.ids import new_id, shard_of
from late.model.task import HELD_US, AttemptError, Cursor, Record, ShardId, Suspect, TaskId
from late.model.worker_report import Run, WorkerReport
from late.payload.command import QUEUE
from late.schema.tables import history, timer
from late.store import open_store
from late.store.base import cursor_within
from tests.conformance.kit import dead, open_of, own, parked, read_all, task
from tests.integration.control_kit import add_worker, execute, insert, rows, transaction

SECOND = 1_000_000
SHARDS = (0, 1, 5)
A_SHARD = 8


@pytest.fixture
async def scene(url: str) -> dict[int, list[Record]]:
    """In each of three shards, by their place: open and started, open, parked for a time and
    behind a key, dead; and three that nobody has read."""
    headers, options = '{"shop":"s1"}', '{"ordering_key":"k1"}'
    made = {
        shard: [
            task(shard, queue=f"q{n % 2}", name=f"n{n}", headers=headers if n < 7 else None,
                 options=options if n == 7 else None)
            for n in range(A_SHARD)
        ]
        for shard in SHARDS
    }  # fmt: skip
    insert(url, *(each for tasks in made.values() for each in tasks))
    found = {}
    store = open_store(url)
    await store.open()
    try:
        for shard, tasks in made.items():
            owner = await own(store, shard)
            await read_all(store, tasks)
            [page] = await store.read({ShardId(shard): Cursor("")}, 100)
            records = found[shard] = list(page.records)
            assert [each.name for each in records] == [each.name for each in tasks]
            error = AttemptError(3, 1, "w1", "Boom: first\nlast line")
            await owner.settle(
                cursor=cursor_within(page.window, records[4]),
                open=(
                    msgspec.structs.replace(open_of(records[0]), started=True),
                    open_of(records[1]),
                ),
                parked=(
                    parked((shard + 1) * SECOND, of=records[2], reason="limited"),
                    parked(HELD_US, of=records[3], reason="held", held_key="trip-7"),
                ),
                dead=(dead(of=records[4], attempts=3, errors=(error,)),),
            )
    finally:
        await store.close()
    return found


def every(
    control: Control, state: State, which: TaskFilter | None = None, limit: int = 100
) -> Iterator[ListedTask]:
    """All pages, by the text of each one's end."""
    after = None
    for _ in range(200):
        page = control.tasks.find(state, which, after=key_of(after), limit=limit)
        assert len(page.tasks) <= limit
        yield from page.tasks
        after = cursor_of(page.after)
        if after is None:
            return
    raise AssertionError("the pages have no end")


def names(found: Iterator[ListedTask]) -> list[tuple[str | None, int]]:
    return [(each.name, each.shard_id) for each in found]


async def test_each_task_is_in_the_list_of_its_state(
    url: str, scene: dict[int, list[Record]]
) -> None:
    with Control(url) as control:
        for limit in (2, 100):
            logged = sorted(names(every(control, "logged", limit=limit)))
            assert logged == [(f"n{n}", shard) for n in (5, 6, 7) for shard in SHARDS]
            opened = list(every(control, "open", limit=limit))
            assert {(each.name, each.started) for each in opened} == {("n0", True), ("n1", False)}
            assert len(opened) == 2 * len(SHARDS)
            put_off = list(every(control, "parked", limit=limit))
            assert [each.due_at_us for each in put_off] == [
                *(SECOND * (shard + 1) for shard in SHARDS), *(3 * [HELD_US]),
            ]  # fmt: skip
            assert {each.ordering_key for each in put_off} == {None, "trip-7"}
            # A page of dead letters begins with the moment at which the last one ended.
            died = {each.task_id: each for each in every(control, "dead", limit=limit)}.values()
            assert {(each.name, each.attempts, each.error) for each in died} == {
                ("n4", 3, "last line")
            }
            assert len(died) == len(SHARDS)


async def test_what_has_not_begun_says_that_its_queue_or_its_group_is_paused(
    url: str, scene: dict[int, list[Record]]
) -> None:
    with Control(url) as control:
        control.queues.change("queue", "q1", {"paused": True})

        def reasons(state: State) -> set[tuple[str | None, str | None]]:
            return {(each.name, each.reason) for each in every(control, state)}

        paused = "queue paused"
        assert reasons("open") == {("n0", None), ("n1", paused)}
        assert reasons("logged") == {("n5", paused), ("n6", None), ("n7", paused)}
        assert reasons("parked") == {("n2", "limited"), ("n3", "held")}
        control.groups.pause("default")
        assert reasons("open") == {("n0", None), ("n1", paused)}
        assert reasons("logged") == {("n5", paused), ("n6", "group paused"), ("n7", paused)}


async def test_tasks_that_were_made_before_the_clock_went_back_are_listed(
    url: str, scene: dict[int, list[Record]]
) -> None:
    ahead = 4 * 10**15
    execute(url, f"update late_timer set created_at_us = {ahead}")
    execute(url, f"update late_dead set created_at_us = {ahead}")
    with Control(url) as control:
        assert {each.name for each in every(control, "parked")} == {"n2", "n3"}
        assert {each.name for each in every(control, "dead")} == {"n4"}
        asked = control.tasks.cancel_all("parked", TaskFilter(group="default"), dry_run=True)
        assert asked.count == len(list(every(control, "parked")))
        # Doctor tells of them when all workers have been started anew.
        [times] = [each for each in control.doctor() if each.name == "times"]
        assert times.result == "warning"
        assert "the database's clock went back" in times.detail


async def test_a_filter_takes_those_that_match_and_no_others(
    url: str, scene: dict[int, list[Record]]
) -> None:
    with Control(url) as control:
        control.queues.change("queue", "q1", {"fair_key": "shop"})

        def of(state: State, **asked: object) -> set[str | None]:
            return {each.name for each in every(control, state, TaskFilter(**asked))}  # type: ignore[arg-type]

        assert of("logged", queue="q1") == {"n5", "n7"}
        assert of("logged", name="n6") == {"n6"}
        assert of("logged", key="k1") == {"n7"}
        assert of("logged", header=("shop", "s1")) == {"n5", "n6"}
        assert of("logged", tenant="s1") == {"n5"}, "the tenants of q0 have no name"
        assert of("logged", older_us=3_600 * SECOND) == set()
        assert of("logged", until_us=1) == set()
        assert of("open", tenant="s1") == {"n1"}
        assert of("parked", reason="limited") == {"n2"}
        assert of("parked", key="trip-7") == {"n3"}
        assert of("parked", since_us=2 * SECOND, until_us=3 * SECOND) == {"n2"}
        assert of("parked", queue="q1", header=("shop", "s1")) == {"n3"}
        with pytest.raises(ConfigError, match="queue q0 has no fair_key"):
            of("dead", queue="q0", tenant="s1")
        assert of("dead", queue="q0", header=("shop", "s1")) == {"n4"}
        for state, wrong in (
            ("lost", TaskFilter()), ("logged", TaskFilter(group="never")),
            ("logged", TaskFilter(reason="retry")), ("done", TaskFilter(key="k1")),
            ("parked", TaskFilter(reason="limted")),
            ("running", TaskFilter(key="k1")), ("parked", TaskFilter(since_us=2, until_us=2)),
        ):  # fmt: skip
            with pytest.raises(ConfigError):
                control.tasks.find(state, wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigError):
            control.tasks.find("parked", limit=0)


def test_a_page_of_many_shards_is_whole_however_they_are_filled(url: str) -> None:
    # Given 64 shards with four timers each, and one that has the next three hundred to come due
    due = [(shard, 1_000_000 + n) for shard in range(64) for n in range(4)]
    due += [(7, n) for n in range(300)]
    with Control(url) as control:
        control.lanes.set_shards("default", 64)
        values = [
            {"consumer_group": "default", "shard_id": shard, "due_at_us": at,
             "task_id": str(new_id(shard)), "reason": "delay", "position": 1, "sequence": 1,
             "queue": "q1", "name": "n", "payload": b"{}", "created_at_us": 1, "attempts": 0,
             "deaths": 0}
            for shard, at in due
        ]  # fmt: skip
        with transaction(url) as connection:
            connection.execute(insert_into(timer), values)
        assert len(control.tasks.find("parked", limit=100).tasks) == 100
        found = [(each.shard_id, each.due_at_us) for each in every(control, "parked")]
    assert len(found) == len(due)
    assert found[:300] == due[-300:]
    assert sorted(found[300:]) == sorted(due[:-300])


async def test_what_runs_is_what_the_workers_last_told(url: str) -> None:
    with Control(url) as control:
        now = control.now()
        trace = "4bf9" * 8
        run = Run("default", "mail", "send", new_id(3), now - 9 * SECOND, 2, trace=trace)
        out = Run("default", "pay", "charge", new_id(1), now - 90 * SECOND, 1, "consumer c1")
        gone = Run("default", "pay", "charge", new_id(2), now - 90 * SECOND)
        other = Run("audit", "pay", "charge", new_id(1), now - 90 * SECOND)
        for worker_id, runs in (("w1", (run, other)), ("w2", (out,)), ("gone", (gone,))):
            control.reports.write(
                WorkerReport(worker_id, f"{worker_id}:1", every_s=15.0, runs=runs)
            )
        for name in ("w1", "w2"):
            add_worker(url, name)
        found = list(every(control, "running", limit=1))
        assert [(each.task_id, each.attempts, each.worker) for each in found] == [
            (out.task_id, 1, "consumer c1"), (run.task_id, 2, "w1:1"),
        ]  # fmt: skip
        assert (found[1].trace, found[1].began_at_us) == (trace, run.since_us)
        of_queue = every(control, "running", TaskFilter(queue="mail"))
        assert [each.task_id for each in of_queue] == [run.task_id]


def test_show_says_where_a_task_runs(
    url: str, scene: dict[int, list[Record]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its row is parked until the end of its second attempt is settled."""
    parked_one = scene[1][2].task_id
    with Control(url) as control:
        run = Run("default", "q0", "n2", parked_one, control.now() - 9 * SECOND, 2)
        told = WorkerReport("w7", "w1:1", every_s=15.0, runs=(run,))
        add_worker(url, "w7")
        for report in (told, msgspec.structs.replace(told, runs=(), stuck=(run,))):
            control.reports.write(report)
            show(parked_one, url, payload=False, everywhere=False, json=False)
            said = capsys.readouterr().out
            assert f"attempt 2, since {moment(run.since_us)}, on w1:1" in said
            assert ("past its time-out" in said) == bool(report.stuck)


async def test_tasks_under_which_workers_died_are_in_the_status(url: str) -> None:
    store = open_store(url)
    await store.open()
    try:
        for shard, deaths in ((0, 1), (1, 2)):
            owner = await own(store, shard)
            marks = tuple(Suspect(new_id(shard), n, True) for n in (0, deaths))
            await owner.settle(suspects=marks)
    finally:
        await store.close()
    with Control(url) as control:
        found = control.status.read().suspects
        assert [(each.shard_id, each.deaths) for each in found] == [(1, 2), (0, 1)]
        assert [each.group for each in found] == 2 * ["default"]


async def test_what_is_done_is_found_where_its_history_is_kept(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [new_id(n % 3) for n in range(9)]
    with transaction(url) as connection:
        connection.execute(
            insert_into(history),
            [
                {"consumer_group": "default", "task_id": task_id, "number": n, "at_us": n,
                 "event": event, "worker": "w1", "detail": '{"attempt": 2}'}
                for task_id in ids for n, event in enumerate(("retried", "done"), 1)
            ],
        )  # fmt: skip
    monkeypatch.setattr(pages, "LOOKED", 4)
    with Control(url) as control:
        found = list(every(control, "done", limit=3))
        assert [each.task_id for each in found] == sorted(ids, reverse=True)
        assert {(each.reason, each.attempts, each.ended_at_us) for each in found} == {
            ("done", 2, 2)
        }
        assert {each.shard_id for each in found} == {0, 1, 2}
        page = control.tasks.find("done", TaskFilter(reason="expired"))
        assert (page.tasks, page.stopped, page.looked) == ((), True, 4)
        assert {each.queue for each in found} == {None}, "the history of an older version"
        assert list(every(control, "done", TaskFilter(queue="mail"), limit=3)) == []


def commands(url: str) -> list[tuple[str, str]]:
    """The commands in the log: their names and their own ids."""
    asked = "select name, task_id from late_task where queue = :queue"
    return [(name, str(task_id)) for name, task_id in rows(url, asked, queue=QUEUE)]


async def test_all_that_match_are_cancelled_and_rescheduled(
    url: str, scene: dict[int, list[Record]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(together, "CHUNK", 2)
    monkeypatch.setattr(together, "PAGE", 2)
    limited = {scene[shard][2].task_id for shard in SHARDS}
    which = TaskFilter(reason="limited")
    with Control(url) as control:
        rehearsed = control.tasks.cancel_all("parked", which, dry_run=True)
        assert (rehearsed.count, rehearsed.capped, set(rehearsed.task_ids)) == (3, False, limited)
        assert commands(url) == []
        assert control.tasks.cancel_all("parked", which).count == 3
        sent = commands(url)
        assert [name for name, _ in sent] == 3 * ["late.cancel"]
        assert {shard_of(task_id) for _, task_id in sent} == set(SHARDS)
        told = control.audit.entries(subject="tasks:default")
        assert [each.action for each in told] == 2 * ["tasks.cancel"]
        assert '"limited"' in str(told[0].after)
        assert '"count":2' in str(told[1].after).replace(" ", ""), "the first of them"
        moved = control.tasks.reschedule_all(
            "logged", TaskFilter(queue="q1"), 10 * SECOND, rate=2.0
        )
        assert moved.count == 2 * len(SHARDS)
        assert len(commands(url)) == 3 + 6
        assert control.tasks.cancel_all("logged", TaskFilter(queue="q1"), limit=4).capped
        only = [TaskId(scene[shard][2].task_id) for shard in SHARDS]
        assert control.tasks.cancel_all("parked", TaskFilter(), only=only).task_ids == tuple(only)
        said = [json.loads(each.after or "") for each in control.audit.entries(limit=2)]
        assert sorted(said, key=lambda each: -each["count"]) == [
            {"count": 2, "state": "parked", "ids": only[:2]},
            {"count": 1, "state": "parked", "ids": only[2:]},
        ]
        for state in ("dead", "done", "running"):
            with pytest.raises(ConfigError):
                control.tasks.cancel_all(state, TaskFilter())  # type: ignore[arg-type]
        with pytest.raises(ConfigError):
            control.tasks.reschedule_all("parked", which, 1, rate=0.0)


async def test_what_is_unfinished_is_commanded_in_one_go(
    url: str, scene: dict[int, list[Record]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(together, "PAGE", 2)
    which = TaskFilter()
    with Control(url) as control:
        by_state = {
            state: control.tasks.cancel_all(state, which, dry_run=True).count
            for state in ("logged", "open", "parked")
        }
        assert all(by_state.values())
        whole = control.tasks.cancel_all("unfinished", which, dry_run=True)
        assert (whole.count, whole.capped) == (sum(by_state.values()), False)
        assert len(set(whole.task_ids)) == whole.count
        for limit in (by_state["logged"], by_state["logged"] + 1):
            some = control.tasks.cancel_all("unfinished", which, limit=limit, dry_run=True)
            assert (some.count, some.capped) == (limit, True)
        assert control.tasks.cancel_all("unfinished", which).count == whole.count
        assert len(commands(url)) == whole.count


def test_the_text_of_a_pages_end_is_read_as_it_was_written() -> None:
    for key in ((7, new_id(0)), (9, "")):
        assert key_of(cursor_of(key)) == key
    assert (key_of(None), key_of(""), cursor_of(None)) == (None, None, None)
    for wrong in ("x", "-1.", "1.nonsense", "9" * 20, "٣."):
        with pytest.raises(ConfigError):
            key_of(wrong)
