"""Sums of usage: exact, in any order, and undone by a difference."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from late.model.histogram import histogram
from late.model.task import Usage
from late.model.usage_sums import difference, key_of, summed

TIMES = st.lists(st.integers(0, 10**9), max_size=5)
NUMBER = st.integers(0, 10**6)
USAGE = st.builds(
    Usage,
    st.sampled_from("qr"),
    st.just("n"),
    st.sampled_from(["", "local"]),
    st.sampled_from(["done", "enqueued"]),
    *[NUMBER] * 8,
    TIMES.map(histogram),
    TIMES.map(histogram),
    st.sampled_from([None, "", "acme"]),
    st.dictionaries(st.sampled_from(["orders", "trips", "users"]), st.integers(1, 10**12)).map(
        lambda counts: tuple(sorted(counts.items()))
    ),
)
USAGES = st.lists(USAGE, max_size=12)


@given(USAGES)
def test_every_field_adds_up(usages: list[Usage]) -> None:
    found = summed(usages)
    assert sorted({key_of(each) for each in usages}, key=repr) == sorted(
        map(key_of, found), key=repr
    )
    for one in found:
        same = [each for each in usages if key_of(each) == key_of(one)]
        for name in Usage.__struct_fields__:
            value = getattr(one, name)
            if isinstance(value, int):
                assert value == sum(getattr(each, name) for each in same)
            elif name in ("waiting", "busy", "counts"):
                for index, count in value:
                    assert count == sum(dict(getattr(each, name)).get(index, 0) for each in same)
                total = sum(n for each in same for _, n in getattr(each, name))
                assert sum(n for _, n in value) == total


@given(USAGES, st.integers(0, 12), st.randoms(use_true_random=False))
def test_the_order_and_the_steps_do_not_matter(usages: list[Usage], cut: int, rng: Random) -> None:
    whole = summed(usages)
    assert summed([*summed(usages[:cut]), *summed(usages[cut:])]) == whole
    rng.shuffle(usages)
    assert summed(usages) == whole


@given(USAGES, USAGES)
def test_a_difference_takes_out_what_was_added(some: list[Usage], more: list[Usage]) -> None:
    empty = [Usage("q", "n", "", "done")]
    left = difference(summed([*some, *more, *empty]), more)
    assert left == tuple(
        each for each in summed(some) if each != Usage(*key_of(each)[:4], tenant=each.tenant)
    )


def test_more_than_there_is_is_refused() -> None:
    one = Usage("q", "n", "", "done", 2, waiting=((3, 1),))
    for more in (
        msgspec.structs.replace(one, count=3),
        msgspec.structs.replace(one, waiting=((4, 1),)),
        msgspec.structs.replace(one, tenant="acme"),
        msgspec.structs.replace(one, counts=(("orders", 1),)),
    ):
        with pytest.raises(ValueError, match="more of"):
            difference([one], [more])
