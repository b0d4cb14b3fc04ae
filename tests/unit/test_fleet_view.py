"""The fleet as one worker keeps it between heartbeats."""

from __future__ import annotations

from late.store.base import CHANGES, Membership
from late.store.common.fleet_view import ALL_WATCHED, FULL_S, FleetView, Numbers

TTL_S = 5.0
TTL_US = 5_000_000
FULL_US = round(FULL_S * 1_000_000)
NONE: list[tuple[str, int]] = []


def row(name: str, end_us: int, version: str = CHANGES) -> tuple[object, ...]:
    return (name, "host:1", '["g"]', 1.0, version, None, end_us)


def known(*names: str, now_us: int = 0, version: str = CHANGES) -> FleetView:
    """A view that has read workers with leases of five seconds, and one lease of the first."""
    view = FleetView()
    assert view.outdated(now_us, Numbers(1, 1), NONE, None)
    view.pass_time(now_us, NONE, TTL_S)
    view.read(
        *(Numbers(1, 1), 40),
        [row(name, now_us + TTL_US, version) for name in names],
        [("g", 0, names[0], 1)],
        now_us,
    )
    view.membership(now_us, "me", now_us + TTL_US)
    return view


def passed(view: FleetView, now_us: int, ends: list[tuple[str, int]]) -> Membership:
    view.pass_time(now_us, ends, TTL_S)
    return view.membership(now_us, "me", now_us + TTL_US)


def names(seen: Membership) -> list[str]:
    return [each.worker_id for each in seen.workers]


def test_equal_numbers_need_no_reading() -> None:
    view = known("me", "w1")
    for now_us in (0, 1_000_000):
        assert not view.outdated(now_us, Numbers(1, 1), NONE, None)
    assert view.outdated(1_000_000, Numbers(1, 2), NONE, None)
    assert not view.wants_workers(Numbers(1, 2))
    assert view.since == 40, "what has changed is enough"
    assert view.outdated(1_000_000, Numbers(2, 1), NONE, None)
    assert view.wants_workers(Numbers(2, 1))


def test_all_is_read_again_after_a_change_of_a_group() -> None:
    view = known("me", "w1")
    assert view.outdated(1, Numbers(1, 1, "2"), NONE, None)
    assert view.since == 0


def test_all_is_read_again_after_a_while() -> None:
    view = known("me", "w1")
    assert not view.outdated(FULL_US - 1, Numbers(1, 1), NONE, None)
    assert view.outdated(FULL_US, Numbers(1, 1), NONE, None)
    assert view.since == 0
    assert view.wants_workers(Numbers(1, 1))


def test_all_is_read_while_a_peer_does_not_count_its_changes() -> None:
    view = known("me", "old", version="0.1.0+placement.2")
    assert view.outdated(1, Numbers(1, 1), NONE, None)
    assert view.since == 0


def test_all_is_read_when_the_clock_was_set_back_and_for_a_stranger() -> None:
    assert known("me", now_us=10).outdated(9, Numbers(1, 1), NONE, None)
    assert known("me").outdated(1, Numbers(1, 1), [("stranger", 2)], None)
    assert not known("me").outdated(1, Numbers(1, 1), [("stranger", 1)], None), "it is over"


def test_all_is_read_when_more_or_fewer_live_than_are_known() -> None:
    assert not known("me", "w1").outdated(1, Numbers(1, 1), NONE, 2)
    for live in (1, 3):
        view = known("me", "w1")
        assert view.outdated(1, Numbers(1, 1), NONE, live)
        assert view.since == 0
    over, soon = [("w1", 1)], [("w1", 2)]
    assert not known("me", "w1").outdated(1, Numbers(1, 1), over, 1), "its end is known"
    assert known("me", "w1").outdated(1, Numbers(1, 1), over, 2), "another one has come"
    assert not known("me", "w1").outdated(1, Numbers(1, 1), soon, 2)
    assert not known("me", "w1").outdated(1, Numbers(1, 1), [("stranger", 1)], 2), "never known"


def test_a_worker_whose_lease_ends_is_gone_and_the_others_stay() -> None:
    view = known("me", "w1", "w2")
    seen = passed(view, 1_000_000, NONE)
    assert names(seen) == ["me", "w1", "w2"]
    assert seen.expires_at_us == {"me": 6_000_000, "w1": 6_000_000, "w2": 6_000_000}
    seen = passed(view, 4_000_000, [("w1", 5_000_000)])
    assert names(seen) == ["me", "w1", "w2"]
    assert seen.expires_at_us["w1"] == 5_000_000, "its peers look when it ends"
    seen = passed(view, 5_000_000, [("w1", 5_000_000)])
    assert names(seen) == ["me", "w2"]
    assert names(passed(view, 6_000_000, NONE)) == ["me", "w2"]


def test_leases_that_changed_take_the_place_of_the_old_ones() -> None:
    view = known("me", "w1")
    view.pass_time(1, NONE, TTL_S)
    view.read(Numbers(1, 2), 50, None, [("g", 0, None, 1), ("a", 3, "w1", 9)], 1)
    seen = view.membership(1, "me", TTL_US)
    assert [(x.group, x.shard_id, x.owner, x.epoch) for x in seen.leases] == [
        ("a", 3, "w1", 9),
        ("g", 0, None, 1),
    ]
    assert names(seen) == ["me", "w1"]
    assert view.since == 50


def test_numbers_that_were_read_without_workers_say_nothing_of_them() -> None:
    view = known("me", "w1")
    view.read(Numbers(7, 2), 50, None, [], 1)
    assert view.outdated(1, Numbers(7, 2), NONE, None)
    assert view.wants_workers(Numbers(7, 2))


def test_leases_that_are_gone_go_with_the_next_reading_of_all() -> None:
    view = known("me")
    assert view.outdated(FULL_US, Numbers(1, 1), NONE, None)
    view.pass_time(FULL_US, NONE, TTL_S)
    view.read(Numbers(1, 1), 60, [row("me", FULL_US + TTL_US)], [], FULL_US)
    assert view.membership(FULL_US, "me", FULL_US + TTL_US).leases == ()


def test_a_worker_that_leaves_is_not_in_its_own_view() -> None:
    view = known("me", "w1")
    view.pass_time(1, [("w1", TTL_US)], 0.0)
    assert names(view.membership(1, "me", None)) == ["w1"]


def test_in_a_large_fleet_a_neighbour_tells_of_an_end() -> None:
    few = [f"w{number}" for number in range(ALL_WATCHED)]
    assert not known(*few).ring
    assert not known(*few).dead(6_000_000, [("w1", 6_000_000)]), "all see it"
    view = known(*few, "me")
    assert view.ring
    assert view.dead(6_000_000, [("w1", 6_000_000)])
    assert not view.dead(5_999_999, [("w1", 6_000_000)])
    assert not view.dead(6_000_000, [("stranger", 6_000_000)])
    passed(view, 6_000_000, [("w1", 6_000_000)])
    assert not view.dead(6_000_000, [("w1", 6_000_000)]), "it is told once"
