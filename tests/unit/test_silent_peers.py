"""Workers that are gone while the database's clock keeps their leases alive."""

from __future__ import annotations

import msgspec
import pytest

from late.errors import StoreUnavailable
from late.model.task import ShardId
from late.store.base import Membership, WorkerInfo
from late.tailer.membership import SilentPeers
from late.testing.clock import VirtualClock
from tests.unit.lease_keeper_kit import Fleet, running

TTL_S = 5
JUMPS = pytest.mark.parametrize("jump_s", [-86_400, -600, -10, 0, 10, 600])


class Clocks:
    """Peers that renew their leases once a second, the database's clock, and one who looks on."""

    def __init__(self, *peers: str, unknown_s: float = 60.0) -> None:
        self.silent = SilentPeers(TTL_S, unknown_s)
        self.database_s = 10_000_000.0
        self.monotonic_s = 50.0
        self.ends_s = dict.fromkeys(peers, 0.0)
        self.alive = set(peers)

    def second(self, *, late_s: float = 0.0) -> list[str]:
        """All but the one who looks on send a heartbeat; its view comes `late_s` after it is read,
        while its clock and the database's go on."""
        self.database_s += 1
        self.monotonic_s += 1
        for peer in self.alive:
            self.ends_s[peer] = self.database_s + TTL_S
        ends_us = {name: int(end * 1e6) for name, end in self.ends_s.items()}
        live = [name for name, end_s in sorted(self.ends_s.items()) if end_s > self.database_s]
        view = Membership(
            int(self.database_s * 1e6),
            tuple(WorkerInfo(name, "h:1", ("default",)) for name in live),
            (),
            (ShardId(0),),
            expires_at_us=ends_us,
        )
        asked_s = self.monotonic_s
        self.database_s += late_s
        self.monotonic_s += late_s
        gone = self.silent.observe(view, asked_s, self.monotonic_s)
        return [worker.worker_id for worker in gone]

    def seconds(self, count: int) -> list[list[str]]:
        return [self.second() for _ in range(count)]


@JUMPS
def test_who_renews_is_never_gone_whatever_the_clock_does(jump_s: int) -> None:
    clocks = Clocks("a", "b")
    for _ in range(5):
        assert clocks.seconds(7) == [[]] * 7
        clocks.database_s += jump_s


def test_who_has_renewed_while_the_clock_was_set_has_all_that_its_lease_has_left() -> None:
    clocks = Clocks("a")
    clocks.second()
    clocks.alive.remove("a")
    clocks.ends_s["a"] += 1
    clocks.database_s -= 20
    assert clocks.seconds(20) == [[]] * 20


def test_who_died_before_the_clock_went_back_is_gone_when_its_lease_would_be_over() -> None:
    clocks = Clocks("a", "b")
    clocks.seconds(10)
    clocks.alive.remove("a")
    clocks.database_s -= 600
    assert clocks.seconds(20) == [[]] * 6 + [["a"]] * 14


def test_an_end_that_no_lease_can_have_is_not_believed() -> None:
    """Its worker had died before the clock was set back, and the view shows that only now."""
    clocks = Clocks("a", "b")
    clocks.seconds(10)
    clocks.alive.remove("a")
    clocks.ends_s["a"] += 600
    assert clocks.seconds(20) == [[]] * 7 + [["a"]] * 13


def test_a_heartbeat_that_is_seen_after_the_jump_does_not_say_how_long_the_lease_was() -> None:
    clocks = Clocks("a", "b")
    clocks.seconds(10)
    clocks.alive.remove("a")
    clocks.ends_s["a"] += 0.5
    clocks.database_s -= 600
    assert clocks.seconds(20) == [[]] * 7 + [["a"]] * 13


def test_who_died_with_a_clock_that_goes_on_is_gone_by_the_clock_alone() -> None:
    clocks = Clocks("a", "b")
    clocks.seconds(10)
    clocks.alive.remove("a")
    assert clocks.seconds(20) == [[]] * 20


def test_a_watcher_that_has_seen_no_heartbeat_waits_for_long() -> None:
    clocks = Clocks("a", unknown_s=30)
    clocks.alive.clear()
    clocks.ends_s["a"] = clocks.database_s + 600
    assert clocks.seconds(40) == [[]] * 32 + [["a"]] * 8


def test_a_lease_that_was_often_seen_late_is_not_over_earlier() -> None:
    """What was left of the others, when they were seen, says nothing of the last one."""
    clocks = Clocks("a")
    clocks.seconds(3)
    clocks.alive.clear()
    for left_s in (1.5, 1.2, 1.5, 5.0):
        clocks.ends_s["a"] = clocks.database_s + 1 + left_s
        assert clocks.second() == []
    assert clocks.seconds(10) == [[]] * 10


def test_a_watcher_that_was_paused_takes_what_it_sees_then() -> None:
    clocks = Clocks("a")
    clocks.seconds(3)
    clocks.monotonic_s += 500
    clocks.database_s += 500
    assert clocks.seconds(3) == [[]] * 3


def test_a_view_that_comes_late_shows_no_silence() -> None:
    """A loop was blocked, on a busy machine on which heartbeats are late as well."""
    clocks = Clocks("a")
    clocks.seconds(5)
    clocks.alive.clear()
    assert clocks.seconds(2) == [[]] * 2
    assert clocks.second(late_s=5.0) == []
    clocks.alive.add("a")
    assert clocks.seconds(5) == [[]] * 5


@pytest.mark.parametrize("also", [(), ("me",)])
async def test_the_keeper_takes_a_silent_peer_out_of_the_fleet(also: tuple[str, ...]) -> None:
    """And never itself, though it may seem to be as silent."""
    clock = VirtualClock()
    fleet = Fleet(clock)

    async def second(database_s: int, end_s: int) -> None:
        clock.advance(1)
        view = fleet.view("peer", now_s=database_s)
        ends = dict.fromkeys(("peer", *also), end_s * 1_000_000)
        await fleet.show(msgspec.structs.replace(view, expires_at_us=ends))

    async with running(fleet):
        # Given a peer whose heartbeats are seen, and then a clock that goes back by ten minutes
        for second_s in range(1_000, 1_003):
            await second(second_s, second_s + 5)
        # When it renews nothing for as long as it had left, and a second more
        for second_s in range(403, 409):
            await second(second_s, 1_007)
        assert "heartbeat" not in [name for name, _ in fleet.store.calls]
        fleet.store.faults = [StoreUnavailable("away")]
        await second(409, 1_007)
        # Then the database is told, until it has heard of it, and it is looked at again
        [told] = [values for name, values in fleet.heard if name == "store_error"]
        assert told["retry_in_s"] == 0.0
        assert "silent_worker" not in [name for name, _ in fleet.heard]
        await second(410, 1_007)
        left = [asked for name, asked in fleet.store.calls if name == "heartbeat"]
        assert left == [["peer", 0]] * 2
        assert "silent_worker" in [name for name, _ in fleet.heard]
        assert fleet.said[-1] == ("hurry", None)
