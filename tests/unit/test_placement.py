"""Rendezvous hashing: even, weighted, and a change moves only what it must."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from late.tailer.placement import owner

SHARDS = [f"default/{shard_id}" for shard_id in range(1024)]
TEN = {f"worker-{number}": 1.0 for number in range(10)}


def place(weights: Mapping[str, float]) -> dict[str, str]:
    return {key: owner(key, weights) for key in SHARDS}


def test_ten_workers_share_evenly() -> None:
    loads = Counter(place(TEN).values())
    assert len(loads) == 10
    assert min(loads.values()) >= 70
    assert max(loads.values()) <= 135


def test_a_worker_that_joins_takes_its_share_and_nothing_else_moves() -> None:
    before, after = place(TEN), place({**TEN, "worker-new": 1.0})
    moved = [key for key in SHARDS if before[key] != after[key]]
    assert all(after[key] == "worker-new" for key in moved)
    assert 0 < len(moved) <= len(SHARDS) * (1 / 11 + 0.05)


@pytest.mark.parametrize("shards", [256, 512, 1024])
@pytest.mark.parametrize("seed", range(5))
def test_one_of_eleven_moves_no_more_than_its_share(shards: int, seed: int) -> None:
    """Ids and weights as a fleet has them: random. A newcomer of the average weight takes one
    eleventh and 5 % at most, from all others; read backwards, its leave moves what it had and
    nothing else. (With 256 shards 5 % are 2.8 standard deviations: a promise of 997 in 1,000.)"""
    rng = random.Random(seed)
    keys = [f"default/{shard}" for shard in range(shards)]
    names = [f"w-{rng.randbytes(8).hex()}" for _ in range(11)]
    others = [rng.choice((0.5, 1.0, 2.0, 4.0)) for _ in range(10)]
    for weights in ([1.0] * 11, [*others, sum(others) / 10]):
        eleven = dict(zip(names, weights, strict=True))
        ten = {name: eleven[name] for name in names[:10]}
        before = {key: owner(key, ten) for key in keys}
        after = {key: owner(key, eleven) for key in keys}
        moved = {key for key in keys if before[key] != after[key]}
        assert 0 < len(moved) <= shards * (1 / 11 + 0.05)
        assert moved == {key for key in keys if after[key] == names[10]}


def test_a_worker_that_leaves_gives_away_its_own_and_nothing_else_moves() -> None:
    nine = {node: weight for node, weight in TEN.items() if node != "worker-3"}
    before, after = place(TEN), place(nine)
    moved = {key for key in SHARDS if before[key] != after[key]}
    assert moved == {key for key in SHARDS if before[key] == "worker-3"}
    assert len({after[key] for key in moved}) > 5, "they spread over the others"


def test_weights_are_honoured() -> None:
    keys = [f"k{number}" for number in range(8_000)]
    loads = Counter(owner(key, {"a": 1.0, "b": 2.0, "c": 1.0}) for key in keys)
    assert loads["a"] / 8_000 == pytest.approx(0.25, abs=0.02)
    assert loads["b"] / 8_000 == pytest.approx(0.50, abs=0.02)
    assert loads["c"] / 8_000 == pytest.approx(0.25, abs=0.02)


def test_more_weight_only_attracts() -> None:
    before, after = place(TEN), place({**TEN, "worker-3": 2.0})
    moved = [key for key in SHARDS if before[key] != after[key]]
    assert moved
    assert all(after[key] == "worker-3" for key in moved)


def test_ties_go_to_the_greater_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xxhash, "xxh3_64_intdigest", lambda _: 42)
    for names in (["a", "b", "c"], ["c", "b", "a"]):
        assert owner("key", dict.fromkeys(names, 1.0)) == "c"


@pytest.mark.parametrize("digest", [0, 2**64 - 1])
def test_no_hash_breaks_the_logarithm(monkeypatch: pytest.MonkeyPatch, digest: int) -> None:
    monkeypatch.setattr(xxhash, "xxh3_64_intdigest", lambda _: digest)
    assert owner("key", {"a": 1.0, "b": 2.0}) == "b"


def test_the_answer_is_part_of_the_contract_between_versions() -> None:
    """Workers of two versions run side by side during a deploy: they must agree."""
    fleet = {"a": 1.0, "b": 1.0, "c": 2.0}
    assert [owner(f"default/{n}", fleet) for n in range(12)] == GOLDEN


GOLDEN = ["a", "b", "c", "b", "c", "a", "c", "a", "a", "c", "b", "a"]

names = st.text(st.characters(codec="ascii", exclude_characters="|"), min_size=1, max_size=8)


@given(
    key=names,
    weights=st.dictionaries(names, st.integers(1, 9), min_size=1, max_size=6),
)
def test_it_agrees_with_a_naive_version(key: str, weights: dict[str, int]) -> None:
    """Oracle: walk the nodes by name and keep the best, comparing `h ** (1 / w)`, which orders
    as `-w / ln(h)` does."""
    best, best_score = "", -math.inf
    for node in sorted(weights):
        digest = xxhash.xxh3_64(f"{node}|{key}".encode()).intdigest()
        h = Fraction(2 * (digest // 2**12) + 1, 2**53)
        score = float(h) ** (1 / weights[node])
        if score >= best_score:
            best, best_score = node, score
    assert owner(key, {node: float(weight) for node, weight in weights.items()}) == best
