"""A fleet that is rolled, and half of it killed, over the real plans: every shard stays owned."""

from __future__ import annotations

from collections import Counter

import pytest

from late.model.task import Epoch, ShardId
from late.store.base import LeaseView, Membership, WorkerInfo
from late.tailer.ownership import Key, plan
from late.tailer.placement import announced

SHARDS = tuple(ShardId(shard) for shard in range(64))
GROUPS = ("g", "h")
NEW = announced("2")


class Fleet:
    """Leases, and workers that all carry their plans out, round by round."""

    def __init__(self, *versions: str) -> None:
        self.born = 0
        self.workers: dict[str, WorkerInfo] = {}
        self.held: dict[Key, str | None] = dict.fromkeys((g, s) for g in GROUPS for s in SHARDS)
        self.moves: Counter[Key] = Counter()
        for version in versions:
            self.join(version)
        self.settle()
        self.moves.clear()

    def join(self, version: str) -> None:
        self.born += 1
        name = f"w-{self.born}"
        self.workers[name] = WorkerInfo(name, "host:1", GROUPS, 1.0, version)

    def leave(self, *names: str) -> None:
        for name in names:
            del self.workers[name]

    def loads(self) -> list[int]:
        """Return the number of shards of each worker, one group after the other."""
        counted = Counter((group, who) for (group, _), who in self.held.items())
        return [counted[group, name] for group in GROUPS for name in self.workers]

    def view(self) -> Membership:
        leases = tuple(LeaseView(g, s, who, Epoch(1)) for (g, s), who in sorted(self.held.items()))
        return Membership(0, tuple(w for _, w in sorted(self.workers.items())), leases, SHARDS)

    def settle(self) -> None:
        """Let all that follows from one change happen: no shard moves twice for it."""
        moved: set[Key] = set()
        for _ in range(3):
            seen = self.view()
            for name in self.workers:
                mine = {key for key, who in self.held.items() if who == name}
                planned = plan(name, seen, mine)
                self.held.update(dict.fromkeys(planned.release))
                for key in planned.acquire:
                    assert key not in moved
                    moved.add(key)
                    self.held[key] = name
        self.moves.update(moved)
        assert set(self.held.values()) <= self.workers.keys(), "a shard without owner"


def test_a_deploy_of_bounded_loads_moves_a_shard_once_for_each_change() -> None:
    """Worker after worker is replaced by one of the new version. All place shards as the old ones
    do until the last of those leaves."""
    fleet = Fleet(*["1"] * 4)
    for old in list(fleet.workers):
        assert len(set(fleet.loads())) > 2, "as the highest score has it"
        fleet.join(NEW)
        fleet.settle()
        fleet.leave(old)
        fleet.settle()
    assert fleet.loads() == [16] * 8
    assert fleet.moves.total() / len(fleet.held) < 2.6, "measured: 1.7"


def test_a_rolling_restart_ends_as_even_as_it_began() -> None:
    fleet = Fleet(*[NEW] * 8)
    for old in list(fleet.workers):
        fleet.join(NEW)
        fleet.settle()
        assert set(fleet.loads()) <= {7, 8}
        fleet.leave(old)
        fleet.settle()
        assert fleet.loads() == [8] * 16
    assert fleet.moves.total() / len(fleet.held) < 3.5, "measured: 2.8"


@pytest.mark.parametrize("dead", [1, 4, 7])
def test_after_many_deaths_each_of_the_others_has_its_share(dead: int) -> None:
    fleet = Fleet(*[NEW] * 8)
    fleet.leave(*list(fleet.workers)[:dead])
    fleet.settle()
    assert max(fleet.loads()) - min(fleet.loads()) <= 1


def test_who_comes_back_finds_the_placement_of_before() -> None:
    fleet = Fleet(*[NEW] * 8)
    before, (name, flapping) = dict(fleet.held), next(iter(fleet.workers.items()))
    fleet.leave(name)
    fleet.settle()
    fleet.workers[name] = flapping
    fleet.settle()
    assert fleet.held == before
