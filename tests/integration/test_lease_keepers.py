"""Keepers and heartbeats on real stores: shards are shared, and move when a worker goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from late.model.task import ShardId
from late.store import open_store
from late.store.base import Lease, Store, WorkerInfo
from late.tailer.heartbeat import Heartbeat
from late.tailer.lease_keeper import LeaseKeeper
from late.tailer.ownership import Key
from late.tailer.placement import announced, place

TTL_S = 3.0
TIMEOUT_S = 120
GROUP = "default"
ALL = {(GROUP, ShardId(shard)) for shard in range(8)}


class Member:
    """One worker as far as ownership goes."""

    def __init__(
        self, url: str, store: Store, name: str, ttl_s: float, standby_s: float = 0.0
    ) -> None:
        self.name = name
        self.settled: list[Key] = []
        self.acquired: list[Lease] = []
        self.lost: list[Key] = []
        self.keeper = LeaseKeeper(
            store,
            name,
            on_acquired=self.acquired.extend,
            before_release=self.before_release,
            on_lost=self.lost.append,
            on_distrusted=lambda: None,
            hurry=lambda: self.heartbeat.hurry(),
            announce=lambda place: self.heartbeat.announce(announced("1", place=place)),
            ttl_s=ttl_s,
            standby_s=standby_s,
        )
        self.heartbeat = Heartbeat(
            url,
            WorkerInfo(name, "host:1", (GROUP,), version=announced("1", standby=standby_s > 0)),
            ttl_s=ttl_s,
            every_s=0.2,
            on_membership=self.keeper.observe,
        )

    async def leave(self) -> None:
        """As a worker that stops: say so, and hand over what peers then wait for."""
        self.heartbeat.leave()
        await self.keeper.leave(0.4)
        await self.keeper.hand_over(self.keeper.leases)

    async def before_release(self, keys: list[Key]) -> None:
        assert set(keys) <= set(self.keeper.leases), "still ours while it is settled"
        self.settled.extend(keys)

    async def holds(self, keys: set[Key]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while set(self.keeper.leases) != keys:  # noqa: ASYNC110 -- nothing tells of a release
                await asyncio.sleep(0.01)


@asynccontextmanager
async def member(
    url: str, name: str, ttl_s: float = TTL_S, standby_s: float = 0.0
) -> AsyncIterator[Member]:
    """A member that stops cleanly at the end: leases first, heartbeat last."""
    store = open_store(url)
    await store.open()
    made = Member(url, store, name, ttl_s, standby_s)
    run = asyncio.create_task(made.keeper.run())
    made.heartbeat.start()
    try:
        yield made
    finally:
        made.keeper.stop()
        await run
        await made.keeper.release_all()
        await asyncio.to_thread(made.heartbeat.stop)
        await store.close()


def placed(name: str, *names: str) -> set[Key]:
    owner_of = place([f"{group}/{shard}" for group, shard in ALL], dict.fromkeys(names, 1.0))
    return {key for key in ALL if owner_of[f"{key[0]}/{key[1]}"] == name}


async def test_a_lone_worker_holds_everything(url: str) -> None:
    async with member(url, "a") as a:
        await a.holds(ALL)
        assert {(lease.group, lease.shard_id) for lease in a.acquired} == ALL
        assert a.keeper.trusted
        assert a.keeper.lowest_shard(GROUP) == 0


async def test_two_workers_share_and_a_stopped_one_hands_over_at_once(url: str) -> None:
    """With a ttl of an hour: nothing that had to expire would move within the test's time."""
    async with member(url, "a", ttl_s=3600) as a:
        await a.holds(ALL)
        async with member(url, "b", ttl_s=3600) as b:
            await b.holds(placed("b", "a", "b"))
            await a.holds(placed("a", "a", "b"))
            assert set(a.settled) == placed("b", "a", "b"), "settled before it was released"
        await a.holds(ALL)
        assert a.lost == b.lost == []


async def test_a_standby_takes_over_from_the_one_that_leaves_and_nothing_else_moves(
    url: str, store: Store
) -> None:
    """Twice: the one that took the place hands it on. Again nothing has to expire."""
    async with AsyncExitStack() as stack:

        async def join(name: str, standby_s: float) -> Member:
            return await stack.enter_async_context(
                member(url, name, ttl_s=3600, standby_s=standby_s)
            )

        a, b = await join("a", 0), await join("b", 0)
        await a.holds(placed("a", "a", "b"))
        await b.holds(placed("b", "a", "b"))
        acquired = len(b.acquired)
        for name in ("c", "d"):
            new = await join(name, 3600)
            async with asyncio.timeout(TIMEOUT_S):
                # Not in view, it could only join at the end of the wait.
                while name not in b.keeper.others(GROUP):  # noqa: ASYNC110 -- as above
                    await asyncio.sleep(0.01)
            await a.leave()
            await new.holds(placed("a", "a", "b"))
            assert len(new.acquired) == len(new.keeper.leases)
            await asyncio.to_thread(a.heartbeat.stop)
            a = new
        assert len(b.acquired) == acquired
        assert b.lost == []
        assert set(b.keeper.leases) == placed("b", "a", "b")


async def test_three_workers_agree(url: str) -> None:
    names = ("a", "b", "c")
    async with AsyncExitStack() as stack:
        members = [await stack.enter_async_context(member(url, name)) for name in names]
        for each in members:
            await each.holds(placed(each.name, *names))
        keys = [key for each in members for key in each.keeper.leases]
        assert sorted(keys) == sorted(ALL)


async def test_the_shards_of_a_killed_worker_move_after_its_ttl_and_not_before(
    url: str, store: Store
) -> None:
    """A killed worker is one whose heartbeats stop without a good-bye."""
    killed = WorkerInfo("killed", "host:2", (GROUP,), version=announced("1"))
    beaten = await store.heartbeat(killed, TTL_S)
    leases = await store.acquire("killed", sorted(placed("killed", "a", "killed")))
    assert leases
    async with member(url, "a") as a:
        # It lives until the other one has its share: a busy machine may take seconds for that.
        while set(a.keeper.leases) != placed("a", "a", "killed"):
            beaten = await store.heartbeat(killed, TTL_S)
            await asyncio.sleep(0.05)
        await a.holds(ALL)
        assert await store.now() >= beaten.now_us + TTL_S * 1e6
        taken = {lease.shard_id: lease for lease in a.acquired}
        assert all(taken[lease.shard_id].epoch > lease.epoch for lease in leases)


async def test_a_worker_whose_shards_were_taken_learns_of_it(url: str, store: Store) -> None:
    async with member(url, "a") as a:
        await a.holds(ALL)
        # What a takeover during a long pause leaves behind: the row of the worker has expired,
        # and a peer has acquired. Only then does the paused worker's heartbeat come through.
        taken: list[Lease] = []
        while not taken:  # a heartbeat of `a` may come in between and keep its shards
            b = WorkerInfo("b", "host:2", (GROUP,), version=announced("1"))
            await store.heartbeat(b, TTL_S)
            await store.heartbeat(WorkerInfo("a", "host:1", (GROUP,)), 0)
            taken = await store.acquire("b", sorted(placed("b", "a", "b")))
        keys = {(lease.group, lease.shard_id) for lease in taken}
        async with asyncio.timeout(TIMEOUT_S):
            while keys & set(a.keeper.leases):  # noqa: ASYNC110 -- nothing tells of a view
                await asyncio.sleep(0.01)
        await a.holds(ALL)  # b is silent: its shards come back after the ttl
        assert keys <= set(a.lost) | set(a.settled)
