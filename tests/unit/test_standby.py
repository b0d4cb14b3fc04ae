"""A new worker waits for one that leaves, and takes over its shards and no others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from late.model.task import ShardId
from late.store.base import LeaseView, Membership, WorkerInfo
from late.tailer.membership import restricted
from late.tailer.ownership import has_heirs, plan
from late.tailer.placement import BOUNDED, LANES, announced
from late.tailer.standby import Standby, places

GROUP = "g"
SHARDS = tuple(ShardId(number) for number in range(32))
OLD = "0.1.0+changes.1.placement.2"


def worker(
    name: str,
    *,
    standby: bool = False,
    place: str = "",
    capacity: float = 1.0,
    groups: Sequence[str] = (GROUP,),
    version: str = "",
) -> WorkerInfo:
    version = version or announced("1", standby=standby, place=place)
    return WorkerInfo(name, f"{name}:1", tuple(groups), capacity=capacity, version=version)


def view(*workers: WorkerInfo, held: dict[ShardId, str] | None = None) -> Membership:
    leases = tuple(LeaseView(GROUP, shard, who, 1) for shard, who in (held or {}).items())
    ordered = tuple(sorted(workers, key=lambda each: each.worker_id))
    return Membership(now_us=0, workers=ordered, leases=leases, shards=SHARDS)


def named(*workers: WorkerInfo, group: str = GROUP) -> dict[str, str]:
    found, number = places(workers, group)
    assert number == LANES
    return {place: each.worker_id for place, each in found.items()}


def owned(*workers: WorkerInfo) -> dict[ShardId, str]:
    """Return who acquires which shard of a fleet that holds none."""
    plans = {each.worker_id: plan(each.worker_id, view(*workers), set()) for each in workers}
    return {shard: who for who, each in plans.items() for _, shard in each.acquire}


def test_a_standby_owns_nothing_while_others_work() -> None:
    a, b, c = worker("a"), worker("b"), worker("c", standby=True)
    assert named(a, b, c) == {"a": "a", "b": "b"}
    assert owned(a, b, c) == owned(a, b)


def test_it_takes_the_place_of_the_one_that_leaves_and_nothing_else_moves() -> None:
    a, b, c = worker("a"), worker("b"), worker("c", standby=True)
    before = owned(a, b)
    leaving = worker("a", capacity=0.0)
    after = owned(leaving, b, c)
    assert after == {shard: {"a": "c", "b": "b"}[who] for shard, who in before.items()}
    placed = worker("c", place="a")
    assert owned(leaving, b, placed) == after, "it has announced its place"
    assert owned(b, placed) == after, "the other one has gone"


def test_a_place_is_handed_on_from_one_generation_to_the_next() -> None:
    b = worker("b")
    placed, after_it = worker("c", place="a"), worker("d", standby=True)
    gone = msgspec.structs.replace(placed, capacity=0.0)
    assert named(gone, b, after_it) == {"a": "d", "b": "b"}


def test_several_standbys_and_several_that_leave_are_paired_by_name() -> None:
    fleet = [worker("a", capacity=0.0), worker("b", capacity=0.0), worker("c")]
    assert named(*fleet, worker("y", standby=True), worker("x", standby=True)) == {
        "a": "x",
        "b": "y",
        "c": "c",
    }
    assert named(*fleet, worker("x", standby=True)) == {"a": "x", "c": "c"}
    assert named(*fleet, worker("x", place="a"), worker("y", standby=True)) == {
        "a": "x",
        "b": "y",
        "c": "c",
    }


def test_who_has_taken_a_place_keeps_it_when_the_one_before_comes_back() -> None:
    assert named(worker("a"), worker("b"), worker("c", place="a")) == {
        "a": "c",
        "a'": "a",
        "b": "b",
    }


def test_two_that_announce_one_place_have_two() -> None:
    assert named(worker("b", place="x"), worker("c", place="x")) == {"x": "b", "c'": "c"}


def test_a_standby_that_leaves_has_no_place_to_give() -> None:
    leaving = worker("b", standby=True, capacity=0.0)
    assert named(worker("a"), leaving, worker("c", standby=True)) == {"a": "a"}


def test_standbys_work_where_nobody_else_does() -> None:
    a, b = worker("a", standby=True), worker("b", standby=True)
    assert named(a, b) == {"a": "a", "b": "b"}
    other = worker("c", groups=("other",))
    assert named(a, b, other) == {"a": "a", "b": "b"}


def test_beside_an_older_worker_nobody_waits() -> None:
    old, waiting = worker("a", version=OLD), worker("b", standby=True)
    found, number = places((old, waiting), GROUP)
    assert number == BOUNDED
    assert {place: each.worker_id for place, each in found.items()} == {"a": "a", "b": "b"}
    # The older one leaves; it is known by its id.
    gone = msgspec.structs.replace(old, capacity=0.0)
    assert named(gone, worker("c"), waiting) == {"a": "b", "c": "c"}


def test_beside_a_worker_that_is_on_no_list_of_members_nobody_waits() -> None:
    fleet = view(worker("a"), worker("b"), worker("c", standby=True))
    listed = restricted(fleet, {"b", "c"})
    assert named(*listed.workers) == {"a": "c", "b": "b"}


def test_a_leaving_worker_hands_over_to_a_standby() -> None:
    assert has_heirs("a", view(worker("a"), worker("b", standby=True)))


# ---------------------------------------------------------------------- the wait


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_the_wait_ends_with_the_place_of_one_that_leaves() -> None:
    wait = Standby("c", 30.0, Clock())
    a, b, c = worker("a"), worker("b"), worker("c", standby=True)
    assert wait.observe(view(a, b, c)) is None
    assert not wait.over
    assert wait.observe(view(worker("a", capacity=0.0), b, c)) == "a"
    assert wait.over
    assert wait.observe(view(worker("b", capacity=0.0), c)) is None, "it has told already"


def test_the_wait_is_bounded_and_begins_with_the_first_view() -> None:
    clock = Clock()
    wait = Standby("c", 30.0, clock)
    a, c = worker("a"), worker("c", standby=True)
    clock.now_s += 1000.0
    assert wait.observe(view(a)) is None, "it is not in the view yet"
    assert wait.observe(view(a, c)) is None
    clock.now_s += 29.9
    assert wait.observe(view(a, c)) is None
    clock.now_s += 0.2
    assert wait.observe(view(a, c)) == ""
    assert wait.over


@pytest.mark.parametrize("beside", [None, worker("a", version=OLD), worker("a", standby=True)])
def test_nobody_waits_alone_or_beside_an_older_worker(beside: WorkerInfo | None) -> None:
    me = worker("c", standby=True)
    fleet = [me] if beside is None else [me, beside]
    assert Standby("c", 30.0, Clock()).observe(view(*fleet)) == ""


def test_without_a_wait_nothing_is_announced() -> None:
    assert Standby("a", 0.0, Clock()).observe(view(worker("a"))) is None


# ---------------------------------------------------------------------- what it is for


@given(workers=st.integers(1, 9), together=st.integers(1, 3))
def test_a_rolling_restart_moves_each_shard_once(workers: int, together: int) -> None:
    """Every worker is replaced, `together` at a time, the new ones first; in between each step
    is seen by all. Then no shard has moved more than once, and the shares are as even as before."""
    fleet = [worker(f"old-{number}") for number in range(workers)]
    placed = first = owned(*fleet)
    moves: Counter[ShardId] = Counter()

    def look(*members: WorkerInfo) -> None:
        nonlocal placed
        now = owned(*members)
        assert now.keys() == placed.keys(), "each shard has an owner at each step"
        moves.update(shard for shard in now if now[shard] != placed[shard])
        placed = now

    for start in range(0, workers, together):
        some = fleet[:together] if start + together <= workers else fleet[: workers - start]
        rest = [each for each in fleet if each not in some]
        new = [worker(f"new-{start + number}", standby=True) for number in range(len(some))]
        look(*rest, *some, *new)
        going = [msgspec.structs.replace(each, capacity=0.0) for each in some]
        look(*rest, *going, *new)
        told = []
        for each in new:
            place = Standby(each.worker_id, 30.0, Clock()).observe(view(*rest, *going, *new))
            assert place is not None
            told.append(worker(each.worker_id, place=place))
        look(*rest, *going, *told[:1], *new[1:])
        look(*rest, *going, *told)
        look(*rest, *told)
        fleet = [*rest, *told]
    assert set(moves.values()) <= {1}
    shares = Counter(placed.values())
    assert sorted(shares.values()) == sorted(Counter(first.values()).values())
