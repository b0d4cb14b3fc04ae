"""Consumer groups as operators make, pause, reset and delete them, on every store."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import late
from late.control import Control, audit
from late.control.sql import positions
from late.control.views import ShardReset
from late.errors import ConfigError
from late.model.ids import new_id
from late.model.task import Record, ShardId
from late.outbox import connect
from late.schema.engine import make_engine, reading
from late.store.base import SettleResult, Store
from tests.conformance.kit import (
    BEGINNING,
    Owner,
    dead,
    ids,
    own,
    parked,
    read_all,
    task,
    until,
    worker,
)
from tests.conformance.kit import open_of as key_of
from tests.integration.control_kit import execute, insert, rows
from tests.integration.groups_kit import SHARD, everything, lease_of, to_read, works


def effects(shard: ShardReset) -> tuple[int, ...]:
    """What a reset does to a shard, counted to the end."""
    found = (shard.again, shard.skipped, shard.unparked, shard.dead, shard.kept)
    assert not any(each.capped for each in found)
    return tuple(each.n for each in found)


@pytest.fixture
def control(url: str) -> Any:
    with Control(url) as made:
        yield made


async def test_a_group_begins_at_the_beginning_or_now(
    url: str, store: Store, control: Control
) -> None:
    before = [task(SHARD) for _ in range(3)]
    insert(url, *before)
    await read_all(store, before)
    control.groups.create("all", start="beginning")
    control.groups.create("new", start="now")
    after = [task(SHARD) for _ in range(3)]
    insert(url, *after)
    await read_all(store, before + after)
    assert set(await to_read(store, await lease_of(store, "all"), 6)) == set(ids(before + after))
    assert set(await to_read(store, await lease_of(store, "new"), 3)) == set(ids(after))


async def test_now_is_by_commit_and_not_by_insert(
    backend: Any, url: str, store: Store, control: Control
) -> None:
    """What an open transaction has inserted when the group is made is not lost."""
    if store.features.commit_order:
        return  # a writer holds the lock, or its row has the time of its commit
    raw, late = backend.raw(url), task(SHARD)
    try:
        raw.begin()
        raw.insert(late)
        control.groups.create("new", start="now")
        raw.commit()
        await read_all(store, [late])
        assert await to_read(store, await lease_of(store, "new"), 1) == [late.task_id]
    finally:
        raw.close()


async def test_a_moment_is_exact_and_found_by_the_journal(
    url: str, store: Store, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positions, "MARGIN_US", 0)
    before = [task(SHARD) for _ in range(3)]
    insert(url, *before)
    owner = await works(store, before)
    await until(store, await store.now() + 2_000)
    between = task(SHARD)
    insert(url, between)
    (_, _, _, last), _ = await read_all(store, [*before, between])
    await until(store, last.created_at_us + 2_000)
    after = [task(SHARD) for _ in range(2)]
    insert(url, *after)
    await until(store, await store.now() + 2_000)
    _, cursor = await read_all(store, [*before, between, *after])
    await owner.settle(cursor=cursor)

    control.groups.create("since", start=last.created_at_us + 1)
    lease = await lease_of(store, "since")
    assert lease.cursor != BEGINNING, "the journal knows a nearer place"
    assert set(await to_read(store, lease, 2)) == set(ids(after))
    control.groups.create("from", start=last.created_at_us)
    lease = await lease_of(store, "from")
    assert set(await to_read(store, lease, 3)) == {between.task_id, *ids(after)}


async def test_a_group_of_some_queues(url: str, store: Store, control: Control) -> None:
    mail, bill = task(SHARD, queue="mail"), task(SHARD, queue="bill")
    insert(url, mail, bill)
    await read_all(store, [mail, bill])
    made = control.groups.create("post", queues=["mail", "mail"], start="beginning")
    assert (made.queues, made.lag.n) == (("mail",), 1)
    assert await to_read(store, await lease_of(store, "post"), 1) == [mail.task_id]
    states = {g.group: g.state for g in control.tasks.show(bill.task_id).groups}
    assert states == {"default": "logged", "post": "passed"}
    depths = {(q.group, q.queue): q.depth.n for q in control.status.read().queues}
    assert depths == {("default", "bill"): 1, ("default", "mail"): 1, ("post", "mail"): 1}
    await works(store, [mail, bill], "post")
    found = control.verify(group="post")
    assert (found.totals.settled, found.totals.waiting) == (2, 0)


def test_what_makes_no_group(control: Control) -> None:
    for name, queues, start, what in (
        ("a b", None, "now", "not a name of a group"),
        ("default", None, "now", "there is a group"),
        ("g", [], "now", "no queue"),
        ("g", ["a b"], "now", "not a name of a queue"),
        ("g", None, "soon", "start from 'soon'"),
        ("g", None, control.now() + 10**9, "has not come"),
        ("g", None, None, "say where it starts"),
    ):
        with pytest.raises(ConfigError, match=what):
            control.groups.create(name, queues=queues, start=start)
    assert [g.name for g in control.groups.all()] == ["default"]
    for act in (control.groups.pause, control.groups.delete, control.groups.get):
        with pytest.raises(ConfigError, match="no consumer group 'ghost'"):
            act("ghost")
    with pytest.raises(ConfigError, match="no consumer group 'ghost'"):
        control.groups.require(["default", "ghost"])


async def test_one_that_was_worked_before_it_was_created_goes_on(
    url: str, store: Store, control: Control
) -> None:
    tasks = [task(SHARD)]
    insert(url, *tasks)
    owner = await works(store, tasks, "old")
    assert control.groups.get("old").state == "unregistered"
    with pytest.raises(ConfigError, match="has a journal"):
        control.groups.create("old", start="beginning")
    control.groups.create("old", start=None)
    assert await owner.settle() is SettleResult.SETTLED, "its owner is left alone"


async def test_a_paused_group_is_told_to_the_workers(
    url: str, store: Store, control: Control
) -> None:
    control.groups.create("audit", start="now")
    assert (await store.heartbeat(worker("w9"), 60)).groups == {"default", "audit"}
    assert control.groups.pause("audit").state == "paused"
    assert (await store.heartbeat(worker("w9"), 60)).groups == {"default"}
    assert control.groups.pause("audit").state == "paused"
    assert control.groups.resume("audit").state == "idle"
    assert (await store.heartbeat(worker("w9"), 60)).groups == {"default", "audit"}


async def test_a_deleted_group_is_gone_and_its_zombies_stay_out(
    url: str, store: Store, control: Control
) -> None:
    tasks = [task(SHARD), task(SHARD)]
    insert(url, *tasks)
    control.groups.create("audit", start="beginning")
    zombie = await works(store, tasks, "audit")
    (first, second), _ = await read_all(store, tasks)
    await zombie.settle(parked=(parked(5, of=first),), dead=(dead(second),))
    await store.heartbeat(worker("w8", ("audit",)), 60)
    with pytest.raises(ConfigError, match="1 live workers serve"):
        control.groups.delete("audit")
    await store.heartbeat(worker("w8", ("audit",)), 0)
    with pytest.raises(ConfigError, match="default group stays"):
        control.groups.delete("default")
    control.groups.delete("audit")
    assert [g.name for g in control.groups.all()] == ["default"]
    assert await zombie.settle() is SettleResult.FENCED

    control.groups.create("audit", start="now")
    again = await lease_of(store, "audit")
    assert again.epoch > zombie.lease.epoch
    assert again.seq > zombie.seq, "or the zombie would find its next place free one day"
    assert await zombie.settle() is SettleResult.FENCED
    assert await store.due("audit", ShardId(SHARD), until_us=10, limit=10) == []
    assert control.verify().ok


async def books(url: str, store: Store, group: str = "default") -> tuple[Owner, list[Record]]:
    """Five tasks: done, open, parked, dead, and one that waits."""
    tasks = [task(SHARD) for _ in range(4)]
    for each in tasks:
        insert(url, each)
        await until(store, await store.now() + 2_000)
    records, cursor = await read_all(store, tasks)
    last = task(SHARD)
    insert(url, last)
    (waits,), _ = await read_all(store, [last], cursor=cursor)
    records.sort(key=lambda r: r.created_at_us)
    owner = await own(store, SHARD, group=group, name=f"w-{group}")
    await owner.settle(
        cursor=cursor,
        open=(key_of(records[1]),),
        parked=(parked(2**50, of=records[2], attempts=2),),
        dead=(dead(records[3]),),
    )
    return owner, [*records, waits]


async def test_a_reset_to_the_beginning(url: str, store: Store, control: Control) -> None:
    owner, records = await books(url, store)
    plan = control.groups.reset("default", "beginning", dry_run=True)
    (shard,) = [s for s in plan.shards if s.shard_id == SHARD]
    assert effects(shard) == (4, 0, 1, 1, 0)
    assert control.verify().totals.parked == 1, "a dry run changes nothing"
    assert await owner.settle() is SettleResult.SETTLED

    done = control.groups.reset("default", "beginning")
    assert done.shards == plan.shards
    assert await owner.settle() is SettleResult.FENCED
    lease = await lease_of(store, "default")
    assert (lease.cursor, lease.open) == (BEGINNING, ())
    assert set(await to_read(store, lease, 5)) == {r.task_id for r in records}
    assert all(r.created_at_us < lease.reads.replay_us for r in records)
    totals = control.verify().totals
    assert (totals.waiting, totals.parked, totals.dead) == (5, 0, 0)
    new = task(SHARD)
    insert(url, new)
    found, _ = await read_all(store, [new])
    assert [r.created_at_us >= lease.reads.replay_us for r in found].count(True) == 1


async def test_a_reset_to_now(url: str, store: Store, control: Control) -> None:
    owner, records = await books(url, store)
    plan = control.groups.reset("default", "now", dry_run=True)
    (shard,) = [s for s in plan.shards if s.shard_id == SHARD]
    assert effects(shard) == (0, 1, 0, 0, 2)
    assert control.groups.reset("default", "now").shards == plan.shards
    assert await owner.settle() is SettleResult.FENCED
    lease = await lease_of(store, "default")
    assert await to_read(store, lease, 0) == []
    assert [key.task_id for key in lease.open] == [records[1].task_id], "it goes on"
    assert lease.reads.replay_us == 0
    found = control.verify()
    assert (found.problems, found.totals.parked, found.totals.dead) == ((), 1, 1)


def test_what_a_reset_leaves_out_lets_go_of_its_keys_and_schedules(
    url: str, control: Control
) -> None:
    """Nothing else would: a task that never runs never ends."""
    app = late.App(url)

    @app.schedule(every=60, name="theirs", args={"n": 1})
    @app.schedule(every=60, name="others", args={"n": 1})
    @app.task
    def charge(n: int) -> None: ...

    with connect(url) as tx:
        waits = charge.options(unique_key="plain").enqueue(tx, 1)
        charge.options(unique_key="for-an-hour", unique_for=3_600).enqueue(tx, 2)
    control.schedules.sync(app.schedules)
    opened = "update late_schedule set open_task_id = '{}' where name = '{}'"
    for name, task_id in (("theirs", waits), ("others", new_id(0))):
        execute(url, opened.format(task_id, name))
    control.groups.create("audit", start="beginning")
    control.groups.reset("audit", "now")
    held = "select unique_key, expires_at_us from late_unique order by unique_key"
    assert [key for key, _ in rows(url, held)] == ["for-an-hour", "plain"], "not its to let go"
    control.groups.reset("default", "now")
    [(key, until_us)] = rows(url, held)
    assert key == "for-an-hour"
    assert until_us > 0, "its period is not over, and its task does not hold it"
    open_ids = dict(rows(url, "select name, open_task_id from late_schedule"))
    assert open_ids["theirs"] is None
    assert open_ids["others"] is not None
    with connect(url) as tx:
        assert charge.options(unique_key="plain").enqueue(tx, 1) != waits


async def test_a_reset_to_a_moment(url: str, store: Store, control: Control) -> None:
    _, records = await books(url, store)
    plan = control.groups.reset("default", records[2].created_at_us, dry_run=True)
    (shard,) = [s for s in plan.shards if s.shard_id == SHARD]
    assert effects(shard) == (2, 0, 1, 1, 1)
    assert control.groups.reset("default", records[2].created_at_us).shards == plan.shards
    lease = await lease_of(store, "default")
    assert set(await to_read(store, lease, 3)) == {r.task_id for r in records[2:]}
    assert [key.task_id for key in lease.open] == [records[1].task_id]
    assert control.verify().problems == ()
    assert control.groups.get("default").from_us == records[2].created_at_us
    control.groups.reset("default", "beginning")
    assert len(await to_read(store, await lease_of(store, "default"), 5)) == 5


async def test_a_reset_group_holds_the_log_from_there(
    url: str, store: Store, control: Control
) -> None:
    tasks = [task(SHARD) for _ in range(3)]
    insert(url, *tasks)
    await works(store, tasks)
    control.groups.reset("default", "beginning")
    await store.prune(journal_keep_s=1_000)
    assert len(await to_read(store, await lease_of(store, "default"), 3)) == 3


async def test_every_action_is_audited(url: str, control: Control) -> None:
    control.groups.create("audit", queues=["mail"], start="now")
    control.groups.pause("audit")
    control.groups.reset("audit", "beginning", dry_run=True)
    control.groups.reset("audit", "beginning")
    control.groups.resume("audit")
    control.groups.delete("audit")
    engine = make_engine(url)
    with reading(engine) as connection:
        found = audit.entries(connection, subject="group:audit")
    engine.dispose()
    assert sorted(entry.action for entry in found) == [
        f"group.{word}" for word in ("create", "delete", "pause", "reset", "resume")
    ]


async def test_waiting_for_a_token(url: str, store: Store, control: Control) -> None:
    owner, records = await books(url, store)
    token = records[0].task_id
    assert control.groups.wait("default", token, timeout_s=0).state == "settled"
    for record, left in zip(records[1:], (1, 2, 2, 3), strict=True):
        found = control.groups.wait("default", record.task_id, timeout_s=0)
        assert (found.state, found.left.n) == ("waiting", left)
    await owner.settle(open=(), unparked=((2**50, records[2].task_id),))
    assert control.groups.wait("default", records[3].task_id, timeout_s=0).state == "settled"
    assert control.groups.wait("default", records[4].task_id, timeout_s=0).left.n == 1
    ghost = task(SHARD)
    assert control.groups.wait("default", ghost.task_id, timeout_s=0).state == "unknown"
    assert control.groups.wait("default", ghost.task_id, timeout_s=2).state == "waiting"
    _, cursor = await read_all(store, records)
    await owner.settle(cursor=cursor)
    assert control.groups.wait("default", ghost.task_id, timeout_s=20).state == "gone"
    with pytest.raises(ConfigError, match="no consumer group 'ghost'"):
        control.groups.wait("ghost", token, timeout_s=0)
    control.groups.pause("default")
    with pytest.raises(ConfigError, match="paused"):
        control.groups.wait("default", token, timeout_s=0)


async def test_a_group_that_is_behind_is_called_so(
    url: str, store: Store, control: Control
) -> None:
    tasks = [task(SHARD) for _ in range(3)]
    insert(url, *tasks)
    control.groups.create("audit", start="beginning")
    await works(store, tasks)
    await until(store, await store.now() + 2_000)
    with Control(url, alarm_s=0.001) as strict:
        lag = {g.name: (g.lag.n, g.lagging) for g in strict.groups.all()}
    assert lag == {"audit": (3, True), "default": (0, False)}
    assert not any(g.lagging for g in control.groups.all())


async def test_what_a_reset_will_read_again_is_kept_although_it_was_settled_long_ago(
    url: str, store: Store, control: Control
) -> None:
    if store.features.experimental:
        return
    control.groups.set_retention(1.0)
    tasks = [task(SHARD) for _ in range(3)]
    insert(url, *tasks)
    await works(store, tasks)
    await until(store, await store.now() + 1_100_000)
    control.groups.reset("default", "beginning")
    await store.prune(journal_keep_s=100_000)
    assert len(await everything(store, ShardId(SHARD))) == 3


async def test_a_rehearsal_tells_what_would_run(url: str, store: Store, control: Control) -> None:
    _, records = await books(url, store)
    plan = control.groups.reset("default", "beginning", rate=2.5, dry_run=True)
    times = [record.created_at_us for record in records]
    assert {queue: count.n for queue, count in plan.queues.items()} == Counter(
        record.queue for record in records
    )
    assert (plan.oldest_us, plan.newest_us, plan.kept_us) == (min(times), max(times), min(times))
    later = control.groups.reset("default", times[2], dry_run=True)
    assert (later.oldest_us, later.kept_us) == (times[2], min(times))
    assert control.groups.replays() == {}, "a rehearsal changes nothing"


async def test_a_rate_belongs_to_one_reset(url: str, store: Store, control: Control) -> None:
    control.groups.create("audit", start="beginning")
    control.groups.reset("audit", "beginning", rate=2.5)
    first = control.groups.replays()["audit"]
    assert first.rate == 2.5
    control.groups.reset("audit", "beginning")
    second = control.groups.replays()["audit"]
    assert (second.rate, second.replay_us > first.replay_us) == (None, True)
    control.groups.reset("audit", "beginning", rate=2.5)
    control.groups.delete("audit")
    control.groups.create("audit", start="beginning")
    assert "audit" not in control.groups.replays()
    assert rows(url, "select key from late_meta where key like 'replay/%'") == []


def test_a_rate_that_makes_no_sense_is_refused(control: Control) -> None:
    with pytest.raises(ConfigError, match=r"rate 0: from 0\.001"):
        control.groups.reset("default", "beginning", rate=0)
    with pytest.raises(ConfigError, match="replays nothing"):
        control.groups.reset("default", "now", rate=1)
