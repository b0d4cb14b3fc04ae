"""Lanes and their versions, and the decision about when an ordering key may move. Pure.

See `docs/design/0019`. A lane is the shards `[first_shard, first_shard + shards)`. A resize gives
it another number of shards and the next version. A closed version is an `Extent` until every group
has ended its tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import msgspec
import xxhash

from late.model.task import TaskId

DEFAULT_LANE = "default"
"""The lane of tasks that name none."""
KEYS_MAX = 500
"""The most keys that the owner of an old shard names. If more are left, none of its keys may move
yet."""


class Lane(msgspec.Struct, frozen=True):
    """A named range of shards, to which new tasks go."""

    name: str = DEFAULT_LANE
    first_shard: int = 0
    shards: int = 8
    version: int = 0

    def shard_of(self, key: str) -> int:
        """Return the shard of an ordering key."""
        return place(key, self.first_shard, self.shards)


def place(key: str, first_shard: int, shards: int) -> int:
    """Return the shard of an ordering key. The formula is part of the SQL contract."""
    return first_shard + xxhash.xxh3_64_intdigest(key.encode()) % shards


class Left(msgspec.Struct, frozen=True, omit_defaults=True):
    """The keys of an old version that still have tasks in one shard: the result of its closing."""

    keys: tuple[str, ...] = ()
    more: bool = False
    """There are more keys than `keys` can name: no key of the shard may move."""

    @property
    def nothing(self) -> bool:
        return not self.keys and not self.more


class Extent(msgspec.Struct, frozen=True, dict=True):
    """A closed version of a lane."""

    first_shard: int
    version: int
    shards: int
    closings: tuple[TaskId, ...] = ()
    """One closing per shard, ascending. Empty while a transaction may still write by this
    version."""
    left: Mapping[tuple[str, int], Left] = {}
    """By (group, shard), for the shards whose owner has read the closing."""

    def holds(self, group: str, key: str, shard_id: int) -> bool:
        """Tell whether a later task of `key`, in `shard_id`, has to wait for this version."""
        # Tasks in `shard_id` itself do not count: the log's order keeps the later task behind them.
        if self.version == 0:
            # The rows of version 0 were placed by the apps' own `shards=`, which may be fewer than
            # the lane's. So the old shard of a key is not known.
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
        """By group, the shards none of whose keys may move yet. A group without an entry: all."""
        free: dict[str, set[int]] = {group: set() for group, _ in self.left}
        for (group, shard_id), left in self.left.items():
            if not left.more:
                free[group].add(shard_id)
        return {group: frozenset(self._shards) - shards for group, shards in free.items()}

    @cached_property
    def _named(self) -> dict[tuple[str, str], set[int]]:
        """(group, key) -> the shards that name the key.

        It is made once: each core asks for each key that it holds back, many times a second.
        """
        found: dict[tuple[str, str], set[int]] = {}
        for (group, shard_id), left in self.left.items():
            for key in left.keys:
                found.setdefault((group, key), set()).add(shard_id)
        return found


class Layout(msgspec.Struct, frozen=True):
    """The lanes and their closed versions at one time."""

    lanes: tuple[Lane, ...] = ()
    extents: tuple[Extent, ...] = ()

    def lane(self, name: str) -> Lane | None:
        """Return the lane of that name, or None."""
        return next((lane for lane in self.lanes if lane.name == name), None)

    def lane_of(self, shard_id: int) -> str:
        """Return the name of the lane of a shard, which may be beyond its present width;
        `default` while no lane is known."""
        below = [lane for lane in self.lanes if lane.first_shard <= shard_id]
        return max(below, key=lambda lane: lane.first_shard, default=Lane()).name


class Gate:
    """Lets a task start if no older version of its lane has an earlier task of the same key.

    One gate serves all shards of a worker. It holds back tasks of versions that it does not know
    yet.

    Args:
        on_held: called each time that a task may not start.
    """

    def __init__(self, on_held: Callable[[], None] = lambda: None) -> None:
        self.layout = Layout()
        self._on_held = on_held
        self._sorted: list[tuple[Lane, tuple[Extent, ...]]] = []

    def set(self, layout: Layout) -> bool:
        """Use the lanes that the database has now. Return True if tasks may start because of it."""
        if layout == self.layout:
            return False  # The old layout stays, with its cached properties.
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
                if not extents:  # as nearly always: no older version has tasks left
                    return version <= lane.version
                return version <= lane.version and not any(
                    extent.holds(group, key, shard_id)
                    for extent in extents
                    if extent.version < version
                )
        return False

    def closings(self, group: str, shard_id: int) -> dict[TaskId, tuple[int, Left]]:
        """Return the closings of this shard that were read and have keys left.

        Returns:
            The closing's task id -> (version, the keys that are left).
        """
        found: dict[TaskId, tuple[int, Left]] = {}
        for extent in self.layout.extents:
            left = extent.left.get((group, shard_id))
            if left is not None and not left.nothing and extent.closings:
                found[extent.closings[shard_id - extent.first_shard]] = (extent.version, left)
        return found
