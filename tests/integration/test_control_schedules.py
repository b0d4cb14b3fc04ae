"""Schedules in the database: declared once, switched by operators, never ticked twice."""

from __future__ import annotations

import json
import threading

import msgspec
import pytest

from late.control import Control
from late.errors import ConfigError, InvalidCron
from late.model.task import Schedule
from late.store import open_store
from late.store.base import Tick
from late.web.models import last_hour
from tests.conformance.kit import own, read_all, task
from tests.integration.control_kit import execute, rows

NIGHTLY = Schedule(
    name="nightly",
    shard_id=3,
    rule="0 3 * * *",
    zone="America/New_York",
    catch_up="latest",
    catch_up_max=1,
    overlap="skip",
    queue="reports",
    task_name="report",
    payload=b'{"day":"all"}',
    options='{"priority":-5}',
    anchor_us=0,
    next_due_at_us=None,
)
OFTEN = msgspec.structs.replace(NIGHTLY, name="often", rule="every 90s", shard_id=5)


def changed(schedule: Schedule, **changes: object) -> Schedule:
    return msgspec.structs.replace(schedule, **changes)


def test_sync_inserts_once_and_counts_the_first_due_time_from_the_databases_now(url: str) -> None:
    with Control(url) as control:
        before = control.now()
        assert control.schedules.sync([OFTEN, NIGHTLY]) == ["nightly", "often"]
        after = control.now()
        nightly, often = control.schedules.all()
        assert nightly.next_due_at_us is not None
        assert before < nightly.next_due_at_us <= after + 25 * 3_600_000_000
        assert nightly.next_due_at_us % 60_000_000 == 0
        assert often.next_due_at_us == often.anchor_us + 90_000_000
        assert before <= often.anchor_us <= after
        assert (nightly.paused, nightly.open_task_id) == (False, None)
        declared = changed(nightly, anchor_us=0, next_due_at_us=None)
        assert declared == NIGHTLY
        # Declaring the same again writes nothing at all.
        updated = rows(url, "select name, updated_at_us from late_schedule order by name")
        assert control.schedules.sync([NIGHTLY, OFTEN]) == []
        assert rows(url, "select name, updated_at_us from late_schedule order by name") == updated
        assert control.schedules.sync([]) == []


def test_sync_updates_what_changed_and_keeps_what_operators_decided(url: str) -> None:
    with Control(url) as control:
        control.schedules.sync([NIGHTLY, OFTEN])
        control.schedules.pause("nightly")
        due = control.schedules.all()[0].next_due_at_us
        again = changed(NIGHTLY, payload=b"{}", queue="other", overlap="queue", shard_id=7)
        assert control.schedules.sync([again, OFTEN]) == ["nightly"]
        found = control.schedules.all()[0]
        assert (found.payload, found.queue, found.overlap) == (b"{}", "other", "queue")
        assert (found.paused, found.shard_id, found.next_due_at_us) == (True, 3, due)

        # A new rule is counted from now: nothing of the old one is left to fire.
        assert control.schedules.sync([changed(again, rule="30 4 1 1 *")]) == ["nightly"]
        found = control.schedules.all()[0]
        assert found.next_due_at_us not in (None, due)
        assert control.now() < (found.next_due_at_us or 0)
        # What is no longer declared stays: another service may have declared it.
        assert [schedule.name for schedule in control.schedules.all()] == ["nightly", "often"]


def test_a_declaration_that_changes_a_schedule_is_in_the_audit(url: str) -> None:
    with Control(url) as control:

        def said() -> tuple[str, object, object]:
            [last] = control.audit.entries(subject="schedule:nightly", limit=1)
            assert last.action == "schedule.declare"
            return (last.actor, json.loads(last.before or "null"), json.loads(last.after or "null"))

        control.schedules.sync([NIGHTLY], by="host:1")
        made = {"rule": NIGHTLY.rule, "zone": NIGHTLY.zone, "queue": NIGHTLY.queue}
        assert said() == ("host:1", None, made)
        often = changed(NIGHTLY, rule="30 4 * * *", payload=b"secret", jitter_us=60_000_000)
        for spec in (NIGHTLY, often, often, often):  # an old worker, then new ones
            control.schedules.sync([spec], by="host:2")
        assert said() == (
            "host:2",
            {"rule": NIGHTLY.rule, "payload_bytes": len(NIGHTLY.payload), "jitter_us": 0},
            {"rule": "30 4 * * *", "payload_bytes": 6, "jitter_us": 60_000_000},
        )
        assert len(control.audit.entries(subject="schedule:nightly")) == 2
        [mark] = last_hour.marks(
            [each for each in control.status.changes_since(0) if each.before],
            sees_all=True, sees=lambda _: True,
        )  # fmt: skip
        assert f"schedule.declare nightly: rule {NIGHTLY.rule} → 30 4 * * *" in mark.text
        control.schedules.sync([changed(often, options='{"tags":["a"]}', jitter_us=0)])
        assert said()[2] == {"options": {"tags": ["a"]}, "jitter_us": 0}


