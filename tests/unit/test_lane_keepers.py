"""Two keepers of one fleet that serve different lanes: what each takes, keeps and gives up."""

from __future__ import annotations

from contextlib import AsyncExitStack

import msgspec

from late.model.lanes import Lane, Layout
from late.model.task import ShardId
from late.tailer.placement import announced
from late.testing.clock import VirtualClock
from tests.unit.lease_keeper_kit import GROUP, Fleet, Leases, running

LAYOUT = Layout((Lane("bulk", 1024, 2), Lane("default", 0, 4)))
SHARDS = tuple(map(ShardId, (*range(4), 1024, 1025)))
DEFAULT, BULK = [*SHARDS[:4]], [*SHARDS[4:]]
OLD = "0.2.0+changes.1.tells.1.placement.3"


class Two:
    """Keepers `me` and `peer` over one lease table."""

    def __init__(self, clock: VirtualClock, me: str, peer: str, layout: Layout = LAYOUT) -> None:
        self.store = Leases()
        self.versions = {"me": me, "peer": peer}
        self.layout = layout
        self.me, self.peer = (
            Fleet(clock, name=name, store=self.store, layout=lambda: self.layout)
            for name in ("me", "peer")
        )

    async def show(self, *also: str, gone: str = "") -> None:
        """Deliver a view of both, and of other workers, three times: release, acquire, and see."""
        for name, each in 3 * (("me", self.me), ("peer", self.peer)):
            each.shards, each.versions = SHARDS, self.versions
            view = each.view("peer", *also)
            workers = tuple(w for w in view.workers if w.worker_id != gone)
            self.store.live = {w.worker_id for w in workers}
            if name != gone:
                await each.show(msgspec.structs.replace(view, workers=workers))

    def held(self) -> tuple[list[int], list[int]]:
        return self.me.held(), self.peer.held()


async def started(stack: AsyncExitStack, two: Two) -> Two:
    for each in (two.me, two.peer):
        await stack.enter_async_context(running(each))
    return two


def of(*lanes: str) -> str:
    return announced("1", lanes=lanes)


async def test_each_takes_its_lanes_and_leaves_the_others() -> None:
    with VirtualClock() as clock:
        async with AsyncExitStack() as stack:
            two = await started(stack, Two(clock, of("bulk"), of("default")))
            await two.show()
            assert two.held() == (BULK, DEFAULT)
            assert two.me.keeper.lowest_shard(GROUP) == 0, "the peer does the maintenance"
            await two.show(gone="peer")
            assert two.me.keeper.lowest_shard(GROUP) == BULK[0]
            assert two.me.held() == BULK, "nobody serves the lane of the one that died"
            assert two.store.owners["default", SHARDS[0]] == "peer"


async def test_a_worker_of_all_lanes_takes_those_of_the_one_that_died() -> None:
    with VirtualClock() as clock:
        async with AsyncExitStack() as stack:
            two = await started(stack, Two(clock, of("bulk"), of()))
            await two.show()
            assert len(two.me.held()) == 1, "the two shards of bulk are shared"
            assert sorted(two.me.held() + two.peer.held()) == [*SHARDS]
            await two.show(gone="me")
            assert two.peer.held() == [*SHARDS]


async def test_what_it_does_not_serve_is_released_when_the_older_worker_has_gone() -> None:
    with VirtualClock() as clock:
        async with AsyncExitStack() as stack:
            two = await started(stack, Two(clock, of("bulk"), of("bulk")))
            two.versions["older"] = OLD
            await two.show("older")
            assert {*two.me.held(), *two.peer.held()} & {*DEFAULT}, "lanes do not count beside it"
            await two.show()
            assert sorted(two.me.held() + two.peer.held()) == BULK
            owners = {who for (_, shard), who in two.store.owners.items() if shard in DEFAULT}
            assert owners == {None}
            assert "lost" not in two.me.names(), "each was released, after it was settled"


async def test_nothing_is_owned_before_the_lanes_are_known() -> None:
    with VirtualClock() as clock:
        async with AsyncExitStack() as stack:
            two = await started(stack, Two(clock, of("bulk"), of("default"), Layout()))
            await two.show()
            assert two.held() == ([], [])
            two.layout = LAYOUT
            await two.show()
            assert two.held() == (BULK, DEFAULT)


async def test_it_does_not_wait_to_hand_over_what_nobody_else_serves() -> None:
    with VirtualClock() as clock:
        async with AsyncExitStack() as stack:
            two = await started(stack, Two(clock, of("bulk"), of("default")))
            await two.show()
            began = clock.monotonic()
            await two.me.keeper.leave(1.0)
            assert clock.monotonic() == began
            two.versions["peer"] = of("bulk", "default")
            await two.show()
            began = clock.monotonic()
            await two.me.keeper.leave(1.0)
            assert clock.monotonic() >= began + 1.0, "the other one serves them too"
