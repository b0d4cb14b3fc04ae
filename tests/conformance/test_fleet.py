"""A worker's view of the fleet from heartbeat to heartbeat: never older than one that is new."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack

import msgspec

from late.control import Control
from late.model.task import ShardId
from late.store import open_store
from late.store.base import LeaseView, Membership, NameEnds, Store
from late.store.common.fleet_view import ALL_WATCHED
from tests.conformance.backends import Raw
from tests.conformance.kit import counting, names, until, worker

SHARDS = [("default", ShardId(shard)) for shard in range(4)]
TTL_S = 60.0


def owners(seen: Membership) -> dict[int, str | None]:
    return {lease.shard_id: lease.owner for lease in seen.leases}


async def test_the_next_heartbeat_shows_what_others_did(store: Store, other_store: Store) -> None:
    me, other = counting("w1"), counting("w2")
    assert names(await store.heartbeat(me, TTL_S)) == ["w1"]
    await other_store.heartbeat(other, TTL_S)
    assert names(await store.heartbeat(me, TTL_S)) == ["w1", "w2"]
    leases = await other_store.acquire("w2", SHARDS[:2])
    assert owners(await store.heartbeat(me, TTL_S)) == {0: "w2", 1: "w2"}
    await other_store.release(leases[:1])
    seen = await store.heartbeat(me, TTL_S)
    assert seen.leases == (
        LeaseView("default", ShardId(0), None, leases[0].epoch),
        LeaseView("default", ShardId(1), "w2", leases[1].epoch),
    )
    (taken,) = await store.acquire("w1", SHARDS[:1])
    seen = await store.heartbeat(me, TTL_S)
    assert owners(seen) == {0: "w1", 1: "w2"}
    assert seen.leases[0].epoch == taken.epoch > leases[0].epoch
    ends = (NameEnds("g", "q", "job", 2, 1, 0, (1,)),)
    for said in ({"capacity": 0.0}, {"ends": ends}, {}):
        changed = msgspec.structs.replace(other, **said)
        await other_store.heartbeat(changed, TTL_S)
        assert (await store.heartbeat(me, TTL_S)).workers == (me, changed)
    await other_store.heartbeat(other, 0)
    assert names(await store.heartbeat(me, TTL_S)) == ["w1"]
    await other_store.heartbeat(other, TTL_S)
    assert names(await store.heartbeat(me, TTL_S)) == ["w1", "w2"]


async def test_a_worker_that_falls_silent_is_gone_by_its_end_and_not_before(
    store: Store, other_store: Store
) -> None:
    me, other = counting("w1"), counting("w2")
    last = await other_store.heartbeat(other, 2.0)
    end_us = last.expires_at_us["w2"]
    for before_us in (2_000_000, 500_000, 0):
        await until(store, end_us - before_us)
        seen = await store.heartbeat(me, 2.0)
        assert ("w2" in names(seen)) == (seen.now_us < end_us)
        if end_us - 900_000 < seen.now_us < end_us:
            assert seen.expires_at_us["w2"] == end_us, "its peers look as it comes"
    await other_store.heartbeat(other, 2.0)
    assert names(await store.heartbeat(me, 2.0)) == ["w1", "w2"]


async def test_a_worker_that_comes_back_sees_what_it_lost(store: Store, other_store: Store) -> None:
    await store.heartbeat(counting("w1"), 0.3)
    (held,) = await store.acquire("w1", SHARDS[:1])
    last = await store.heartbeat(counting("w1"), 0.3)
    await other_store.heartbeat(counting("w2"), TTL_S)
    await until(store, last.expires_at_us["w1"])
    assert await other_store.acquire("w2", SHARDS[:1])

    seen = await store.heartbeat(counting("w1"), 60)

    assert names(seen) == ["w1", "w2"]
    assert seen.leases[0].owner == "w2"
    assert seen.leases[0].epoch > held.epoch


async def test_a_worker_whose_row_was_removed_writes_it_anew(
    store: Store, other_store: Store
) -> None:
    await store.heartbeat(counting("w1"), TTL_S)
    await other_store.heartbeat(counting("w1"), 0)  # as peers do with one that is silent
    assert names(await other_store.heartbeat(counting("w2"), TTL_S)) == ["w2"]
    assert names(await store.heartbeat(counting("w1"), TTL_S)) == ["w1", "w2"]
    assert names(await other_store.heartbeat(counting("w2"), TTL_S)) == ["w1", "w2"]


async def test_a_worker_from_before_is_seen_with_all_that_it_does(
    store: Store, other_store: Store, raw: Raw
) -> None:
    """It changes rows and counts nothing."""
    old = worker("w0")
    await other_store.heartbeat(old, TTL_S)
    assert names(await store.heartbeat(counting("w1"), TTL_S)) == ["w0", "w1"]
    (lease,) = await other_store.acquire("w0", SHARDS[:1])
    await store.heartbeat(counting("w1"), TTL_S)
    raw.execute("update late_lease set owner = null, epoch = epoch + 1")
    seen = await store.heartbeat(counting("w1"), TTL_S)
    assert seen.leases == (LeaseView("default", ShardId(0), None, lease.epoch + 1),)
    raw.execute("delete from late_worker where worker_id = 'w0'")
    assert names(await store.heartbeat(counting("w1"), TTL_S)) == ["w1"]


async def test_workers_that_come_and_go_without_a_word_are_seen(
    store: Store, other_store: Store, raw: Raw
) -> None:
    """One from before joins and says nothing to those who are there; a row is removed by hand."""
    await store.heartbeat(counting("w1"), TTL_S)
    await other_store.heartbeat(counting("w2"), TTL_S)
    assert names(await store.heartbeat(counting("w1"), TTL_S)) == ["w1", "w2"]
    raw.execute(
        "insert into late_worker (worker_id, expires_at_us, started_at_us, address,"
        " consumer_groups, capacity, version) select 'w0', expires_at_us, started_at_us,"
        " 'w0:1', consumer_groups, capacity, '1' from late_worker where worker_id = 'w2'"
    )
    assert names(await store.heartbeat(counting("w1"), TTL_S)) == ["w0", "w1", "w2"]
    raw.execute("delete from late_worker where worker_id = 'w0'")
    assert names(await store.heartbeat(counting("w1"), TTL_S)) == ["w1", "w2"]
    raw.execute("delete from late_worker where worker_id = 'w2'")
    assert names(await store.heartbeat(counting("w1"), TTL_S)) == ["w1"]


async def test_a_worker_that_has_resigned_goes_on_to_see_a_large_fleet(
    store: Store, other_store: Store
) -> None:
    peers = [f"w{number:03}" for number in range(ALL_WATCHED + 1)]
    for name in peers:
        await other_store.heartbeat(counting(name), TTL_S)
    assert names(await store.heartbeat(counting("me"), TTL_S)) == ["me", *peers]
    for _ in range(3):
        assert names(await store.heartbeat(counting("me"), 0)) == peers
    assert names(await store.heartbeat(counting("me"), TTL_S)) == ["me", *peers]


async def test_a_reset_of_a_group_shows_with_the_next_heartbeat(store: Store, url: str) -> None:
    await store.heartbeat(counting("w1"), TTL_S)
    held = await store.acquire("w1", SHARDS[:1])
    await store.heartbeat(counting("w1"), TTL_S)

    def reset() -> None:
        with Control(url) as control:
            control.groups.reset("default", "now")

    await asyncio.to_thread(reset)
    seen = await store.heartbeat(counting("w1"), TTL_S)
    assert seen.leases[0].owner is None
    assert seen.leases[0].epoch > held[0].epoch


async def test_in_a_large_fleet_all_see_an_end_that_a_neighbour_saw(
    url: str, store: Store, raw: Raw
) -> None:
    peers = [f"w{number:03}" for number in range(ALL_WATCHED)]
    for name in peers[1:]:
        await store.heartbeat(counting(name), TTL_S)
    async with AsyncExitStack() as closing:
        stores = []
        for _ in range(2):
            stores.append(open_store(url))
            await stores[-1].open()
            closing.push_async_callback(stores[-1].close)
        await store.heartbeat(counting("w000"), 2.0)
        left, right = stores
        last = await store.heartbeat(counting("w000"), 2.0)
        for who, its in (("v", left), ("x", right)):
            assert "w000" in names(await its.heartbeat(counting(who), TTL_S))
        await until(store, last.expires_at_us["w000"])
        assert "w000" not in names(await left.heartbeat(counting("v"), TTL_S)), "its neighbour"
        seen = await right.heartbeat(counting("x"), TTL_S)
        assert names(seen) == ["v", *peers[1:], "x"]


async def test_a_kept_view_is_the_same_as_a_new_one(url: str) -> None:
    """Some workers do what comes, at the same time; then each sees what somebody new sees."""
    rng, people = random.Random(7), [f"w{number}" for number in range(4)]
    async with AsyncExitStack() as closing:
        stores = {}
        for name in people:
            stores[name] = open_store(url)
            await stores[name].open()
            closing.push_async_callback(stores[name].close)
        said = {name: counting(name) for name in people}
        for name in people:
            await stores[name].heartbeat(said[name], TTL_S)

        async def act(name: str) -> None:
            act = rng.choice(["acquire", "release", "say", "leave", "nothing"])
            if act == "acquire":
                await stores[name].acquire(name, rng.sample(SHARDS, 2))
            elif act == "release":
                held = await stores[name].acquire(name, rng.sample(SHARDS, 1))
                await stores[name].release(held)
            elif act == "say":
                capacity = float(rng.randrange(3))
                said[name] = msgspec.structs.replace(said[name], capacity=capacity)
            elif act == "leave":
                await stores[name].heartbeat(said[name], 0)
            if act != "nothing":
                await stores[name].heartbeat(said[name], TTL_S)

        for _ in range(12):
            await asyncio.gather(*(act(name) for name in people))
            fresh = open_store(url)
            await fresh.open()
            new = await fresh.heartbeat(said["w0"], TTL_S)
            await fresh.close()
            for name in people:
                seen = await stores[name].heartbeat(said[name], TTL_S)
                assert seen.workers == new.workers == tuple(said[each] for each in people)
                assert seen.leases == new.leases
                assert set(seen.expires_at_us) == set(people)
