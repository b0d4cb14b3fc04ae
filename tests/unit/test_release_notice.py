"""A shard is released when every peer must have seen why."""

from __future__ import annotations

from late.model.task import ShardId
from late.store.postgres import membership
from late.tailer.release_notice import LIST_S, ReleaseNotice
from late.testing.clock import VirtualClock
from tests.unit.lease_keeper_kit import Fleet, key, placed, running

SHARDS = [ShardId(shard) for shard in range(4)]


def test_a_release_waits_until_it_has_been_due_for_long_enough() -> None:
    notice = ReleaseNotice(1.0)
    assert notice.due([key(0)], SHARDS, 10.0) == set()
    assert notice.due([key(0), key(1)], SHARDS, 10.9) == set()
    assert notice.due([key(0), key(1)], SHARDS, 11.0) == {key(0)}
    assert notice.due([key(1)], SHARDS, 12.0) == {key(1)}


def test_one_that_is_not_due_any_more_begins_anew() -> None:
    notice = ReleaseNotice(1.0)
    assert notice.due([key(0)], SHARDS, 10.0) == set()
    assert notice.due([], SHARDS, 10.5) == set()
    assert notice.due([key(0)], SHARDS, 11.0) == set()
    assert notice.due([key(0)], SHARDS, 12.0) == {key(0)}


def test_after_another_list_of_shards_nothing_is_released_for_a_while() -> None:
    notice = ReleaseNotice(3.0)
    assert notice.due([key(0)], SHARDS, 10.0) == set()
    assert notice.due([key(0)], SHARDS[:3], 12.0) == set()
    assert notice.due([key(0)], SHARDS[:3], 14.9 + LIST_S) == set()
    assert notice.due([key(0)], SHARDS[:3], 15.0 + LIST_S) == {key(0)}


def test_no_store_goes_by_an_old_list_for_longer() -> None:
    assert membership.SHARDS_S <= LIST_S


async def test_the_keeper_works_on_until_its_peers_must_know() -> None:
    with VirtualClock() as clock:
        fleet = Fleet(clock, notice=ReleaseNotice(1.0))
        async with running(fleet):
            await fleet.show(fleet.view())
            await fleet.show(fleet.view("peer"))
            assert fleet.held() == list(range(8))
            clock.advance(1.0)
            await fleet.show(fleet.view("peer"))
            assert fleet.held() == placed("me", ["me", "peer"])
