"""Worlds of the snapshot cache: the real one is never wrong, and each wrong one is found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from late.cache.moment import Moment
from late.cache.versions import Answer, Change, Load, Version, Versions
from late.model.task import TaskId
from tests.simulator.cache_world import World

WORLDS = 400
FOUND_WITHIN = 200


def test_no_answer_is_wrong() -> None:
    worlds = [World(seed) for seed in range(WORLDS)]
    assert [found for world in worlds if (found := world.run())] == []
    # A cache that never answers would never be wrong.
    assert sum(world.answers for world in worlds) > 3 * WORLDS
    assert sum(world.together for world in worlds) > WORLDS
    assert sum(world.past for world in worlds) > 3 * WORLDS
    assert sum(world.versions.evictions for world in worlds) > WORLDS


class OverlooksChangesOfLoads(Versions):
    """A change that is read while a load runs ends nothing of what the load has found."""

    def keep(self, load: Load, moment: Moment, values: Mapping[str, tuple[Any, int]]) -> Answer:
        load.changes.clear()
        return super().keep(load, moment, values)


class OrdersByNumber(Versions):
    """A lower position is taken for an earlier commit."""

    def _end(self, key: str, position: int) -> bool:
        for version in self._keys.get(key, ()):
            if version.last is None and position >= version.first.high:
                version.last = version.first
        return False


class EndsTooLate(Versions):
    """A value is true up to the frontier at which its change was read."""

    def advance(self, moment: Moment, now_s: float, changes: Sequence[Change]) -> list[str]:
        self.frontier = moment
        return super().advance(moment, now_s, changes)


class EndsTheLastVersion(Versions):
    """A change ends the newest version alone."""

    def _end(self, key: str, position: int) -> bool:
        versions = self._keys.get(key, [])
        older = versions[:-1]
        if versions:
            self._keys[key] = versions[-1:]
            super()._end(key, position)
            self._keys[key] = older + versions[-1:]
        return False


class MixesMoments(Versions):
    """Several keys are answered one by one."""

    def answer(self, keys: Sequence[str], **asked: Any) -> Answer | None:
        parts = [super(MixesMoments, self).answer((key,), **asked) for key in keys]
        if not all(parts):
            return None
        values = {key: part.values[key] for key, part in zip(keys, parts, strict=True) if part}
        first = parts[0]
        assert first is not None
        return Answer(values, first.moment, first.moment_s)


class BelievesInEveryChange(Versions):
    """A read of one's own write takes what is there."""

    def _covers(self, moment: Moment, task_id: TaskId) -> bool:
        return True


class TakesThePageForTheMoment(Versions):
    """All that a round has read is taken to be seen by its moment, which may be older."""

    def advance(self, moment: Moment, now_s: float, changes: Sequence[Change]) -> list[str]:
        for change in changes:
            self._see(change.task_id, moment)
        return super().advance(moment, now_s, changes)


class GoesOnAfterALoss(Versions):
    """Loads that began before the connection was lost are kept."""

    def follow(self, moment: Moment | None, now_s: float) -> None:
        before = {load: load.frontier for load in self._loads}
        super().follow(moment, now_s)
        for load, frontier in before.items():
            load.frontier = frontier


class KeepsAfterALoss(Versions):
    """What was known before a lost connection is kept."""

    def follow(self, moment: Moment | None, now_s: float) -> None:
        self.frontier, self.frontier_s = moment, now_s


class DatesByTheFrontier(Versions):
    """A moment is as young as the last look at the log, whatever was loaded when."""

    def advance(self, moment: Moment, now_s: float, changes: Sequence[Change]) -> list[str]:
        return super().advance(moment, now_s + 3.0, changes)


class EvictsWithoutCounting(Versions):
    """Memory of what goes is not given back."""

    def _put(self, key: str, version: Version) -> None:
        super()._put(key, version)
        self.bytes = version.bytes


WRONG = [
    OverlooksChangesOfLoads, OrdersByNumber, EndsTooLate, EndsTheLastVersion, MixesMoments,
    BelievesInEveryChange, TakesThePageForTheMoment, GoesOnAfterALoss, KeepsAfterALoss,
    DatesByTheFrontier, EvictsWithoutCounting,
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_cache_is_found(wrong: type[Versions]) -> None:
    assert any(World(seed, wrong).run() for seed in range(FOUND_WITHIN))
