"""The keeper under a virtual clock: trust, hand-over, losses, and answers that got lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from late.errors import StoreClosed, StoreRefused, StoreUnavailable
from late.events import Emitter, Event
from late.store.base import Lease, LeaseView, Membership, WorkerInfo
from late.tailer.keeper import HURRIES_MAX, Keeper
from late.tailer.membership import QUARANTINE_US
from late.tailer.ownership import Key
from late.tailer.placement import owner
from late.task import Cursor, Epoch, ShardId
from late.testing.clock import VirtualClock

GROUP = "default"
TTL_S = 5.0


class Leases:
    """A lease table and its two statements; faults are scripted."""

    def __init__(self) -> None:
        self.owners: dict[Key, str | None] = {}
        self.epochs: dict[Key, int] = {}
        self.live = {"me"}
        self.calls: list[tuple[str, list[int]]] = []
        self.faults: list[Exception] = []
        self.lose_answers = 0
        self.acquire_gate = asyncio.Event()
        self.acquire_gate.set()

    async def acquire(self, worker_id: str, shards: Sequence[Key]) -> list[Lease]:
        self.calls.append(("acquire", [shard for _, shard in shards]))
        await self.acquire_gate.wait()
        if self.faults:
            raise self.faults.pop(0)
        granted = []
        for key in shards:
            if self.owners.get(key) in self.live - {worker_id}:
                continue
            self.owners[key] = worker_id
            self.epochs[key] = self.epochs.get(key, 0) + 1
            epoch = Epoch(self.epochs[key])
            granted.append(Lease(key[0], key[1], worker_id, epoch, 1, Cursor(""), (), {}))
        if self.lose_answers:
            self.lose_answers -= 1
            raise StoreUnavailable("connection lost at commit")
        return granted

    async def release(self, leases: Sequence[Lease]) -> None:
        self.calls.append(("release", [lease.shard_id for lease in leases]))
        await asyncio.sleep(0)
        if self.faults:
            raise self.faults.pop(0)
        for lease in leases:
            key = (lease.group, lease.shard_id)
            if self.owners[key] == lease.owner and self.epochs[key] == lease.epoch:
                self.owners[key] = None

    def take(self, key: Key, who: str) -> None:
        self.owners[key] = who
        self.epochs[key] += 1


class Fleet:
    """One keeper, the views that are shown to it, and all that it says."""

    def __init__(self, clock: VirtualClock, shards: int = 8, **options: Any) -> None:
        self.clock = clock
        self.store = Leases()
        self.shards = tuple(ShardId(shard) for shard in range(shards))
        self.said: list[tuple[str, Any]] = []
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.settled = asyncio.Event()
        self.settled.set()
        self.busy: dict[int, asyncio.Event] = {}
        emitter = Emitter()
        emitter.subscribe(self.listen)
        self.keeper = Keeper(
            self.store,
            "me",
            on_acquired=lambda leases: self.said.append(
                ("acquired", [lease.shard_id for lease in leases])
            ),
            before_release=self.before_release,
            on_lost=lambda key: self.said.append(("lost", key[1])),
            on_distrusted=lambda: self.said.append(("distrusted", clock.monotonic())),
            on_trusted=lambda: self.said.append(("trusted", clock.monotonic())),
            hurry=lambda: self.said.append(("hurry", None)),
            monotonic=clock.monotonic,
            emitter=emitter,
            **options,
        )

    def listen(self, event: Event, values: Mapping[str, Any]) -> None:
        self.heard.append((event.name, dict(values)))

    async def before_release(self, keys: list[Key]) -> None:
        self.said.append(("before_release", [shard for _, shard in keys]))
        for _, shard in keys:
            await self.busy.get(shard, self.settled).wait()

    def view(self, *peers: str, now_s: float | None = None, leaving: bool = False) -> Membership:
        self.store.live = {"me", *peers}
        workers = tuple(
            WorkerInfo(name, "host:1", (GROUP,), 0.0 if leaving and name == "me" else 1.0)
            for name in sorted(self.store.live)
        )
        leases = tuple(
            LeaseView(group, shard, who, Epoch(self.store.epochs[group, shard]))
            for (group, shard), who in sorted(self.store.owners.items())
        )
        now_s = self.clock.monotonic() if now_s is None else now_s
        return Membership(int(now_s * 1e6), workers, leases, self.shards)

    async def show(self, view: Membership, trusted_for_s: float = TTL_S) -> None:
        """Deliver a view and let everything happen that follows from it."""
        self.keeper.observe(view, self.clock.monotonic() + trusted_for_s)
        await asyncio.sleep(0.001)

    def held(self) -> list[int]:
        return [shard for _, shard in sorted(self.keeper.leases)]

    def names(self) -> list[str]:
        return [name for name, _ in self.said]


@asynccontextmanager
async def running(fleet: Fleet) -> AsyncIterator[None]:
    task = asyncio.create_task(fleet.keeper.run())
    try:
        yield
    finally:
        fleet.keeper.stop()
        await task


def placed(name: str, names: Iterable[str], shards: int = 8) -> list[int]:
    weights = dict.fromkeys(names, 1.0)
    return [shard for shard in range(shards) if owner(f"{GROUP}/{shard}", weights) == name]


def key(shard: int) -> Key:
    return (GROUP, ShardId(shard))


async def test_the_first_view_is_acted_upon_at_once_a_few_shards_at_a_time() -> None:
    with VirtualClock() as clock:
        fleet = Fleet(clock, shards=10)
        assert not fleet.keeper.trusted
        assert fleet.keeper.lowest_shard is None
        async with running(fleet):
            await fleet.show(fleet.view())
            assert fleet.keeper.trusted
            assert fleet.keeper.lowest_shard == 0
            assert fleet.said == [
                ("trusted", 0.0),
                ("acquired", [0, 1, 2, 3]),
                ("acquired", [4, 5, 6, 7]),
                ("acquired", [8, 9]),
            ]
            assert [name for name, _ in fleet.heard] == ["lease_acquired"] * 10
            await fleet.show(fleet.view())
            assert len(fleet.store.calls) == 3, "nothing is left to do"


async def test_shards_of_a_peer_are_settled_first_and_released_then() -> None:
    with VirtualClock() as clock:
        fleet = Fleet(clock)
        async with running(fleet):
            await fleet.show(fleet.view())
            fleet.settled.clear()
            theirs, ours = placed("peer", ["me", "peer"]), placed("me", ["me", "peer"])
            await fleet.show(fleet.view("peer"))
            asked = [("before_release", [shard]) for shard in theirs]
            assert fleet.said[-len(asked) :] == asked, "each for itself"
            await fleet.show(fleet.view("peer"))
            assert fleet.names().count("before_release") == len(asked), "asked once"
            assert fleet.held() == list(range(8)), "ours until it is settled"
            fleet.settled.set()
            await asyncio.sleep(0.001)
            assert fleet.store.calls[-1] == ("release", theirs)
            assert fleet.held() == ours


async def test_a_shard_that_is_busy_for_long_holds_no_other_up() -> None:
    with VirtualClock() as clock:
        fleet = Fleet(clock)
        async with running(fleet):
            await fleet.show(fleet.view())
            busy, *quiet = placed("peer", ["me", "peer"])
            fleet.busy = {busy: asyncio.Event()}
            await fleet.show(fleet.view("peer"))
            assert fleet.store.calls[-1] == ("release", quiet)
            fleet.busy[busy].set()
            await asyncio.sleep(0.001)
            assert fleet.store.calls[-1] == ("release", [busy])


async def test_who_leaves_works_on_until_its_peers_have_seen_it() -> None:
    with VirtualClock() as clock:
        fleet = Fleet(clock)
        task = asyncio.create_task(fleet.keeper.run())
        await fleet.show(fleet.view("peer"))
        leaving = asyncio.create_task(fleet.keeper.leave(0.75))
        await asyncio.sleep(0.5)
        assert not leaving.done(), "no view has told of it yet"
        await fleet.show(fleet.view("peer", leaving=True))
        began = clock.monotonic()
        await leaving
        assert clock.monotonic() - began >= 0.74
        assert "before_release" not in fleet.names(), "it has worked on all the while"
        await fleet.keeper.hand_over(fleet.keeper.leases)
        assert fleet.held() == []
        await task


async def test_who_leaves_does_not_wait_for_a_view_for_ever() -> None:
    with VirtualClock() as clock:
        fleet = Fleet(clock)
        await fleet.show(fleet.view("peer"))
        began = clock.monotonic()
        await fleet.keeper.leave(0.75)
        assert 1.4 <= clock.monotonic() - began <= 1.6


async def test_who_leaves_alone_leaves_at_once() -> None:
    with VirtualClock() as clock:
        fleet = Fleet(clock)
        await fleet.keeper.leave(0.75)
        await fleet.show(fleet.view())
        await fleet.keeper.leave(0.75)
        assert clock.monotonic() < 0.1


async def test_a_slow_hand_over_holds_no_takeover_up() -> None:
    with VirtualClock() as clock:
        fleet = Fleet(clock)
        async with running(fleet):
            await fleet.show(fleet.view())
            fleet.settled.clear()
            await fleet.show(fleet.view("peer"))
            fleet.shards = tuple(ShardId(shard) for shard in range(16))
            await fleet.show(fleet.view("peer"))
            mine = [shard for shard in placed("me", ["me", "peer"], 16) if shard >= 8]
            assert set(mine) <= set(fleet.held())
            fleet.settled.set()


async def test_a_release_is_repeated_until_it_is_known() -> None:
    with VirtualClock() as clock:
        fleet = Fleet(clock)
        async with running(fleet):
            await fleet.show(fleet.view())
            fleet.store.faults = [StoreUnavailable("x")] * 5
            await fleet.show(fleet.view("peer"))
            await asyncio.sleep(10)
            assert fleet.held() == placed("me", ["me", "peer"])
            errors = [values for name, values in fleet.heard if name == "store_error"]
            assert len(errors) == 5
            assert {values["component"] for values in errors} == {"keeper"}


async def test_what_was_lost_during_a_hand_over_is_not_released() -> None:
    with VirtualClock() as clock:
        fleet = Fleet(clock)
        async with running(fleet):
            await fleet.show(fleet.view())
            fleet.settled.clear()
            theirs = placed("peer", ["me", "peer"])
            await fleet.show(fleet.view("peer"))
            fleet.store.take(key(theirs[0]), "peer")
            await fleet.show(fleet.view("peer"))
            fleet.settled.set()
            await asyncio.sleep(0.001)
            assert ("release", theirs[1:]) in fleet.store.calls
            assert ("lost", theirs[0]) in fleet.said


async def test_trust_ends_by_the_monotonic_clock_and_comes_back_with_a_view() -> None:
    with VirtualClock() as clock:
        fleet = Fleet(clock)
        async with running(fleet):
            await fleet.show(fleet.view(), 4.5)
            await asyncio.sleep(2)
            await fleet.show(fleet.view(), 4.5)  # a heartbeat extends it
            await asyncio.sleep(4.4)
            assert "distrusted" not in fleet.names()
            await asyncio.sleep(60)
            ends = [at for name, at in fleet.said if name == "distrusted"]
            assert ends == [pytest.approx(2.001 + 4.5, abs=1e-3)]
            assert not fleet.keeper.trusted
            await fleet.show(fleet.view(), 4.5)
            assert fleet.names()[-1] == "trusted"
            assert [name for name, _ in fleet.heard][-2:] == ["trust_lost", "trust_regained"]


async def test_after_a_pause_losses_are_told_before_trust() -> None:
    """Given a process that was paused while a peer took its shards, when it wakes up, then it is
    distrusted before any callback, and learns of its losses before it is trusted again."""
    with VirtualClock() as clock:
        fleet = Fleet(clock)
        async with running(fleet):
            await fleet.show(fleet.view())
            clock.advance(60)
            assert not fleet.keeper.trusted, "at once, no callback has run"
            for shard in (2, 5):
                fleet.store.take(key(shard), "peer")
            await asyncio.sleep(0.001)
            await fleet.show(fleet.view("peer"))
            tail = fleet.said[fleet.names().index("distrusted") :]
            assert [entry[0] for entry in tail[:4]] == ["distrusted", "lost", "lost", "trusted"]
            assert [shard for name, shard in tail if name == "lost"] == [2, 5]


async def test_a_view_that_comes_too_late_gives_no_trust() -> None:
    with VirtualClock() as clock:
        fleet = Fleet(clock)
        async with running(fleet):
            await fleet.show(fleet.view(), trusted_for_s=-0.1)
            assert fleet.said == []
            assert fleet.store.calls == []


async def test_nothing_is_acquired_once_trust_has_ended() -> None:
    with VirtualClock() as clock:
        fleet = Fleet(clock, takeovers_max=1)
        fleet.store.acquire_gate.clear()
        async with running(fleet):
            await fleet.show(fleet.view())
            await asyncio.sleep(TTL_S)
            fleet.store.acquire_gate.set()
            await asyncio.sleep(1)
            assert fleet.store.calls == [("acquire", [0])]


async def test_a_newer_view_replaces_the_rest_of_an_older_plan() -> None:
    with VirtualClock() as clock:
        fleet = Fleet(clock, takeovers_max=1)
        fleet.store.acquire_gate.clear()
        async with running(fleet):
            await fleet.show(fleet.view())
            await fleet.show(fleet.view("peer"))
            fleet.store.acquire_gate.set()
            await asyncio.sleep(0.01)
            asked = [shard for _, shards in fleet.store.calls for shard in shards]
            assert set(asked) == {0, *placed("me", ["me", "peer"])}


async def test_an_old_view_takes_nothing_away() -> None:
    with VirtualClock() as clock:
        fleet = Fleet(clock)
        async with running(fleet):
            before = fleet.view()
            await fleet.show(before)
            await fleet.show(before)
            assert "lost" not in fleet.names()
            assert fleet.held() == list(range(8))
            theirs = placed("peer", ["me", "peer"])
            while_held = fleet.view("peer")
            await fleet.show(while_held)
            calls = len(fleet.store.calls)
            await fleet.show(while_held)  # shows us as the owner of what we have released
            assert len(fleet.store.calls) == calls
            assert not set(theirs) & set(fleet.held())


@pytest.mark.parametrize("peers", [[], ["peer"]])
async def test_a_grant_whose_answer_was_lost_is_asked_for_again(peers: list[str]) -> None:
    """Also when the shard belongs to a peer by now: it waits for us, since we are alive."""
    with VirtualClock() as clock:
        fleet = Fleet(clock, takeovers_max=100)
        fleet.store.lose_answers = 1
        async with running(fleet):
            await fleet.show(fleet.view())
            assert fleet.held() == []
            assert set(fleet.store.owners.values()) == {"me"}
            await fleet.show(fleet.view(*peers))
            await fleet.show(fleet.view(*peers))
            assert fleet.held() == placed("me", ["me", *peers])
            assert all(
                who == ("me" if shard in fleet.held() else None)
                for (_, shard), who in fleet.store.owners.items()
            )


async def test_what_the_worker_dropped_is_acquired_anew() -> None:
    with VirtualClock() as clock:
        fleet = Fleet(clock)
        async with running(fleet):
            await fleet.show(fleet.view())
            fleet.keeper.forget(key(3))
            fleet.keeper.forget(key(99))
            await fleet.show(fleet.view())
            assert fleet.said[-1] == ("acquired", [3])
            fleet.keeper.forget(key(3))
            shared = placed("peer", ["me", "peer"])
            await fleet.show(fleet.view("peer"))
            await fleet.show(fleet.view("peer"))
            assert {fleet.store.owners[key(shard)] for shard in shared} == {None}


async def test_a_shard_that_a_peer_holds_is_looked_for_soon_but_not_for_ever() -> None:
    with VirtualClock() as clock:
        fleet = Fleet(clock)
        mine = placed("me", ["me", "peer"])
        for shard in range(8):
            fleet.store.owners[key(shard)] = "peer"
            fleet.store.epochs[key(shard)] = 1
        async with running(fleet):
            for _ in range(HURRIES_MAX + 10):
                await fleet.show(fleet.view("peer"))
            assert fleet.names().count("hurry") == HURRIES_MAX
            fleet.store.owners[key(mine[0])] = None
            await fleet.show(fleet.view("peer"))
            assert fleet.held() == [mine[0]]
            await fleet.show(fleet.view("peer"))
            assert fleet.names().count("hurry") > HURRIES_MAX, "something moved: look again"


async def test_nothing_is_given_up_for_a_peer_that_flaps() -> None:
    with VirtualClock() as clock:
        fleet = Fleet(clock)
        async with running(fleet):
            await fleet.show(fleet.view("peer", now_s=0))
            await fleet.show(fleet.view(now_s=1))
            held = fleet.held()
            assert held == list(range(8)), "it was gone, its shards were free"
            for now_s in (2, 4, 20):
                await fleet.show(fleet.view("peer", now_s=now_s))
                assert fleet.held() == held
            await fleet.show(fleet.view("peer", now_s=2 + QUARANTINE_US / 1e6))
            assert fleet.held() == placed("me", ["me", "peer"])


async def test_an_error_while_acquiring_is_tried_again_with_the_next_view() -> None:
    with VirtualClock() as clock:
        fleet = Fleet(clock)
        fleet.store.faults = [StoreUnavailable("x")]
        async with running(fleet):
            await fleet.show(fleet.view())
            assert fleet.held() == []
            assert [name for name, _ in fleet.heard] == ["store_error"]
            await fleet.show(fleet.view())
            assert fleet.held() == list(range(8))


async def test_an_error_that_is_not_transient_ends_the_run() -> None:
    with VirtualClock() as clock:
        fleet = Fleet(clock)
        fleet.store.faults = [StoreClosed("closed")]
        task = asyncio.create_task(fleet.keeper.run())
        await asyncio.sleep(0)
        await fleet.show(fleet.view())
        with pytest.raises(ExceptionGroup) as caught:
            await task
        assert caught.group_contains(StoreClosed)


async def test_a_grant_under_an_old_epoch_is_of_another_database() -> None:
    with VirtualClock() as clock:
        fleet = Fleet(clock)
        task = asyncio.create_task(fleet.keeper.run())
        await asyncio.sleep(0)
        await fleet.show(fleet.view())
        # When the tables were made again, and the worker's settlement there has been fenced
        fleet.store.owners.clear()
        fleet.store.epochs.clear()
        fleet.keeper.forget(key(3))
        await fleet.show(fleet.view())
        # Then it ends: what it has in memory could not be told from what is new
        with pytest.raises(ExceptionGroup) as caught:
            await task
        assert caught.group_contains(StoreRefused, match="start the workers anew")


async def test_a_stop_lets_hand_overs_end_and_then_gives_everything_back() -> None:
    with VirtualClock() as clock:
        fleet = Fleet(clock)
        task = asyncio.create_task(fleet.keeper.run())
        await asyncio.sleep(0)
        await fleet.show(fleet.view())
        fleet.settled.clear()
        await fleet.show(fleet.view("peer"))
        fleet.keeper.stop()
        fleet.keeper.stop()
        await asyncio.sleep(1)
        assert not task.done(), "a hand-over is under way"
        fleet.settled.set()
        await task
        fleet.store.faults = [StoreUnavailable("x")] * 3
        await fleet.keeper.release_all()
        await fleet.keeper.release_all()
        assert fleet.held() == []
        assert set(fleet.store.owners.values()) == {None}
        await fleet.show(fleet.view())
        assert fleet.held() == [], "nothing is taken after a stop"


async def test_stopping_what_never_ran_is_fine() -> None:
    with VirtualClock() as clock:
        fleet = Fleet(clock)
        fleet.keeper.stop()
        await fleet.keeper.run()
        await fleet.keeper.release_all()
        assert fleet.store.calls == []
