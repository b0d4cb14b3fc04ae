"""Workers that serve some lanes only: who owns which shard. Pure, as `test_ownership.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from late.model.lanes import Lane, Layout
from late.model.task import ShardId
from late.store.base import Membership, WorkerInfo
from late.tailer.ownership import Key, Plan, has_heirs, lowest_shard, plan
from late.tailer.placement import announced, place
from tests.unit.test_ownership import GROUP, keys, view, worker

LAYOUT = Layout((Lane("bulk", 1024, 4), Lane("default", 0, 8), Lane("mail", 2048, 2)))
SHARDS = (*range(8), *range(1024, 1028), 1030, *range(2048, 2050))
"""Those of the lanes, and one that is left of `bulk` when it was wider."""
DEFAULT, BULK, MAIL = SHARDS[:8], SHARDS[8:13], SHARDS[13:]
OLD = "0.2.0+changes.1.tells.1.placement.3"


def of(*lanes: str) -> str:
    return announced("1", lanes=lanes)


def fleet(workers: Mapping[str, str], held: Mapping[int, str | None] | None = None) -> Membership:
    """Return a view of workers by their version, and of who holds which shard."""
    leases = [(GROUP, shard, who, 1) for shard, who in (held or {}).items()]
    return view([worker(name, version=v) for name, v in workers.items()], leases, SHARDS)


def planned(name: str, seen: Membership, mine: Iterable[int] = (), **more: set[str]) -> Plan:
    return plan(name, seen, set(keys(*mine)), layout=LAYOUT, **more)


def owned(workers: Mapping[str, str]) -> dict[str, set[int]]:
    """Return who acquires which shards of a fleet that holds none."""
    seen = fleet(workers)
    return {name: {shard for _, shard in planned(name, seen).acquire} for name in workers}


def test_each_lane_is_shared_by_those_that_serve_it() -> None:
    found = owned({"a": of("default"), "b": of("bulk"), "c": of()})
    assert found["a"] | found["c"] == {*DEFAULT, *(found["c"] - {*DEFAULT})}
    assert found["b"] < {*BULK}
    assert found["c"] >= {*MAIL}
    assert len(found["a"]) == len(found["c"] & {*DEFAULT}) == 4, "bounded in each lane"
    assert set().union(*found.values()) == {*SHARDS}


def test_a_worker_may_serve_several_lanes() -> None:
    assert owned({"a": of("bulk", "mail"), "b": of("default")}) == {
        "a": {*BULK, *MAIL},
        "b": {*DEFAULT},
    }


def test_a_lane_that_nobody_serves_is_neither_taken_nor_kept() -> None:
    seen = fleet({"a": of("bulk")}, dict.fromkeys(SHARDS, "a"))
    assert planned("a", seen, SHARDS) == Plan(release=keys(*DEFAULT, *MAIL))
    assert planned("a", seen, [*BULK, 9]) == Plan(release=keys(9)), "on no list, and not its own"
    assert planned("a", fleet({"a": of("bulk")})) == Plan(acquire=keys(*BULK))


def test_what_is_not_served_goes_also_while_its_worker_comes_and_goes() -> None:
    workers = {"a": of("default"), "b": of("bulk")}
    seen = fleet(workers, dict.fromkeys(BULK, "a"))
    assert planned("a", seen, BULK, unsteady={"b"}).release == keys(*BULK)
    both = fleet({"a": of(), "b": of("bulk")}, dict.fromkeys(BULK, "a"))
    assert planned("a", both, BULK, unsteady={"b"}) == Plan(acquire=keys(*DEFAULT, *MAIL)), (
        "it serves them itself, and keeps them for as long"
    )


def test_a_worker_of_all_lanes_that_is_left_takes_over() -> None:
    held = dict.fromkeys(BULK, "dead")
    assert planned("a", fleet({"a": of()}, held)).acquire == keys(*SHARDS)
    assert planned("a", fleet({"a": of("default")}, held)).acquire == keys(*DEFAULT)


def test_beside_an_older_worker_lanes_do_not_count() -> None:
    workers = {"a": of("default"), "b": of("bulk"), "c": OLD}
    plain = owned(dict.fromkeys("abc", OLD))
    assert owned(workers) == plain
    seen = fleet(workers)
    assert planned("b", seen, plain["b"]) == Plan(), "it keeps what it does not serve"
    elsewhere = [worker("c", "other", version=OLD)]
    apart = view([*fleet({"a": of("default"), "b": of("bulk")}).workers, *elsewhere], (), SHARDS)
    assert planned("b", apart).acquire == keys(*BULK), "it counts in its own groups only"


def test_who_knows_no_lanes_yet_plans_nothing_where_they_count() -> None:
    seen = fleet({"a": of("default"), "b": of("bulk")}, dict.fromkeys(BULK, "a"))
    assert plan("a", seen, set(keys(*BULK))) == plan("b", seen, set()) == Plan()
    assert plan("a", fleet({"a": of()}), set()).acquire == keys(*SHARDS)


def test_an_heir_serves_a_lane_of_what_i_hold() -> None:
    seen = fleet({"a": of("bulk"), "b": of("default")})
    assert not has_heirs("a", seen, keys(*BULK), LAYOUT)
    assert has_heirs("a", seen, keys(*BULK, 3), LAYOUT)
    for other in (of(), of("bulk", "mail"), OLD):
        assert has_heirs("a", fleet({"a": of("bulk"), "b": other}), keys(*BULK), LAYOUT)
    assert has_heirs("a", fleet({"a": of(), "b": of("bulk")}), keys(*BULK), LAYOUT)
    assert not has_heirs("a", fleet({"a": of("bulk")}), keys(*BULK), LAYOUT)


def test_maintenance_is_for_the_owner_of_the_lowest_shard_that_is_served() -> None:
    def lowest(seen: Membership) -> int | None:
        return lowest_shard(seen, GROUP, LAYOUT)

    assert lowest(fleet({"a": of("bulk"), "b": of("mail")})) == 1024
    assert lowest(fleet({"a": of("bulk"), "b": of()})) == 0
    assert lowest(fleet({"a": of("bulk"), "b": OLD})) == 0
    other = view([*fleet({"a": of("bulk")}).workers, worker("b", "other")], (), SHARDS)
    assert lowest(other) == 1024, "each group has its own"
    assert lowest_shard(other, "other", LAYOUT) == 0
    assert lowest(fleet({"a": of("gone")})) is None, "nobody serves anything"
    assert lowest(view([], (), ())) is None


# ---------------------------------------------------------------------- properties

lanes = st.sets(st.sampled_from(["default", "bulk", "mail"]), max_size=3)
fleets = st.dictionaries(
    st.sampled_from("abcdef"), st.tuples(lanes, st.sampled_from([0.0, 0.5, 1.0, 4.0])), min_size=1
)
holders = st.dictionaries(st.sampled_from(SHARDS), st.sampled_from([None, *"abcdef", "dead"]))


def workers_of(found: Mapping[str, tuple[set[str], float]]) -> list[WorkerInfo]:
    return [worker(n, capacity=c, version=announced("1", lanes=ls)) for n, (ls, c) in found.items()]


def serves(names: set[str], shard: int) -> bool:
    return not names or LAYOUT.lane_of(shard) in names


def played(workers: list[WorkerInfo], held: dict[int, str | None]) -> dict[int, str | None]:
    """Carry plans out round by round: at no time two want one shard, none moves twice, none is
    taken from a live worker. Return who holds what in the end, when nobody plans anything."""
    names, moved = {each.worker_id for each in workers}, set[int]()
    for _ in range(3):
        leases = [(GROUP, shard, who, 1) for shard, who in held.items()]
        seen = view(workers, leases, SHARDS)
        plans = {
            n: planned(n, seen, [s for s, who in held.items() if who == n]) for n in sorted(names)
        }
        wanted = [shard for each in plans.values() for _, shard in each.acquire]
        assert len(wanted) == len(set(wanted)), "two workers want the same shard"
        for name, each in plans.items():
            assert list(each.release) == sorted(each.release)
            assert list(each.acquire) == sorted(each.acquire)
            held |= {shard: None for _, shard in each.release}
            for _, shard in each.acquire:
                assert held.get(shard) not in names, "taken from a live worker"
                assert shard not in moved, "moved twice"
                moved.add(shard)
                held[shard] = name
    assert all(each.acquire == each.release == () for each in plans.values())
    return held


@given(found=fleets, held=holders)
def test_every_shard_of_a_served_lane_has_one_owner_that_serves_it(
    found: dict[str, tuple[set[str], float]], held: dict[int, str | None]
) -> None:
    able = {name: names for name, (names, capacity) in found.items() if capacity}
    end = played(workers_of(found), dict(held))
    by_lanes = any(able.values())
    for shard in SHARDS:
        who = end.get(shard)
        if any(serves(names, shard) for names in able.values()) or (able and not by_lanes):
            assert who in able
            assert serves(able[who], shard) or not by_lanes
        elif by_lanes and who in found:
            assert serves(found[who][0], shard), "kept by one that does not serve it"


@given(found=fleets)
def test_each_lane_is_shared_by_bounded_loads(found: dict[str, tuple[set[str], float]]) -> None:
    able = {n: (names, capacity) for n, (names, capacity) in found.items() if capacity}
    end = played(workers_of(found), {})
    for part in (DEFAULT, BULK, MAIL):
        nodes = {n: capacity for n, (names, capacity) in able.items() if serves(names, part[0])}
        if nodes and any(names for names, _ in able.values()):
            owner_of = place([f"{GROUP}/{shard}" for shard in part], nodes)
            assert owner_of == {f"{GROUP}/{shard}": end[shard] for shard in part}


@given(found=fleets, held=holders, old=st.sampled_from([OLD, "0.1.0+placement.2", "0.1.0"]))
def test_with_one_older_worker_placement_is_the_same_as_without_lanes(
    found: dict[str, tuple[set[str], float]], held: dict[int, str | None], old: str
) -> None:
    workers = [*workers_of(found), worker("older", version=old)]
    plain = [msgspec.structs.replace(each, version=old) for each in workers]
    leases = [(GROUP, shard, who, 1) for shard, who in held.items()]
    for each in workers:
        mine: set[Key] = {(GROUP, ShardId(s)) for s, w in held.items() if w == each.worker_id}
        made = plan(each.worker_id, view(workers, leases, SHARDS), mine, layout=LAYOUT)
        assert made == plan(each.worker_id, view(plain, leases, SHARDS), mine)


@given(found=fleets)
def test_where_no_worker_names_lanes_they_change_nothing(
    found: dict[str, tuple[set[str], float]],
) -> None:
    workers = [worker(name, capacity=capacity) for name, (_, capacity) in found.items()]
    plain = [msgspec.structs.replace(each, version=OLD) for each in workers]
    for each in workers:
        made = plan(each.worker_id, view(workers, (), SHARDS), set(), layout=LAYOUT)
        assert made == plan(each.worker_id, view(plain, (), SHARDS), set())


# ---------------------------------------------------------------------- standby


def test_a_place_is_taken_from_a_worker_of_the_same_lanes_only() -> None:
    default, bulk = of("default"), of("bulk")
    workers = [
        worker("a", version=default),
        worker("b", version=bulk, capacity=0.0),
        worker("c", version=announced("1", standby=True, lanes=["default"])),
        worker("d", version=announced("1", standby=True, lanes=["bulk"])),
        worker("e", version=bulk),
    ]
    seen = view(workers, (), SHARDS)
    after = {name: {shard for _, shard in planned(name, seen).acquire} for name in "abcde"}
    before = owned({"a": default, "b": bulk, "e": bulk})
    assert after == {**before, "b": set(), "c": set(), "d": before["b"]}


@pytest.mark.parametrize(("mine", "theirs"), [("bulk", "default"), ("bulk", ""), ("", "bulk")])
def test_a_standby_does_not_wait_where_nobody_has_its_lanes(mine: str, theirs: str) -> None:
    def seen(*, standby: bool) -> Membership:
        lanes = [mine] if mine else []
        other = announced("1", lanes=[theirs] if theirs else [])
        me = worker("b", version=announced("1", standby=standby, lanes=lanes))
        leaving = worker("x", version=other, capacity=0.0)
        return view([worker("a", version=other), me, leaving], (), SHARDS)

    assert planned("b", seen(standby=True)) == planned("b", seen(standby=False)) != Plan()