def test_schedules_of_some_shards(url: str) -> None:
    with Control(url) as control:
        control.schedules.sync([NIGHTLY, OFTEN])
        assert [s.name for s in control.schedules.all({3})] == ["nightly"]
        assert [s.name for s in control.schedules.all(range(8))] == ["nightly", "often"]
        assert control.schedules.all(()) == []


def test_several_workers_start_at_once(url: str) -> None:
    specs = [changed(OFTEN, name=f"s{i}") for i in range(20)]
    barrier = threading.Barrier(4)
    written: list[list[str]] = []
    errors: list[BaseException] = []

    def start(order: list[Schedule]) -> None:
        try:
            with Control(url) as control:
                control.check()
                barrier.wait()
                written.append(control.schedules.sync(order))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=start, args=(specs[::step],)) for step in (1, -1, 1, -1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(name for names in written for name in names) == sorted(s.name for s in specs)


async def test_a_changed_rule_cannot_fire_the_tick_that_was_just_settled(url: str) -> None:
    store = open_store(url)
    await store.open()
    with Control(url) as control:
        control.schedules.sync([OFTEN])
        now = await store.now()
        execute(url, "update late_schedule set next_due_at_us = :due", due=now)
        owner = await own(store, 5)
        tick = Tick("often", now, now + 90_000_000, (made := task(5),))
        await owner.settle(ticks=(tick,))
        control.schedules.sync([changed(OFTEN, rule="every 60s")])
        (found,) = control.schedules.all()
        assert found.next_due_at_us is not None
        assert found.next_due_at_us > now
        assert found.open_task_id == made.task_id
        # The owner's stale copy expects the due time of before: its tick has no effect.
        await owner.settle(ticks=(Tick("often", now + 90_000_000, now + 10**9, (task(5),)),))
        assert rows(url, "select count(*) from late_task") == [(1,)]
    await store.close()


def test_pause_and_resume_leave_out_what_came_due_meanwhile(url: str) -> None:
    with Control(url) as control:
        control.schedules.sync([OFTEN])
        assert control.schedules.pause("often").paused
        assert control.schedules.pause("often").paused
        anchor = control.schedules.all()[0].anchor_us
        execute(url, "update late_schedule set next_due_at_us = 1000, anchor_us = 1000")
        resumed = control.schedules.resume("often")
        now = control.now()
        assert not resumed.paused
        assert resumed.next_due_at_us is not None
        assert now < resumed.next_due_at_us <= now + 90_000_000
        assert (resumed.next_due_at_us - 1000) % 90_000_000 == 0
        # Resuming what runs already must not lose a tick that is due and not yet fired.
        execute(url, "update late_schedule set next_due_at_us = 1000")
        assert control.schedules.resume("often").next_due_at_us == 1000
        assert anchor > 0


async def test_run_puts_an_ordinary_task_into_the_log(url: str) -> None:
    store = open_store(url)
    await store.open()
    with Control(url) as control:
        control.schedules.sync([NIGHTLY, changed(OFTEN, overlap="queue")])
        control.schedules.pause("nightly")
        due = control.schedules.all()[0].next_due_at_us
        task_id = control.schedules.run("nightly")
        assert control.schedules.all()[0].next_due_at_us == due
        assert control.schedules.all()[0].open_task_id is None
        wanted = changed_task(task_id, 3)
        (record,), _ = await read_all(store, [wanted])
        assert (record.task_id, record.queue, record.name) == (task_id, "reports", "report")
        assert record.payload == b'{"day":"all"}'
        options = msgspec.json.decode(record.options or "")
        assert options == {"priority": -5, "schedule": "nightly"}
        queued = control.schedules.run("often")
        (record,), _ = await read_all(store, [changed_task(queued, 5)])
        assert msgspec.json.decode(record.options or "")["ordering_key"] == "schedule:often"
    await store.close()


def changed_task(task_id: str, shard: int) -> object:
    return msgspec.structs.replace(task(shard), task_id=task_id)


def test_remove_forgets_and_unknown_names_are_refused(url: str) -> None:
    with Control(url) as control:
        control.schedules.sync([NIGHTLY, OFTEN])
        control.schedules.pause("nightly")
        control.schedules.pause("nightly")
        control.schedules.resume("nightly")
        control.schedules.run("nightly")
        control.schedules.remove("nightly")
        assert [s.name for s in control.schedules.all()] == ["often"]
        done = [entry.action for entry in control.audit.entries(subject="schedule:nightly")]
        assert sorted(done) == [
            f"schedule.{w}" for w in ("declare", "pause", "remove", "resume", "run")
        ]
        for call in (
            control.schedules.remove,
            control.schedules.pause,
            control.schedules.resume,
            control.schedules.run,
        ):
            with pytest.raises(ConfigError, match="no schedule 'nightly'; known: often"):
                call("nightly")


def test_bad_declarations_write_nothing(url: str) -> None:
    with Control(url) as control:
        with pytest.raises(InvalidCron):
            control.schedules.sync([OFTEN, changed(NIGHTLY, rule="0 0 30 2 *")])
        with pytest.raises(InvalidCron, match="Mars"):
            control.schedules.sync([OFTEN, changed(NIGHTLY, zone="Mars/Olympus")])
        with pytest.raises(ConfigError, match="'often' is declared twice"):
            control.schedules.sync([OFTEN, OFTEN])
        assert control.schedules.all() == []


def test_a_lane_grows_and_never_shrinks(url: str) -> None:
    with Control(url) as control:
        (lane,) = control.lanes.all()
        assert (lane.name, lane.first_shard, lane.shards) == ("default", 0, 8)
        assert control.lanes.set_shards("default", 16).shards == 16
        assert control.lanes.set_shards("default", 16).shards == 16
        with pytest.raises(ConfigError, match="16 shards: it cannot shrink to 8"):
            control.lanes.set_shards("default", 8)
        with pytest.raises(ConfigError, match="no lane 'bulk'; known: default"):
            control.lanes.set_shards("bulk", 8)
        with pytest.raises(ConfigError, match="room for 4096 shards, not for 4097"):
            control.lanes.set_shards("default", 4097)
        execute(url, "insert into late_lane (name, first_shard, shards) values ('bulk', 100, 8)")
        with pytest.raises(ConfigError, match="room for 100 shards, not for 101"):
            control.lanes.set_shards("default", 101)
        assert control.lanes.set_shards("default", 100).shards == 100
        assert control.lanes.set_shards("bulk", 3996).shards == 3996
        assert len(control.status.read().shards) == 4096


def test_jitter_is_stored_changed_and_forgotten_with_its_schedule(url: str) -> None:
    moved = changed(NIGHTLY, jitter_us=30_000_000)
    with Control(url) as control:
        assert control.schedules.sync([moved, OFTEN]) == ["nightly", "often"]
        nightly, often = control.schedules.all()
        assert (nightly.jitter_us, often.jitter_us) == (30_000_000, 0)
        assert control.schedules.sync([moved, OFTEN]) == []
        assert control.schedules.pause("nightly").jitter_us == 30_000_000
        before = rows(url, "select updated_at_us from late_schedule where name = 'nightly'")
        assert control.schedules.sync([NIGHTLY]) == ["nightly"]
        [found, _] = control.schedules.all()
        assert (found.jitter_us, found.paused) == (0, True)
        assert found.next_due_at_us == nightly.next_due_at_us, "the tick is the same"
        after = rows(url, "select updated_at_us from late_schedule where name = 'nightly'")
        assert after != before, "this is what workers follow"
        control.schedules.sync([moved])
        control.schedules.remove("nightly")
        control.schedules.sync([NIGHTLY])
        assert control.schedules.all()[0].jitter_us == 0
