"""The keeper under a virtual clock: trust, hand-over, losses, and answers that got lost."""

from __future__ import annotations

import asyncio

import pytest

from late.errors import StoreClosed, StoreRefused, StoreUnavailable
from late.model.task import ShardId, Suspect, TaskId
from late.tailer.lease_keeper import HURRIES_MAX
from late.tailer.lease_log import SUSPECTS_TOLD
from late.tailer.membership import QUARANTINE_US
from late.testing.clock import VirtualClock
from tests.unit.lease_keeper_kit import GROUP, TTL_S, Fleet, key, placed, running


async def test_the_first_view_is_acted_upon_at_once_a_few_shards_at_a_time() -> None:
    with VirtualClock() as clock:
        fleet = Fleet(clock, shards=10)
        assert not fleet.keeper.trusted
        assert fleet.keeper.lowest_shard(GROUP) is None
        async with running(fleet):
            await fleet.show(fleet.view())
            assert fleet.keeper.trusted
            assert fleet.keeper.lowest_shard(GROUP) == 0
            assert fleet.said == [
                ("trusted", 0.0),
                ("acquired", [0, 1, 2, 3]),
                ("acquired", [4, 5, 6, 7]),
                ("acquired", [8, 9]),
            ]
            assert [name for name, _ in fleet.heard] == ["lease_acquired"] * 10
            await fleet.show(fleet.view())
            assert len(fleet.store.calls) == 3, "nothing is left to do"


async def test_a_takeover_names_the_tasks_that_may_have_killed_the_owner() -> None:
    """Those with deaths, the most of them first; what is only marked has done nothing."""
    with VirtualClock() as clock:
        fleet = Fleet(clock, shards=2)
        deaths = [1, 2, *([1] * SUSPECTS_TOLD)]
        found = [Suspect(TaskId(f"t{number}"), count) for number, count in enumerate(deaths)]
        fleet.store.suspects = {
            key(0): (*found, Suspect(TaskId("marked"), 0, running=True)),
            key(1): (Suspect(TaskId("marked"), 0, running=True),),
        }
        async with running(fleet):
            await fleet.show(fleet.view())
        told = [values for name, values in fleet.heard if name == "suspects_found"]
        assert told == [
            {"suspects": len(found), "group": "default", "shard": 0, "tasks": "t1 t0 t2 t3 t4"}
        ]


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
            assert fleet.names()[-1] == "hurry", "the first view may be from before a takeover"
            await fleet.show(fleet.view(), 4.5)
            assert fleet.names()[-1] == "trusted"
            assert [name for name, _ in fleet.heard][-2:] == ["trust_lost", "trust_regained"]


async def test_who_comes_back_while_a_peer_takes_over_is_not_trusted_in_between() -> None:
    """Given a heartbeat that ran out, when a peer takes a shard between the first one after it and
    the second, then the loss is told before there is trust again."""
    with VirtualClock() as clock:
        fleet = Fleet(clock)
        async with running(fleet):
            await fleet.show(fleet.view(), 4.5)
            await asyncio.sleep(60)
            still_ours = fleet.view("peer")
            fleet.store.take(key(2), "peer")
            await fleet.show(still_ours, 4.5)
            assert not fleet.keeper.trusted
            await fleet.show(fleet.view("peer"), 4.5)
            assert fleet.keeper.trusted
            names = fleet.names()
            assert names.index("lost") < len(names) - 1 - names[::-1].index("trusted")


async def test_who_has_lost_all_is_trusted_by_the_first_heartbeat_after_a_gap() -> None:
    """It holds nothing, and what it was taking is taken: no peer can have it from it."""
    with VirtualClock() as clock:
        fleet = Fleet(clock, shards=1)
        async with running(fleet):
            await fleet.show(fleet.view(), 4.5)
            assert fleet.held() == [0]
            fleet.store.take(key(0), "peer")
            await fleet.show(fleet.view("peer"), 4.5)
            assert fleet.held() == []
            await asyncio.sleep(60)
            await fleet.show(fleet.view("peer"), 4.5)
            assert fleet.keeper.trusted


async def test_two_heartbeats_with_another_gap_between_them_give_no_trust() -> None:
    with VirtualClock() as clock:
        fleet = Fleet(clock)
        async with running(fleet):
            await fleet.show(fleet.view(), 4.5)
            for _ in range(3):
                await asyncio.sleep(60)
                await fleet.show(fleet.view(), 4.5)
                assert not fleet.keeper.trusted


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
            await fleet.show(fleet.view("peer"))
            told = [e for e in fleet.said if e[0] in ("distrusted", "lost", "trusted")]
            tail = told[[name for name, _ in told].index("distrusted") :]
            assert [name for name, _ in tail] == ["distrusted", "lost", "lost", "trusted"]
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


async def test_a_grant_whose_answer_was_overtaken_by_a_loss_is_none() -> None:
    """Given an acquire whose answer is on its way while the process is paused past its lease, when
    a peer takes the shard and a view tells of that first, then nothing begins with that grant."""
    with VirtualClock() as clock:
        fleet = Fleet(clock, shards=1)
        fleet.store.answer_gate.clear()
        async with running(fleet):
            await fleet.show(fleet.view())
            clock.advance(60)
            fleet.store.take(key(0), "peer")
            for _ in range(3):
                await fleet.show(fleet.view("peer"))
            fleet.store.answer_gate.set()
            await asyncio.sleep(0.001)
            assert fleet.held() == []
            assert ("acquired", [0]) not in fleet.said


async def test_what_is_being_acquired_is_not_trusted_by_the_first_view_after_a_gap() -> None:
    """As what is held: a peer may take it over at this moment, and only the next view tells."""
    with VirtualClock() as clock:
        fleet = Fleet(clock, shards=1)
        fleet.store.answer_gate.clear()
        async with running(fleet):
            await fleet.show(fleet.view())
            clock.advance(60)
            still_ours = fleet.view("peer")
            fleet.store.take(key(0), "peer")
            await fleet.show(still_ours)
            assert not fleet.keeper.trusted
            fleet.store.answer_gate.set()
            await asyncio.sleep(0.001)
            await fleet.show(fleet.view("peer"))
            assert fleet.keeper.trusted
            assert fleet.held() == []


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


async def test_what_a_narrower_lane_has_left_is_kept_and_not_counted() -> None:
    with VirtualClock() as clock:
        fleet = Fleet(clock)
        async with running(fleet):
            await fleet.show(fleet.view())
            assert (fleet.keeper.shards_total, fleet.keeper.shards_beyond) == ({"default": 8}, {})
            fleet.shards = fleet.shards[:3]
            await fleet.show(fleet.view())
            assert fleet.held() == list(range(8))
            assert fleet.keeper.shards_total == {"default": 3}
            assert fleet.keeper.shards_beyond == {"default": 5}


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
