"""Rendezvous hashing with bounded loads: nobody above a share, nobody idle, and few moves."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from late.tailer import placement
from late.tailer.placement import (
    BOUNDED,
    HIGHEST_SCORE,
    LANES,
    PLACES,
    agreed,
    announced,
    lanes_of,
    owner,
    owners,
    place,
    place_of,
    waits,
    without_lanes,
)

names = st.text("abcdef0123456789", min_size=1, max_size=6)
equal_fleets = st.sets(names, min_size=1, max_size=24).map(lambda found: dict.fromkeys(found, 1.0))
weighted_fleets = st.dictionaries(
    names, st.sampled_from([0.01, 0.1, 0.3, 0.5, 1.0, 2.0, 4.0, 50.0]), min_size=1, max_size=12
)
numbers = st.integers(0, 200)


def keys(number: int) -> list[str]:
    return [f"default/{shard}" for shard in range(number)]


def fleet(number: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [f"w-{rng.randbytes(8).hex()}" for _ in range(number)]


def loads(placed: Mapping[str, str], nodes: Mapping[str, float]) -> dict[str, int]:
    return dict.fromkeys(nodes, 0) | Counter(placed.values())


@given(nodes=weighted_fleets, number=numbers)
def test_every_key_has_one_owner_and_each_node_its_share_within_one(
    nodes: dict[str, float], number: int
) -> None:
    placed = place(keys(number), nodes)
    assert sorted(placed) == sorted(keys(number))
    assert set(placed.values()) <= nodes.keys()
    total = sum(map(Fraction, nodes.values()))
    for node, load in loads(placed, nodes).items():
        assert abs(load - number * Fraction(nodes[node]) / total) < 1


@given(nodes=equal_fleets, number=numbers)
def test_equal_nodes_drain_as_fast_as_whole_keys_allow(
    nodes: dict[str, float], number: int
) -> None:
    """The fullest node ends last. With 8 keys a node, or any whole number, all end together."""
    fullest = max(loads(place(keys(number), nodes), nodes).values())
    assert fullest == -(-number // len(nodes))
    whole = place(keys(8 * len(nodes)), nodes)
    assert 8 * len(nodes) / max(Counter(whole.values()).values()) >= 0.95 * len(nodes)


@pytest.mark.parametrize("workers", [2, 3, 10, 33])
def test_from_19_keys_a_node_on_a_drain_is_within_5_percent(workers: int) -> None:
    for number in (*range(19 * workers, 21 * workers), 100 * workers + 1):
        placed = place(keys(number), dict.fromkeys(fleet(workers, 1), 1.0))
        fullest = max(Counter(placed.values()).values())
        assert number / fullest >= 0.95 * workers


@given(nodes=equal_fleets, number=numbers)
def test_no_node_is_idle_while_there_are_keys(nodes: dict[str, float], number: int) -> None:
    busy = len(set(place(keys(number), nodes).values()))
    assert busy == min(len(nodes), number)


@given(nodes=weighted_fleets, number=numbers)
def test_a_node_is_idle_only_while_no_other_has_more_than_its_share(
    nodes: dict[str, float], number: int
) -> None:
    found = loads(place(keys(number), nodes), nodes)
    total = sum(map(Fraction, nodes.values()))
    if 0 in found.values():
        for node, load in found.items():
            assert load <= max(1, number * Fraction(nodes[node]) / total)


@given(nodes=weighted_fleets, number=numbers, seed=st.integers(0, 9))
def test_the_order_of_what_it_is_given_does_not_matter(
    nodes: dict[str, float], number: int, seed: int
) -> None:
    rng = random.Random(seed)
    shuffled, turned = keys(number), list(nodes.items())
    rng.shuffle(shuffled)
    rng.shuffle(turned)
    assert place(shuffled, dict(turned)) == place(keys(number), nodes)


def naive(number: int, nodes: Mapping[str, float]) -> dict[str, str]:
    """Oracle: all pairs, from the highest score down, with the bounds as the docstring has them."""
    total = sum(map(Fraction, nodes.values()))
    share = {node: number * Fraction(weight) / total for node, weight in nodes.items()}
    room = {node: int(share[node]) for node in nodes}
    extras = number - sum(room.values())
    small = {node for node in nodes if share[node] < 1}
    partial = {node for node in nodes if share[node].denominator > 1}
    chosen = partial - small if len(small) <= extras else small
    if len(small) <= extras:
        room.update(dict.fromkeys(small, 1))
        extras -= len(small)
    score = placement._score
    digest = placement._digest
    pairs = sorted(
        ((-score(digest(n, k), nodes[n]), k, n) for k in keys(number) for n in nodes),
    )
    placed: dict[str, str] = {}
    for _, key, node in pairs:
        if key in placed:
            continue
        if room[node]:
            room[node] -= 1
            placed[key] = node
        elif extras and node in chosen:
            extras -= 1
            chosen = chosen - {node}
            placed[key] = node
    return placed


@given(nodes=weighted_fleets, number=st.integers(0, 40))
def test_it_agrees_with_a_naive_version(nodes: dict[str, float], number: int) -> None:
    assert place(keys(number), nodes) == naive(number, nodes)


@pytest.mark.parametrize(
    ("workers", "shards"), [(2, 8), (8, 64), (10, 64), (16, 128), (32, 256), (33, 300)]
)
def test_a_change_moves_few_keys_between_others(workers: int, shards: int) -> None:
    """A newcomer takes one share from all others. What moves beside it is the part of
    `docs/scale.md`: 0.5 to 3.5 shares on average, and below 15 % of all in the worst of these."""
    beside = []
    for seed in range(10):
        nodes = dict.fromkeys(fleet(workers, seed), 1.0)
        joined = {**nodes, "w-new": 1.0}
        before, after = place(keys(shards), nodes), place(keys(shards), joined)
        moved = {key for key in before if before[key] != after[key]}
        to_new = {key for key in moved if after[key] == "w-new"}
        assert len(to_new) <= -(-shards // (workers + 1))
        assert before == place(keys(shards), {n: w for n, w in joined.items() if n != "w-new"}), (
            "one that comes and goes leaves all as it was"
        )
        beside.append(len(moved) - len(to_new))
    assert max(beside) <= 0.15 * shards
    assert sum(beside) / len(beside) <= 3.5 * shards / workers


def test_the_answer_is_part_of_the_contract_between_versions() -> None:
    nodes = {"a": 1.0, "b": 1.0, "c": 2.0}
    assert [place(keys(12), nodes)[key] for key in keys(12)] == GOLDEN


GOLDEN = ["c", "b", "c", "b", "c", "c", "c", "a", "a", "c", "b", "a"]


def test_workers_go_by_the_lowest_placement_among_them() -> None:
    assert announced("0.1.0") == "0.1.0+changes.1.tells.1.placement.4"
    assert announced("0.1.0+dirty") == "0.1.0+dirty.changes.1.tells.1.placement.4"
    assert agreed([announced("0.1.0"), announced("0.2.0+x")]) == LANES
    assert agreed([announced("0.1.0"), "0.1.0+changes.1.tells.1.placement.3"]) == PLACES
    assert agreed([announced("0.1.0"), "0.1.0+changes.1.placement.2"]) == BOUNDED
    assert agreed([announced("0.1.0"), "0.1.0"]) == HIGHEST_SCORE
    assert agreed(["9.0.0+placement.9", announced("0.1.0")]) == LANES
    assert agreed(["9.0.0+placement.9"]) == LANES, "more than this version knows"
    assert agreed([]) == LANES


def test_a_version_tells_of_the_standby_and_of_the_place() -> None:
    waiting, placed = announced("0.1.0", standby=True), announced("0.1.0", place="w-7.a")
    assert waiting == "0.1.0+changes.1.tells.1.standby.placement.4"
    assert placed == "0.1.0+changes.1.tells.1.place.w-7.a.placement.4"
    assert agreed([waiting, placed]) == LANES
    assert [waits(each) for each in (waiting, placed, "0.1.0", announced("1"))] == [True] + 3 * [
        False
    ]
    assert [place_of(each) for each in (waiting, placed, "0.1.0")] == ["", "w-7.a", ""]


OF_NUMBER_3 = re.compile(r"[+.](?:(standby)\.|place\.([^+|]+)\.)?placement\.(\d{1,9})$")
"""As workers of that number read a version. They take a higher number for theirs."""
lane_names = st.one_of(
    st.text("az.:-_", min_size=1, max_size=8),
    st.sampled_from(["standby", "place", "a.place.b", ".placement.3", "place.w-1", "lanes", "x.1"]),
)
places = st.sampled_from(["", "w-7", "w-7'", "w-7.a", "standby", "lanes=x", "x.lanes=y"])


@given(
    version=st.sampled_from(["0.1.0", "0.1.0+dirty", "1.0.dev0"]),
    standby=st.booleans(),
    place=places,
    lanes=st.sets(lane_names, max_size=4),
)
def test_a_version_names_its_lanes_and_older_workers_read_the_rest(
    version: str, standby: bool, place: str, lanes: set[str]
) -> None:
    place = "" if standby else place
    said = announced(version, standby=standby, place=place, lanes=lanes)
    assert lanes_of(said) == tuple(sorted(lanes))
    assert (waits(said), place_of(said), agreed([said])) == (standby, place, LANES)
    assert said.partition("+")[0] == version.partition("+")[0]
    assert without_lanes(said) == announced(version, standby=standby, place=place)
    for each in (said, announced(version, standby=standby, place=place)):
        found = OF_NUMBER_3.search(each)
        assert found
        assert (bool(found[1]), found[2] or "", int(found[3]) >= PLACES) == (standby, place, True)


def test_the_text_of_lanes_is_part_of_the_contract_between_versions() -> None:
    said = announced("0.1.0", lanes=["my.bulk", "a"], place="w-7")
    assert said == "0.1.0+changes.1.tells.1.lanes=a,my~bulk.place.w-7.placement.4"
    assert lanes_of("0.1.0+placement.3") == lanes_of("0.1.0") == ()


def test_beside_an_old_worker_the_highest_score_wins() -> None:
    nodes = dict.fromkeys("abc", 1.0)
    plain = {key: owner(key, nodes) for key in keys(20)}
    assert owners(keys(20), nodes, HIGHEST_SCORE) == plain
    assert (
        owners(keys(20), nodes, LANES)
        == owners(keys(20), nodes, PLACES)
        == owners(keys(20), nodes, BOUNDED)
        == place(keys(20), nodes)
        != plain
    )
