"""Leases, epochs and heartbeats: one holder, judged by the database's clock."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from itertools import pairwise

import msgspec
import pytest

from late.errors import StoreError
from late.model.ids import new_id
from late.model.task import HELD_US, ShardId, Suspect
from late.store import open_store
from late.store.base import HeldKey, LeaseView, Membership, NameEnds, SettleResult, Store
from tests.conformance.backends import Raw
from tests.conformance.kit import Owner, own, parked, schedule, task, until, worker

SHARDS = [("default", ShardId(shard)) for shard in range(4)]


async def test_a_live_workers_shards_are_not_for_others(store: Store, other_store: Store) -> None:
    await store.heartbeat(worker("w1"), 60)
    await other_store.heartbeat(worker("w2"), 60)
    mine = await store.acquire("w1", SHARDS[:3])

    theirs = await other_store.acquire("w2", SHARDS)

    assert [lease.shard_id for lease in mine] == [0, 1, 2]
    assert [lease.shard_id for lease in theirs] == [3]
    assert {lease.owner for lease in mine} == {"w1"}


async def test_an_epoch_is_above_all_of_the_journal_when_the_lease_is_gone(
    store: Store, raw: Raw
) -> None:
    for name in ("w1", "w2", "w3"):
        owner = await own(store, name=name)
        await owner.settle()
        await store.release([owner.lease])
    raw.execute("delete from late_lease where shard_id = 0")

    found = await own(store, name="w4")

    assert found.lease.epoch > owner.lease.epoch
    assert await found.settle() is SettleResult.SETTLED


async def test_a_heartbeat_carries_how_tasks_end_and_takes_it_back(
    store: Store, other_store: Store
) -> None:
    ends = tuple(NameEnds("g", "q", f"job{n}", 2, n, 0, (1, 2)) for n in range(2))
    for said in (ends, ()):
        await store.heartbeat(msgspec.structs.replace(worker("w1"), ends=said), 60)
        seen = await other_store.heartbeat(worker("w2"), 60)
        assert [each.ends for each in seen.workers] == [said, ()]


@pytest.mark.parametrize("text", ["", "{", "[[1]]", "null", '[["g", "q", "job", "many"]]'])
async def test_what_another_version_says_of_its_tasks_fails_no_heartbeat(
    store: Store, raw: Raw, text: str
) -> None:
    await store.heartbeat(worker("w1"), 60)
    raw.execute("update late_worker set ends = ? where worker_id = 'w1'", text)
    seen = await store.heartbeat(worker("w2"), 60)
    assert seen.workers == (worker("w1"), worker("w2"))


async def test_a_worker_declares_its_handlers_once_and_no_heartbeat_reads_them(
    store: Store, other_store: Store, raw: Raw
) -> None:
    text = '{"name": "0123abcd", "caf\u00e9": ""}'
    await store.heartbeat(msgspec.structs.replace(worker("w1"), handlers=text), 60)
    seen = await other_store.heartbeat(worker("w2"), 60)
    assert seen.workers == (worker("w1"), worker("w2"))
    # A heartbeat without them leaves them as they are
    seen = await store.heartbeat(worker("w1"), 60)
    assert seen.workers == (worker("w1"), worker("w2"))
    found = raw.execute("select worker_id, handlers from late_worker order by worker_id")
    assert [tuple(row) for row in found] == [("w1", text), ("w2", None)]
    # A later one replaces them, and a worker that leaves takes them along
    await store.heartbeat(msgspec.structs.replace(worker("w1"), handlers="{}"), 60)
    assert raw.execute("select handlers from late_worker where worker_id = 'w1'")[0][0] == "{}"
    await store.heartbeat(msgspec.structs.replace(worker("w1"), handlers=text), 0)
    await store.heartbeat(worker("w1"), 60)
    assert raw.execute("select handlers from late_worker where worker_id = 'w1'")[0][0] is None


async def test_a_worker_that_leaves_is_forgotten_at_once(store: Store, raw: Raw) -> None:
    for name in ("w1", "w2"):
        await store.heartbeat(worker(name), 60)
    assert (await store.heartbeat(worker("w1"), 0)).workers == (worker("w2"),)
    assert [tuple(row) for row in raw.execute("select worker_id from late_worker")] == [("w2",)]


async def test_racing_for_the_same_shards_gives_each_one_owner(
    store: Store, other_store: Store
) -> None:
    await store.heartbeat(worker("w1"), 60)
    await store.heartbeat(worker("w2"), 60)

    one, two = await asyncio.gather(
        store.acquire("w1", SHARDS), other_store.acquire("w2", SHARDS[::-1])
    )

    taken = sorted(lease.shard_id for lease in one + two)
    assert taken == [0, 1, 2, 3]


async def test_a_silent_owner_loses_its_shard_by_the_databases_clock(
    store: Store, other_store: Store
) -> None:
    seen = await store.heartbeat(worker("w1"), 0.3)
    (old,) = await store.acquire("w1", SHARDS[:1])
    await other_store.heartbeat(worker("w2"), 60)
    taken = await other_store.acquire("w2", SHARDS[:1])
    # What was taken before the time is up was taken from a living owner. The time counts from the
    # heartbeat, and the view may be from later.
    end_us = seen.expires_at_us["w1"]
    if await store.now() < end_us:
        assert taken == []

    await until(store, end_us)
    (new,) = taken or await other_store.acquire("w2", SHARDS[:1])

    assert new.epoch > old.epoch
    assert new.seq == old.seq + 1


async def test_renewing_keeps_it(store: Store, other_store: Store) -> None:
    first = await store.heartbeat(worker("w1"), 0.2)
    await store.acquire("w1", SHARDS[:1])
    await store.heartbeat(worker("w1"), 60)
    await until(store, first.now_us + 200_000)

    assert await other_store.acquire("w2", SHARDS[:1]) == []


async def test_taking_again_what_one_holds_is_a_new_epoch(store: Store) -> None:
    owner = await own(store)
    again = await own(store)

    assert again.lease.epoch > owner.lease.epoch
    assert await owner.settle() is SettleResult.FENCED
    assert await again.settle() is SettleResult.SETTLED


async def test_released_is_free_at_once(store: Store, other_store: Store) -> None:
    owner = await own(store, name="w1")
    await other_store.heartbeat(worker("w2"), 60)
    await store.release([owner.lease])
    await store.release([owner.lease])

    (taken,) = await other_store.acquire("w2", SHARDS[:1])

    assert taken.owner == "w2"
    assert taken.epoch > owner.lease.epoch


async def test_an_old_owner_cannot_release(store: Store, other_store: Store) -> None:
    old = await own(store, name="w1")
    await store.release([old.lease])
    new = await own(other_store, name="w2")

    await store.release([old.lease])

    view = (await store.heartbeat(worker("w1"), 60)).leases
    assert view == (LeaseView("default", ShardId(0), "w2", new.lease.epoch),)
    assert await store.acquire("w1", SHARDS[:1]) == []
    assert await new.settle() is SettleResult.SETTLED


async def test_an_old_epoch_of_the_same_worker_cannot_release(store: Store) -> None:
    old = await own(store, name="w1")
    new = await own(store, name="w1")
    await store.release([old.lease])

    (view,) = (await store.heartbeat(worker("w1"), 60)).leases
    assert (view.owner, view.epoch) == ("w1", new.lease.epoch)


async def test_groups_are_apart(store: Store, other_store: Store) -> None:
    mine = await own(store, name="w1", group="default")
    theirs = await own(other_store, name="w2", group="audit")

    assert await mine.settle() is SettleResult.SETTLED
    assert await theirs.settle() is SettleResult.SETTLED
    await mine.settle(parked=(parked(1_000),))
    assert await store.due("audit", ShardId(0), until_us=2**61, limit=9) == []


async def test_a_lease_names_the_keys_that_parked_tasks_hold(store: Store) -> None:
    owner = await own(store)
    await owner.settle(
        parked=(
            parked(10, held_key="head and tail", reason="retry"),
            parked(HELD_US, held_key="head and tail", reason="held"),
            parked(HELD_US, held_key="head and tail", reason="held"),
            parked(11, held_key="head", reason="retry"),
            parked(HELD_US, held_key="tail", reason="held"),
            parked(13),
        )
    )

    assert (await own(store)).lease.held_keys == {
        "head and tail": HeldKey(waiting=2, head_parked=True),
        "head": HeldKey(waiting=0, head_parked=True),
        "tail": HeldKey(waiting=1, head_parked=False),
    }
    assert (await own(store, 1)).lease.held_keys == {}


async def test_heartbeats_show_the_fleet(store: Store, other_store: Store) -> None:
    two = worker("w2", groups=("default", "audit"))
    before_us = await store.now()
    await other_store.heartbeat(two, 60)
    owner = await own(store, 2, name="w1")

    seen = await store.heartbeat(worker("w1"), 60)

    assert seen.workers == (worker("w1"), two)
    assert seen.leases == (LeaseView("default", ShardId(2), "w1", owner.lease.epoch),)
    assert seen.shards == tuple(range(8)), "the lane of a fresh schema"
    assert before_us <= seen.now_us <= await store.now()


async def test_a_schedule_keeps_its_shard_of_a_lane_that_was_wider(store: Store, raw: Raw) -> None:
    schedule(raw, "nightly", 60, shard=40)

    seen = await store.heartbeat(worker("w1"), 60)

    assert seen.shards == (*range(8), 40)


async def test_leaving_is_seen_at_once(store: Store, other_store: Store) -> None:
    await own(store, name="w1")
    left = await store.heartbeat(worker("w1"), 0)
    assert left.workers == ()

    seen = await other_store.heartbeat(worker("w2"), 60)

    assert seen.workers == (worker("w2"),)
    (taken,) = await other_store.acquire("w2", SHARDS[:1])
    assert taken.owner == "w2"


async def test_a_silent_worker_leaves_the_view(store: Store) -> None:
    seen = await store.heartbeat(worker("w1"), 0.1)
    await until(store, seen.now_us + 100_000)

    assert (await store.heartbeat(worker("w2"), 60)).workers == (worker("w2"),)


async def test_shards_outside_every_lane_are_owned_while_there_is_work(
    store: Store, other_store: Store, raw: Raw
) -> None:
    raw.execute("update late_lane set shards = 2")
    assert (await store.heartbeat(worker(), 60)).shards == (0, 1)

    raw.insert(task(5), task(5), task(6), task(4095))
    owner = await own(store, 7)
    await owner.settle(parked=(parked(2**60),))

    # One that has looked just now may tell of them some seconds later.
    assert (await other_store.heartbeat(worker(), 60)).shards == (0, 1, 5, 6, 7, 4095)


SETTING = "insert into late_{} (name, knobs, version, updated_at_us) values ('mail', '{{}}', 1, 5)"
CHANGES = (
    "update late_lane set shards = 2",
    "update late_lane set version = 1",
    "insert into late_extent (lane, version, shards, closed_at_us) values ('default', 0, 8, 5)",
    "update late_extent set closings = '[]'",
    "delete from late_extent where version = 0",
    SETTING.format("queue"),
    "update late_queue set knobs = '{1}' where name = 'mail'",
    SETTING.format("target"),
    "delete from late_queue where name = 'mail'",
    "update late_target set version = 2 where name = 'mail'",
    "update late_schedule set paused = 1 where name = 'nightly'",
    "update late_schedule set next_due_at_us = 70 where name = 'nightly'",
    "update late_schedule set updated_at_us = 1 where name = 'nightly'",
    "update late_schedule set open_task_id = null where name = 'nightly'",
    "delete from late_schedule where name = 'nightly'",
)


async def test_a_heartbeat_tells_of_every_change_of_the_settings(url: str, raw: Raw) -> None:
    async def seen() -> Membership:
        made = open_store(url)  # one that has looked may tell of a change some seconds later
        await made.open()
        try:
            return await made.heartbeat(worker("w1"), 60)
        finally:
            await made.close()

    schedule(raw, "nightly", 60, new_id(0))
    versions = [(await seen()).settings]
    for change in CHANGES:
        raw.execute(change)
        versions.append((await seen()).settings)
    assert versions[-1] == (await seen()).settings, "nothing has changed"
    # What was put in and taken out again leaves the settings as they were.
    assert {*versions} == {None} or all(one != two for one, two in pairwise(versions))


async def test_a_heartbeat_tells_soon_of_a_change(store: Store, raw: Raw) -> None:
    before = await store.heartbeat(worker(), 60)
    raw.execute("update late_lane set shards = 2, version = 1")
    raw.execute("update late_group set paused = 1")
    seen = await store.heartbeat(worker(), 60)
    assert seen.groups == frozenset()
    async with asyncio.timeout(120):
        while seen.shards != (0, 1):
            await asyncio.sleep(0.1)
            seen = await store.heartbeat(worker(), 60)
    assert seen.settings is None or seen.settings != before.settings


async def test_a_heartbeat_tells_of_offers_of_others(store: Store, raw: Raw) -> None:
    async def told(name: str, expected: bool) -> None:
        assert (await store.heartbeat(worker(name), 60)).offers in (expected, None)

    await told("w1", False)
    raw.execute(
        "insert into late_offer (consumer_group, shard_id, task_id, epoch, owner, attempt,"
        " offered_at_us, refused_by) values ('default', 3, ?, 1, 'w1', '{}', 5, '[]')",
        new_id(3),
    )
    await told("w1", False)
    await told("w2", True)
    raw.execute("update late_offer set runner = 'w2' where shard_id = 3")
    await told("w2", True)  # the answer to its call may have been lost
    await told("w3", False)
    raw.execute("update late_offer set answer = '{}' where shard_id = 3")
    await told("w2", False)


async def test_under_contention_every_epoch_has_one_settling_owner(
    store: Store, connect: Callable[[], Raw], other_store: Store
) -> None:
    """Two workers that keep taking the shard from each other and settling: no fork, no gap."""
    settled: list[tuple[int, str]] = []
    choose = random.Random(11)

    async def contend(mine: Store, name: str) -> None:
        for _ in range(10):
            try:
                (lease,) = await mine.acquire(name, SHARDS[:1])
            except StoreError as lost_the_race:
                if not lost_the_race.transient:
                    raise
                continue
            owner = Owner(mine, lease)
            for _ in range(choose.randint(1, 3)):
                settlement = owner.next()
                (result,) = await mine.settle([settlement])
                if result is SettleResult.FENCED:
                    break
                owner.accept(settlement)
                settled.append((settlement.seq, settlement.settlement_id))

    # Neither sends a heartbeat: each finds the other silent, as after two long pauses.
    await asyncio.gather(contend(store, "w1"), contend(other_store, "w2"))

    rows = connect().execute("select seq, settlement_id, epoch from late_settlement order by seq")
    assert [seq for seq, _, _ in rows] == list(range(1, len(rows) + 1))
    epochs = [epoch for _, _, epoch in rows]
    assert epochs == sorted(epochs)
    assert set(settled) <= {(seq, settlement_id) for seq, settlement_id, _ in rows}


async def test_a_lease_says_when_its_shard_was_last_taken_from_an_owner_who_had_not_given_it_back(
    store: Store, other_store: Store
) -> None:
    first = await own(store, name="w1")
    assert first.lease.taken_at_us is None
    await store.release([first.lease])
    second = await own(store, name="w2", ttl_s=0.1)
    assert second.lease.taken_at_us is None
    await until(store, await store.now() + 200_000)

    before_us = await store.now()
    third = await own(other_store, name="w3")

    taken_at_us = third.lease.taken_at_us
    assert taken_at_us is not None
    assert before_us <= taken_at_us <= await store.now()
    # And it goes on saying it, to the same worker and to the next one
    again = await own(other_store, name="w3")
    assert again.lease.taken_at_us == taken_at_us
    await other_store.release([again.lease])
    assert (await own(store, name="w4")).lease.taken_at_us == taken_at_us


async def test_marks_become_deaths_where_an_owner_died_and_nowhere_else(
    store: Store, other_store: Store
) -> None:
    # Given marks in the journal of a worker that falls silent
    marks = (
        Suspect(new_id(0), 0, True),
        Suspect(new_id(0), 1, True),
        Suspect(new_id(0), 2, False),
        Suspect(new_id(0), 0, False),
    )
    first = await own(store, name="w1", ttl_s=0.3)
    assert first.lease.suspects == ()
    assert await first.settle(suspects=marks) is SettleResult.SETTLED
    # And a takeover of its own, which may be carried out after its death: it changes nothing
    assert (await own(store, name="w1", ttl_s=0.3)).lease.suspects == marks
    await until(store, await store.now() + 400_000)

    # When another takes over, and gives back, and another one takes it
    second = await own(other_store, name="w2")
    await other_store.release([second.lease])
    third = await own(store, name="w3")

    # Then whatever was running has one death more, once
    ids = [mark.task_id for mark in marks]
    deaths = (Suspect(ids[0], 1), Suspect(ids[1], 2), Suspect(ids[2], 2))
    assert second.lease.suspects == deaths
    assert third.lease.suspects == deaths
    # And a settlement that names none ends it
    assert await third.settle() is SettleResult.SETTLED
    await store.release([third.lease])
    assert (await own(store, name="w4")).lease.suspects == ()
