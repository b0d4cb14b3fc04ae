"""Who takes and who gives up which shard: pure, so whole fleets are played through here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from late.model.task import Epoch, ShardId
from late.store.base import LeaseView, Membership, WorkerInfo
from late.tailer.membership import QUARANTINE_US, Roster, weights
from late.tailer.ownership import Key, Plan, first_holder, has_heirs, lost, orphans, plan
from late.tailer.placement import agreed, announced, owners, place

GROUP = "default"


def worker(
    name: str, *groups: str, capacity: float = 1.0, version: str = announced("1")
) -> WorkerInfo:
    return WorkerInfo(name, "host:1", groups or (GROUP,), capacity, version)


def view(
    workers: Iterable[WorkerInfo],
    leases: Iterable[tuple[str, int, str | None, int]] = (),
    shards: Iterable[int] = range(16),
    now_us: int = 0,
) -> Membership:
    return Membership(
        now_us,
        tuple(sorted(workers, key=lambda each: each.worker_id)),
        tuple(LeaseView(group, ShardId(s), who, Epoch(epoch)) for group, s, who, epoch in leases),
        tuple(ShardId(shard) for shard in shards),
    )


def keys(*shards: int, group: str = GROUP) -> tuple[Key, ...]:
    return tuple((group, ShardId(shard)) for shard in shards)


def placed(name: str, names: Iterable[str], shards: Iterable[int] = range(16)) -> list[int]:
    shard_of = {f"{GROUP}/{shard}": shard for shard in shards}
    owner_of = place(shard_of, dict.fromkeys(names, 1.0))
    return [shard for key, shard in shard_of.items() if owner_of[key] == name]


def test_a_lone_worker_takes_everything() -> None:
    assert plan("a", view([worker("a")]), set()) == Plan(acquire=keys(*range(16)))


def test_it_takes_only_what_placement_gives_it() -> None:
    fleet = view([worker("a"), worker("b")])
    mine, others = placed("a", "ab"), placed("b", "ab")
    assert mine
    assert others
    assert plan("a", fleet, set()).acquire == keys(*mine)
    assert plan("b", fleet, set()).acquire == keys(*others)


def test_a_released_shard_and_one_of_a_dead_owner_are_free() -> None:
    leases = [(GROUP, 0, None, 3), (GROUP, 1, "dead", 4), (GROUP, 2, "a", 5)]
    assert plan("a", view([worker("a")], leases, range(3)), set()).acquire == keys(0, 1, 2)


def test_a_live_owner_is_waited_for() -> None:
    mine = placed("a", "ab")
    fleet = view([worker("a"), worker("b")], [(GROUP, mine[0], "b", 1)])
    assert plan("a", fleet, set()).awaited == keys(mine[0])
    assert plan("a", fleet, set()).acquire == keys(*mine[1:])


def test_what_belongs_to_a_live_peer_is_released() -> None:
    fleet = view([worker("a"), worker("b")])
    assert plan("a", fleet, set(keys(*range(16)))) == Plan(release=keys(*placed("b", "ab")))


def test_nothing_is_released_to_a_peer_in_quarantine() -> None:
    fleet = view([worker("a"), worker("b")])
    assert plan("a", fleet, set(keys(*range(16))), unsteady={"b"}) == Plan()


def test_nothing_moves_between_others_because_of_a_peer_in_quarantine() -> None:
    """With bounded loads the return of one worker gives its peers other bounds as well."""
    others = [worker(name) for name in "abcdefg"]
    alone, joined = view(others, shards=range(20)), view([*others, worker("h")], shards=range(20))
    held = {each.worker_id: set(plan(each.worker_id, alone, set()).acquire) for each in others}
    planned = {name: plan(name, joined, mine).release for name, mine in held.items()}
    to_h = set(plan("h", joined, set()).acquire)
    assert {key for keys in planned.values() for key in keys} > to_h, "more than h is to have"
    for name, mine in held.items():
        assert plan(name, joined, mine, unsteady={"h"}).release == ()


def test_a_peer_of_another_group_or_without_capacity_gets_nothing() -> None:
    fleet = view([worker("a"), worker("b", "other"), worker("c", capacity=0.0)])
    assert plan("a", fleet, set()).acquire == keys(*range(16))
    assert plan("b", fleet, set()).acquire == keys(*range(16), group="other")
    assert plan("c", fleet, set()) == Plan()
    assert weights(view([worker("x", capacity=float("nan"))]), GROUP) == {}


def test_a_worker_out_of_capacity_gives_all_to_its_peers() -> None:
    fleet = view([worker("a", capacity=0.0), worker("b")])
    assert plan("a", fleet, set(keys(*range(16)))).release == keys(*range(16))


def test_who_is_not_a_member_plans_nothing() -> None:
    assert plan("gone", view([worker("a")]), set(keys(1, 2))) == Plan()


def test_a_shard_that_is_no_longer_listed_is_kept() -> None:
    fleet = view([worker("a"), worker("b")], shards=())
    assert plan("a", fleet, set(keys(*range(16)))) == Plan()


def test_groups_are_placed_apart() -> None:
    both = [worker("a", "x", "y"), worker("b", "x", "y")]
    plans = plan("a", view(both, shards=range(64)), set())
    x = {shard for group, shard in plans.acquire if group == "x"}
    y = {shard for group, shard in plans.acquire if group == "y"}
    assert x != y


def test_a_higher_epoch_proves_a_loss_and_an_older_view_does_not() -> None:
    fleet = view([worker("a"), worker("b")], [(GROUP, 1, "b", 8), (GROUP, 2, "b", 3)])
    mine = {keys(1)[0]: 7, keys(2)[0]: 3, keys(3)[0]: 1}
    assert lost(fleet, mine) == [*keys(1)]
    assert lost(fleet, {}) == []


def test_a_grant_that_was_never_heard_of_is_found() -> None:
    leases = [(GROUP, 1, "a", 5), (GROUP, 2, "a", 5), (GROUP, 3, "b", 9), (GROUP, 4, None, 9)]
    fleet = view([worker("a"), worker("b")], leases)
    known = {keys(1)[0]: 4, keys(2)[0]: 5}
    assert orphans("a", fleet, known) == [*keys(1)]


fleets = st.lists(
    st.tuples(
        st.sampled_from("abcdef"),
        st.sets(st.sampled_from(["g", "h"]), min_size=1),
        st.sampled_from([0.0, 0.5, 1.0, 4.0]),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda each: each[0],
)
holders = st.dictionaries(
    st.tuples(st.sampled_from(["g", "h"]), st.integers(0, 11)),
    st.sampled_from([None, "a", "b", "c", "d", "e", "f", "dead"]),
)
VERSIONS = (announced("1"), "1")
"""Of a worker that bounds loads, and of one from before."""


@given(fleet=fleets, held=holders, old=st.sets(st.sampled_from("abcdef")))
def test_one_view_names_one_taker_and_every_fleet_converges(
    fleet: list[tuple[str, set[str], float]],
    held: dict[tuple[str, int], str | None],
    old: set[str],
) -> None:
    """Given any leases and workers of two versions, when all carry out their plans round by round,
    then at no time two want the same free shard, no shard moves twice, and soon each is where the
    placement that they have in common puts it."""
    workers = [
        worker(name, *sorted(groups), capacity=c, version=VERSIONS[name in old])
        for name, groups, c in fleet
    ]
    shards = range(12)
    groups_of = {each.worker_id: set(each.groups) for each in workers}
    held = {
        key: who for key, who in held.items() if who not in groups_of or key[0] in groups_of[who]
    }
    moves: Counter[tuple[str, int]] = Counter()
    for _ in range(3):
        members = view(workers, [(g, s, who, 1) for (g, s), who in held.items()], shards)
        plans = {}
        for each in workers:
            mine = {(g, ShardId(s)) for (g, s), who in held.items() if who == each.worker_id}
            plans[each.worker_id] = plan(each.worker_id, members, mine)
        wanted = [key for each in plans.values() for key in each.acquire]
        assert len(wanted) == len(set(wanted)), "two workers want the same shard"
        for name, each in plans.items():
            for key in each.release:
                assert held[key] == name
                held[key] = None
            for key in each.acquire:
                assert held.get(key) not in groups_of, "taken from a live worker"
                held[key] = name
                moves[key] += 1
    assert set(moves.values()) <= {1}
    for group in ("g", "h"):
        fleet_weights = weights(members, group)
        number = agreed(each.version for each in workers if each.worker_id in fleet_weights)
        if fleet_weights:
            names = [f"{group}/{shard}" for shard in shards]
            owner_of = owners(names, fleet_weights, number)
            assert owner_of == {name: held[group, int(name[2:])] for name in names}
    assert all(plan(each.worker_id, members, set()).release == () for each in workers)


@given(fleet=fleets, mine=st.sets(st.integers(0, 11)), unsteady=st.sets(st.sampled_from("abcdef")))
def test_a_plan_never_contradicts_itself(
    fleet: list[tuple[str, set[str], float]], mine: set[int], unsteady: set[str]
) -> None:
    workers = [worker(name, *sorted(groups), capacity=c) for name, groups, c in fleet]
    me = workers[0]
    held = {(me.groups[0], ShardId(shard)) for shard in mine}
    made = plan(me.worker_id, view(workers, shards=range(12)), held, unsteady=unsteady)
    assert not set(made.acquire) & (held | set(made.release) | set(made.awaited))
    assert set(made.release) <= held
    assert list(made.acquire) == sorted(made.acquire)


def seen(roster: Roster, now_s: float, *names: str) -> frozenset[str]:
    return roster.observe(view([worker(name) for name in names], now_us=int(now_s * 1e6)))


def test_a_newcomer_is_trusted_and_a_returner_is_not_for_a_while() -> None:
    roster = Roster()
    assert seen(roster, 0, "a") == frozenset()
    assert seen(roster, 1, "a", "b") == frozenset()
    assert seen(roster, 2, "a") == frozenset()
    assert seen(roster, 3, "a", "b") == {"b"}
    assert seen(roster, 32, "a", "b") == {"b"}
    assert seen(roster, 3 + QUARANTINE_US / 1e6, "a", "b") == frozenset()


def test_each_return_begins_the_quarantine_anew() -> None:
    roster = Roster()
    for now_s in range(0, 100, 2):
        seen(roster, now_s, "a", "b")
        seen(roster, now_s + 1, "a")
    assert seen(roster, 101, "a", "b") == {"b"}


def test_who_is_long_gone_is_forgotten() -> None:
    roster = Roster()
    seen(roster, 0, "a", "b")
    for now_s in range(1, 20_000, 100):
        assert seen(roster, now_s, "a", f"passing-{now_s}") == frozenset()
    assert len(roster._gone_us) < 10
    assert seen(roster, 20_000, "a", "b") == frozenset()


def test_a_clock_set_back_ends_the_quarantine_at_worst() -> None:
    roster = Roster()
    seen(roster, 1000, "a", "b")
    seen(roster, 1001, "a")
    seen(roster, 1002, "a", "b")
    assert seen(roster, 5, "a", "b") == frozenset()


def test_an_heir_serves_a_group_of_mine_and_takes_shards() -> None:
    me = worker("a", "x")
    assert has_heirs("a", view([me, worker("b", "x")]))
    assert not has_heirs("a", view([me, worker("b", "y")]))
    assert not has_heirs("a", view([me, worker("b", "x", capacity=0.0)]))
    assert not has_heirs("a", view([me]))
    assert not has_heirs("a", view([worker("b", "x")])), "nobody knows what it serves"


def test_one_worker_of_all_groups_has_the_lowest_shard() -> None:
    fleet = [worker("a", "mail"), worker("b", "index"), worker("c", "audit"), worker("d", "mail")]
    leases = [
        ("mail", 0, "a", 1),
        ("index", 1, "b", 1),
        ("index", 0, "gone", 1),
        ("audit", 0, None, 1),
    ]
    seen = view(fleet, leases)
    assert first_holder(seen) == "b", "gone is not live, and nobody has audit"
    shadows = msgspec.structs.replace(seen, shadows=frozenset({"index"}))
    assert first_holder(shadows) == "a", "a shadow does nothing for others"
    assert first_holder(view(fleet)) is None
