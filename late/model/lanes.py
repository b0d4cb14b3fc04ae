"""Lanes, their versions, and when a key may move: values and one pure judge.

See `docs/design/0019`. A lane is the shards `[first_shard, first_shard + shards)`; a resize gives
it another width and the next version. A version that was closed is an `Extent` until it is drained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import msgspec
import xxhash

from late.model.task import TaskId

KEYS_MAX = 500
"""Keys that the owner of an old shard names; with more left, none of its keys may move yet."""


class Lane(msgspec.Struct, frozen=True):
    """The shards that new tasks go to."""

    name: str = "default"
    first_shard: int = 0
    shards: int = 8
    version: int = 0

    def shard_of(self, key: str) -> int:
        """The shard of an ordering key."""
        return place(key, self.first_shard, self.shards)


def place(key: str, first_shard: int, shards: int) -> int:
    """The shard of an ordering key among `shards` of them. Part of the SQL contract."""
    return first_shard + xxhash.xxh3_64_intdigest(key.encode()) % shards


class Left(msgspec.Struct, frozen=True, omit_defaults=True):
    """The rest of a version in an old shard: the result of that closing."""

    keys: tuple[str, ...] = ()
    more: bool = False
    """More than it could name: none of its keys may move."""

    @property
    def nothing(self) -> bool:
        return not self.keys and not self.more


class Extent(msgspec.Struct, frozen=True, dict=True):
    """A closed version of a lane."""

    first_shard: int
    version: int
    shards: int
    closings: tuple[TaskId, ...] = ()
    """By shard, ascending; none until no transaction can write by this version any more."""
    left: Mapping[tuple[str, int], Left] = {}
    """By (group, shard), where the owner has read the closing."""

    def holds(self, group: str, key: str, shard_id: int) -> bool:
        """Tell whether a later task of `key`, in `shard_id`, has to wait for this version."""
        # In its own shard it stands behind them anyway.
        if self.version == 0:
            # Its rows were placed by the apps' own `shards=`, which may be less than the lane's.
            silent = self._silent.get(group, self._shards)
            named = self._named.get((group, key), ())
            return len(silent) > (shard_id in silent) or len(named) > (shard_id in named)
        old = place(key, self.first_shard, self.shards)
        left = self.left.get((group, old))
        return old != shard_id and (left is None or left.more or key in left.keys)

    @property
    def _shards(self) -> range:
        return range(self.first_shard, self.first_shard + self.shards)

    @cached_property
    def _silent(self) -> dict[str, frozenset[int]]:
        """The shards where none of a group's keys may move yet; all of a group that is not here."""
        free: dict[str, set[int]] = {group: set() for group, _ in self.left}
        for (group, shard_id), left in self.left.items():
            if not left.more:
                free[group].add(shard_id)
        return {group: frozenset(self._shards) - shards for group, shards in free.items()}

    @cached_property
    def _named(self) -> dict[tuple[str, str], set[int]]:
        """(group, key) -> the shards that name it. Made once: each core asks for each key that it
        holds back, many times a second."""
        found: dict[tuple[str, str], set[int]] = {}
        for (group, shard_id), left in self.left.items():
            for key in left.keys:
                found.setdefault((group, key), set()).add(shard_id)
        return found


class Layout(msgspec.Struct, frozen=True):
    """The lanes at one moment."""

    lanes: tuple[Lane, ...] = ()
    extents: tuple[Extent, ...] = ()

    def lane(self, name: str) -> Lane | None:
        """The lane of that name."""
        return next((lane for lane in self.lanes if lane.name == name), None)


class Gate:
    """Lets a task start if no older version of its lane has one before it. One for all
    shards of a worker; what it does not know yet, it holds back.

    Args:
        on_held: told each time that it says no.
    """

    def __init__(self, on_held: Callable[[], None] = lambda: None) -> None:
        self.layout = Layout()
        self._on_held = on_held
        self._sorted: list[tuple[Lane, tuple[Extent, ...]]] = []

    def set(self, layout: Layout) -> bool:
        """The lanes as the database has them now. True if that may let tasks go."""
        if layout == self.layout:
            return False  # and what the old one has worked out stays
        self.layout = layout
        by_first: dict[int, list[Extent]] = {}
        for extent in layout.extents:
            by_first.setdefault(extent.first_shard, []).append(extent)
        self._sorted = [
            (lane, tuple(by_first.get(lane.first_shard, ())))
            for lane in sorted(layout.lanes, key=lambda lane: -lane.first_shard)
        ]
        return True

    def opens(self, group: str, shard_id: int, key: str, version: int) -> bool:
        """Tell whether a task of `key` whose shard was chosen by `version` may start."""
        found = not version or self._opens(group, shard_id, key, version)
        if not found:
            self._on_held()
        return found

    def _opens(self, group: str, shard_id: int, key: str, version: int) -> bool:
        for lane, extents in self._sorted:
            if lane.first_shard <= shard_id:
                return version <= lane.version and not any(
                    extent.holds(group, key, shard_id)
                    for extent in extents
                    if extent.version < version
                )
        return False

    def closings(self, group: str, shard_id: int) -> dict[TaskId, tuple[int, Left]]:
        """Closings of this shard that were read and have something left: (version, what)."""
        found: dict[TaskId, tuple[int, Left]] = {}
        for extent in self.layout.extents:
            left = extent.left.get((group, shard_id))
            if left is not None and not left.nothing and extent.closings:
                found[extent.closings[shard_id - extent.first_shard]] = (extent.version, left)
        return found
