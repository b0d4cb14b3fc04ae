"""`Control.status.read` and `Control.tasks.show`: what they say follows the store's own journal."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from late import outbox
from late.control import Control
from late.errors import ConfigError, InvalidName, SchemaMismatch, StoreError, StoreUnavailable
from late.model.ids import new_id
from late.model.task import HELD_US, AttemptError, Record, Suspect
from late.model.worker_report import WorkerReport
from late.schema import migrate
from late.schema.engine import make_engine
from late.store import open_store
from late.store.base import Store, cursor_within
from late.testing.drain_worker import busy
from tests.conformance.kit import dead, open_of, own, parked, read_all, task, worker
from tests.integration.control_kit import execute, insert, transaction


async def test_the_four_counts_follow_a_task_through_its_life(url: str) -> None:
    tasks = [task(3, queue="mail") for _ in range(5)]
    insert(url, *tasks, task(4, queue="bulk"))
    store = open_store(url)
    await store.open()
    with Control(url) as control:
        before = {q.queue: q for q in control.status.read().queues}
        assert before["mail"].depth.n == 5
        assert before["bulk"].depth.n == 1
        assert before["mail"].oldest_age_s is not None

        owner = await own(store, 3)
        (page,) = await store.read({3: ""}, 100)
        now = await store.now()
        await owner.settle(
            cursor=cursor_within(page.window, page.records[3]),
            open=(open_of(page.records[1]),),
            parked=(parked(now + 10**9, of=page.records[2], reason="retry"),),
            dead=(dead(of=page.records[3]),),
        )
        status = control.status.read(queue="mail")
        (mail,) = status.queues
        assert (mail.group, mail.depth.n, mail.in_flight.n, mail.parked.n, mail.dead.n) == (
            "default", 1, 1, 1, 1,
        )  # fmt: skip
        assert not mail.depth.capped
        shard = next(s for s in status.shards if s.shard_id == 3)
        assert (shard.owner, shard.owner_live, shard.epoch) == ("w1", True, owner.lease.epoch)
        assert (shard.seq, shard.lag.n, shard.in_flight) == (owner.seq, 1, 1)
        assert shard.settled_at_us is not None
        assert [(w.worker_id, w.shards, w.groups) for w in status.workers] == [
            ("w1", 1, ("default",))
        ]
        assert [s.shard_id for s in status.shards] == list(range(8))

        states = [control.tasks.show(r.task_id).groups[0].state for r in page.records]
        assert states == ["settled", "open", "parked", "dead", "logged"]

        await owner.settle(cursor=page.cursor, open=())
        states = [control.tasks.show(r.task_id).groups[0].state for r in page.records]
        assert states == ["settled", "settled", "parked", "dead", "settled"]
        assert control.status.read(queue="mail").queues[0].depth.n == 0
        await store.release([owner.lease])
        await store.heartbeat(worker(), 0)
        status = control.status.read()
        assert status.workers == ()
        assert next(s for s in status.shards if s.shard_id == 3).owner is None
    await store.close()


def test_a_queue_that_workers_run_is_there_without_tasks(url: str) -> None:
    insert(url, task(3, queue="mail"))
    with Control(url) as control:
        control.groups.create("audit", queues=["money"], start="now")
        groups, queues = ("default", "audit"), ("mail", "money")
        control.reports.write(WorkerReport("w1", "w1:1", groups=groups, queues=queues))
        found = {(q.group, q.queue): q.depth.n for q in control.status.read().queues}
        assert found == {("audit", "money"): 0, ("default", "mail"): 1, ("default", "money"): 0}
        assert [q.queue for q in control.status.read(queue="money").queues] == ["money"] * 2


async def test_what_no_worker_can_run_is_counted_by_name(url: str) -> None:
    """Given tasks that were refused, one after it had failed twice, beside one that is put off."""
    store = open_store(url)
    await store.open()
    insert(url, *(task(1, queue="mail", name=name) for name in ("old", "old", "new", "later")))
    owner = await own(store, 1)
    (page,) = await store.read({1: ""}, 100)
    now = await store.now()
    minute = 60_000_000
    refused = (AttemptError(1, now - 2 * minute, "w1", "no handler for 'old'"),)
    failed = (AttemptError(1, now - 60 * minute, "w1", "boom"),)
    errors = {
        0: refused,
        1: (AttemptError(1, now - 9 * minute, "w1", "no handler for 'old'"),),
        2: (*failed, AttemptError(2, now - minute, "w1", "no handler for 'new'")),
    }
    await owner.settle(
        cursor=page.cursor,
        open=(),
        parked=tuple(
            parked(now + 10**9, of=record, reason="unknown", errors=errors[number])
            if number in errors
            else parked(now + 10**9, of=record, reason="delay")
            for number, record in enumerate(sorted(page.records, key=_by_name))
        ),
    )
    with Control(url) as control:
        found = {each.task: each for each in control.status.read().unhandled}
        assert {name: each.waiting.n for name, each in found.items()} == {"old": 2, "new": 1}
        assert found["old"].since_s == pytest.approx(540, abs=30)
        assert found["new"].since_s == pytest.approx(60, abs=30), "since it is refused"
        assert {each.task for each in control.status.read(queue="mail").unhandled} == set(found)
        assert control.status.read(queue="bulk").unhandled == ()
        await _declares_each(store, control)
        [capped] = control.status.read(queue="mail", limit=1).queues
        assert capped.parked.capped
    await store.close()


async def _declares_each(store: Store, control: Control) -> None:
    """The workers of the group tell one after the other what they handle."""

    def told() -> dict[str, int | None]:
        return {each.task: each.handlers for each in control.status.read().unhandled}

    assert told() == {"old": None, "new": None}, "the owner has declared nothing"
    for name, text, expected in (
        ("w1", '{"new": "0123abcd"}', {"old": 0, "new": 1}),
        ("w2", '{"new": "89ab4567"}', {"old": 0, "new": 2}),
        ("w3", "[]", {"old": None, "new": 2}),
        ("w3", '{"@mail": ""}', {"old": 1, "new": 3}),
    ):
        await store.heartbeat(msgspec.structs.replace(worker(name), handlers=text), 60)
        assert told() == expected, name
    other = msgspec.structs.replace(worker("w4", ("other",)), handlers='{"old": ""}')
    await store.heartbeat(other, 60)
    assert told() == {"old": 1, "new": 3}, "only those of the group"


def _by_name(record: Record) -> int:
    return ("old", "new", "later").index(record.name)


async def test_what_its_key_holds_back_is_not_done(url: str) -> None:
    """Given tasks that are parked behind two keys: one whose first task waits for an hour, and one
    that waits for nothing but the end of others, as after a resize of the lane."""
    store = open_store(url)
    await store.open()
    tasks = [task(1, queue="mail") for _ in range(4)]
    insert(url, *tasks)
    records, cursor = await read_all(store, tasks)
    owner = await own(store, 1)
    later = await store.now() + 3_600_000_000
    rows = (
        parked(later, of=records[0], reason="retry", held_key="a"),
        parked(HELD_US, of=records[1], reason="held", held_key="a"),
        parked(HELD_US, of=records[2], reason="held", held_key="b"),
        parked(HELD_US, of=records[3], reason="held", held_key="b"),
    )
    engine = make_engine(url)
    with Control(url) as control:
        await owner.settle(cursor=cursor, open=(), parked=rows[:2])
        assert not busy(engine, "default")
        await owner.settle(cursor=cursor, open=(), parked=rows[2:])
        [mail] = control.status.read(queue="mail").queues
        assert (mail.depth.n, mail.in_flight.n, mail.parked.n, mail.held.n) == (0, 0, 4, 2)
        assert busy(engine, "default")
        [seen] = control.status.signals([("default", None)])
        assert seen.backlog == 2, "or an orchestrator would take the last worker away"
    engine.dispose()
    await store.close()


async def test_what_keys_hold_back_is_counted_up_to_the_limit(url: str) -> None:
    """Given nine tasks parked behind one key whose first one rests, and three behind another."""
    store = open_store(url)
    await store.open()
    tasks = [task(1, queue="mail") for _ in range(13)]
    insert(url, *tasks)
    records, cursor = await read_all(store, tasks)
    owner = await own(store, 1)
    later = await store.now() + 3_600_000_000
    rests = [parked(later, of=records[0], reason="retry", held_key="a")]
    rests += [parked(HELD_US, of=r, reason="held", held_key="a") for r in records[1:10]]
    runs = [parked(HELD_US, of=r, reason="held", held_key="b") for r in records[10:]]
    await owner.settle(cursor=cursor, open=(), parked=(*rests, *runs))
    with Control(url) as control:

        def held(limit: int) -> str:
            [mail] = control.status.read(queue="mail", limit=limit).queues
            return str(mail.held)

        assert [held(limit) for limit in (14, 13, 12, 5)] == ["3", ">= 3", ">= 2", ">= 0"]
    await store.close()


async def test_a_row_that_commits_behind_the_cursor_is_counted(url: str) -> None:
    """Given a transaction that inserts first and commits last, where the store allows two."""
    store = open_store(url)
    await store.open()
    slow, fast = task(0), task(0)
    with ExitStack() as stack, Control(url) as control:
        if store.features.commit_order:
            insert(url, fast)
        else:
            open_transaction = stack.enter_context(transaction(url))
            outbox.insert(open_transaction, [slow])
            insert(url, fast)
        owner = await own(store, 0)
        _, cursor = await read_all(store, [fast])
        await owner.settle(cursor=cursor, open=())
        assert control.status.read().queues == ()
        assert control.tasks.show(slow.task_id).groups[0].state == "unknown"

        stack.close()
        if store.features.commit_order:
            insert(url, slow)
        assert [queue.depth.n for queue in control.status.read().queues] == [1]
        assert control.tasks.show(slow.task_id).groups[0].state == "logged"
        assert control.tasks.show(fast.task_id).groups[0].state == "settled"
    await store.close()


async def test_counts_stop_at_the_limit_and_say_so(url: str) -> None:
    insert(url, *(task(shard) for shard in (0, 1) for _ in range(6)))
    with Control(url) as control:
        (queue,) = control.status.read(limit=5).queues
        assert (queue.depth.n, queue.depth.capped) == (10, True)
        assert str(queue.depth) == ">= 10"
        (queue,) = control.status.read(limit=100).queues
        assert (queue.depth.n, queue.depth.capped, str(queue.depth)) == (12, False, "12")
        with pytest.raises(ConfigError, match="limit 0"):
            control.status.read(limit=0)


async def test_groups_see_the_same_log_apart(url: str) -> None:
    execute(url, "insert into late_group (name, created_at_us) values ('audit', 1)")
    store = open_store(url)
    await store.open()
    tasks = [task(2) for _ in range(3)]
    insert(url, *tasks)
    owner = await own(store, 2, group="audit")
    _, cursor = await read_all(store, tasks)
    await owner.settle(cursor=cursor, open=())
    with Control(url) as control:
        depths = {q.group: q.depth.n for q in control.status.read().queues}
        assert depths == {"default": 3}
        states = {g.group: g.state for g in control.tasks.show(tasks[0].task_id).groups}
        assert states == {"audit": "settled", "default": "logged"}
        assert [g.name for g in control.groups.all()] == ["audit", "default"]
    await store.close()


async def test_a_shard_outside_every_lane_is_shown_while_it_holds_rows(url: str) -> None:
    insert(url, task(4095))
    with Control(url) as control:
        assert [s.shard_id for s in control.status.read().shards] == [*range(8), 4095]
        assert control.status.read().queues[0].depth.n == 1


async def test_show_tells_everything_of_a_parked_and_a_dead_task(url: str) -> None:
    store = open_store(url)
    await store.open()
    tasks = [
        task(1, queue="mail", payload=b'{"to":"a"}', headers='{"trace":"t1"}',
             options='{"ordering_key":"k"}')
        for _ in range(2)
    ]  # fmt: skip
    insert(url, *tasks)
    records, cursor = await read_all(store, tasks)
    owner = await own(store, 1)
    error = AttemptError(attempt=1, at_us=5, worker="w1", error="ValueError: no")
    await owner.settle(
        cursor=cursor,
        open=(),
        parked=(
            parked(HELD_US, of=records[0], reason="held", held_key="k", attempts=2,
                   errors=(error,)),
        ),
        dead=(dead(of=records[1], reason="gave_up", attempts=7, deaths=1, errors=(error,)),),
    )  # fmt: skip
    with Control(url) as control:
        view = control.tasks.show(records[0].task_id)
        (group,) = view.groups
        assert (group.state, group.reason, group.due_at_us, group.held_key) == (
            "parked", "held", None, "k",
        )  # fmt: skip
        assert (group.attempts, group.errors, group.owner) == (2, (error,), "w1")
        assert (view.queue, view.name, view.shard_id) == ("mail", "count", 1)
        assert (view.headers, view.options) == ({"trace": "t1"}, {"ordering_key": "k"})
        assert (view.payload, view.payload_bytes) == (None, 10)
        assert view.position == records[0].position
        assert control.tasks.show(records[0].task_id, payload=True).payload == '{"to":"a"}'
        (group,) = control.tasks.show(records[1].task_id).groups
        assert (group.state, group.reason, group.attempts, group.deaths) == (
            "dead", "gave_up", 7, 1,
        )  # fmt: skip
        # Once the log has forgotten the task, its timer still knows it.
        execute(url, "delete from late_task")
        view = control.tasks.show(records[0].task_id)
        assert (view.groups[0].state, view.queue, view.position) == (
            "parked", "mail", records[0].position,
        )  # fmt: skip
    await store.close()


async def test_a_task_under_which_a_worker_died_is_shown_as_a_suspect(url: str) -> None:
    """Given marks of two tasks, of which one has a death, when they are looked at, then that one is
    a suspect; and no more once a settlement has freed it."""
    store = open_store(url)
    await store.open()
    tasks = [task(0), task(0)]
    insert(url, *tasks)
    records, cursor = await read_all(store, tasks)
    owner = await own(store, 0)
    marks = (Suspect(records[0].task_id, 1, running=True), Suspect(records[1].task_id, 0, True))
    await owner.settle(cursor=cursor, open=tuple(map(open_of, records)), suspects=marks)

    def seen(number: int) -> tuple[str, bool, int | None]:
        with Control(url) as control:
            [group] = control.tasks.show(records[number].task_id).groups
        return group.state, group.suspect, group.deaths

    assert seen(0) == ("open", True, 1)
    assert seen(1) == ("open", False, None)
    await owner.settle(open=(open_of(records[0]),))
    assert seen(0) == ("open", False, None)
    # What has ended is none, whatever its row says until the next settlement.
    await owner.settle(open=(), suspects=marks)
    assert seen(0) == ("settled", False, None)
    await store.close()


async def test_payloads_that_are_not_text_are_shown_in_base64(url: str) -> None:
    broken, packed = task(0, payload=b"\xff\x00"), task(0, payload=b"{}", options='{"codec":"x"}')
    insert(url, broken, packed)
    with Control(url) as control:
        assert control.tasks.show(broken.task_id, payload=True).payload == "/wA="
        assert control.tasks.show(packed.task_id, payload=True).payload == "e30="


async def test_unknown_and_impossible_ids(url: str) -> None:
    with Control(url) as control:
        view = control.tasks.show(new_id(5))
        assert [group.state for group in view.groups] == ["unknown"]
        assert (view.shard_id, view.queue) == (5, None)
        for text in ("", "17", "x" * 100, "01a1fbd1-9c7b-4005-8000-00a0280d4b19", "'; drop table"):
            with pytest.raises(InvalidName, match="not a task id"):
                control.tasks.show(text)


async def test_rows_that_somebody_damaged_are_shown_and_not_hidden(url: str) -> None:
    store = open_store(url)
    await store.open()
    insert(url, made := task(0))
    (found,), cursor = await read_all(store, [made])
    owner = await own(store, 0)
    await owner.settle(cursor=cursor, open=(), dead=(dead(of=found),))
    await store.close()
    execute(url, "update late_dead set errors = 'oops', options = '[1]', headers = '{'")
    with Control(url) as control:
        (letter,) = control.dead_letters.find()
        assert "oops" in letter.errors[0].error
        assert letter.options == {"invalid": "[1]"}
        assert letter.headers == {"invalid": "{"}
        execute(url, "update late_settlement set cursor = 'nonsense'")
        with pytest.raises(StoreError, match="nonsense"):
            control.status.read()
        checks = {check.name: check for check in control.doctor()}
        assert checks["journal"].result == "failed"
        assert "nonsense" in checks["journal"].detail


def test_without_a_schema_every_call_says_what_to_do(empty_url: str) -> None:
    with Control(empty_url) as control:
        for call in (
            control.status.read,
            control.dead_letters.find,
            control.schedules.all,
            control.lanes.all,
        ):
            with pytest.raises(SchemaMismatch, match="run `late migrate URL`"):
                call()
        failed = [check for check in control.doctor() if check.result == "failed"]
        assert [check.name for check in failed] == ["schema"]


def test_a_newer_schema_is_refused(url: str) -> None:
    execute(url, "update late_meta set value = '9999' where key like 'schema%'")
    with Control(url) as control, pytest.raises(SchemaMismatch, match="upgrade late"):
        control.status.read()


def test_an_unreachable_server_is_unavailable_and_keeps_the_password() -> None:
    with Control("postgresql://me:sesame@127.0.0.1:1/shop") as control:
        assert control.url == "postgresql://me:***@127.0.0.1:1/shop"
        with pytest.raises(StoreUnavailable) as caught:
            control.status.read()
        assert "sesame" not in str(caught.value)
        check = control.doctor()[-1]
        assert (check.name, check.result) == ("connection", "failed")
        assert "sesame" not in check.detail


def test_a_mistyped_path_makes_no_file(tmp_path: Path) -> None:
    path = tmp_path / "trips.db"
    control = Control(f"sqlite:///{path}")
    with control, pytest.raises(StoreUnavailable, match=r"trips\.db"):
        control.status.read()
    assert not path.exists()


def test_a_file_that_was_moved_away_is_gone_and_a_restored_one_is_read(tmp_path: Path) -> None:
    """Its old content lives on for who has it open: nobody must look at it, or change it."""
    path, other = tmp_path / "trips.db", tmp_path / "other.db"
    for each in (path, other):
        migrate.upgrade(f"sqlite:///{each}")
    with Control(f"sqlite:///{path}") as control:
        control.groups.create("audit", start="now")
        for end in ("", "-wal", "-shm"):
            (tmp_path / f"trips.db{end}").rename(tmp_path / f"moved.db{end}")
        for call in (control.status.read, lambda: control.groups.pause("audit")):
            with pytest.raises(StoreUnavailable, match=r"trips\.db"):
                call()
        assert not path.exists()
        other.rename(path)
        assert [group.name for group in control.status.read().groups] == ["default"]
