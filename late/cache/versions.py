"""The values of a cache, each with the moments between which it is known to be true. Pure.

A version is loaded at one moment and is true there. The reader of the log follows: once it has
read all changes up to a later moment, the `frontier`, a version without a change is true up to
there. With a change it ends at the frontier before: it is true there for certain, and after the
change it is not. Only the set of changes between two frontiers counts, never their order.

Time comes in as seconds of the monotonic clock, taken before a moment was asked for: so an age is
never too small. Not thread-safe.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from late.cache.moment import Moment, later
from late.model.task import TaskId

VERSIONS_MAX = 8
"""The most versions of one key: the last one, and earlier ones for reads of a past moment. While
the frontier lags behind, each load of one value is a version: some four for each change."""
SEEN_MAX = 10_000
"""The changes whose ids are remembered, so that a reader of its own write need not load."""
OVERHEAD_BYTES = 600
"""The memory of a version beside its key and value: objects and places in tables."""


class Change(msgspec.Struct, frozen=True):
    """One record of the log that says that values have changed."""

    task_id: TaskId
    position: int
    keys: tuple[str, ...]


class Version(msgspec.Struct, eq=False):
    """One value of a key, true from `first` to `last`."""

    value: Any
    first: Moment
    """The moment of its load."""
    first_s: float
    """A time before that moment."""
    bytes: int
    last: Moment | None = None
    """The last moment at which it is known to be true; None: no change of it was read."""
    used: bool = False


class Load(msgspec.Struct, eq=False):
    """A load that has begun: it collects the changes that are read meanwhile."""

    keys: frozenset[str]
    began_s: float
    after: frozenset[TaskId]
    """Changes that were committed before it began, as its callers know."""
    frontier: Moment | None
    """The frontier at its beginning. None: the log was not followed, so that nothing is kept."""
    changes: list[Change] = msgspec.field(default_factory=list)


class Answer(msgspec.Struct, frozen=True):
    """Values that are all true at one moment."""

    values: Mapping[str, Any]
    moment: Moment
    moment_s: float
    """A time before that moment."""


class Versions:
    """Versions of keys, the least recently used ones first to go.

    Args:
        bytes_max: the most memory that keys and values may take, in bytes.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._keys: OrderedDict[str, list[Version]] = OrderedDict()
        self._loads: set[Load] = set()
        self._seen: OrderedDict[TaskId, int | Moment] = OrderedDict()
        """A change -> its position, or a moment that sees it."""
        self.frontier: Moment | None = None
        """The moment up to which all changes have been read; None: the log is not followed."""
        self.frontier_s = 0.0
        """A time before that moment."""
        self.bytes = 0
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._keys)

    def follow(self, moment: Moment | None, now_s: float) -> None:
        """Follow the log from `moment` on. All that was known before is forgotten."""
        self._keys.clear()
        self._seen.clear()
        self.bytes = 0
        for load in self._loads:
            load.frontier = None
        self.frontier, self.frontier_s = moment, now_s

    def advance(self, moment: Moment, now_s: float, changes: Sequence[Change]) -> list[str]:
        """Move the frontier to `moment`. `changes` are all that it sees and the last one does not,
        and may be more.

        Returns:
            The keys whose values were asked for and are not known any more.
        """
        ended = []
        for change in changes:
            self._see(change.task_id, change.position)
            ended += [key for key in change.keys if self._end(key, change.position)]
            for load in self._loads:
                if not load.keys.isdisjoint(change.keys):
                    load.changes.append(change)
        self.frontier, self.frontier_s = moment, now_s
        return ended

    def _end(self, key: str, position: int) -> bool:
        """End the versions that were loaded before a change; tell whether one of them was used and
        none is left. Where the new value is here already, it need not be loaded again."""
        used, versions = False, self._keys.get(key, [])
        for version in versions:
            if version.last is None and not version.first.sees(position):
                version.last = later(version.first, self.frontier)
                used = used or version.used
        return used and versions[-1].last is not None

    def _see(self, task_id: TaskId, seen: int | Moment) -> None:
        self._seen.setdefault(task_id, seen)
        if len(self._seen) > SEEN_MAX:
            self._seen.popitem(last=False)

    def begin(self, keys: Iterable[str], after: Iterable[TaskId], now_s: float) -> Load:
        """Note that a load begins; its moment must be taken after this call."""
        load = Load(frozenset(keys), now_s, frozenset(after), self.frontier)
        self._loads.add(load)
        return load

    def abandon(self, load: Load) -> None:
        """Note that a load has failed."""
        self._loads.discard(load)

    def keep(self, load: Load, moment: Moment, values: Mapping[str, tuple[Any, int]]) -> Answer:
        """Keep what a load has found at `moment`, as far as it can be followed from there.

        Args:
            values: key -> the value and its size in bytes, for each key of the load.
        """
        self._loads.discard(load)
        if load.frontier is not None and load.frontier.order <= moment.order:
            missed = {
                key
                for change in load.changes
                if not moment.sees(change.position)
                for key in change.keys
            }
            for task_id in load.after:
                self._see(task_id, moment)
            for key, (value, size) in values.items():
                # A version that ends names two moments.
                size += len(key) + 2 * moment.bytes + OVERHEAD_BYTES
                last = moment if key in missed else None
                self._put(key, Version(value, moment, load.began_s, size, last))
        return Answer({key: value for key, (value, _) in values.items()}, moment, load.began_s)

    def _put(self, key: str, version: Version) -> None:
        if version.bytes > self._bytes_max:
            return
        versions = self._keys.setdefault(key, [])
        versions.append(version)
        versions.sort(key=lambda each: each.first.order)
        self._keys.move_to_end(key)
        self.bytes += version.bytes
        self._drop_covered(versions)
        if len(versions) > VERSIONS_MAX:
            self.bytes -= versions.pop(0).bytes
        while self.bytes > self._bytes_max:
            _, gone = self._keys.popitem(last=False)
            self.bytes -= sum(each.bytes for each in gone)
            self.evictions += 1

    def _drop_covered(self, versions: list[Version]) -> None:
        """Drop each version that is true only while the one before it is: it tells nothing more.

        Without this, loads of an unchanged value would push out the value before the change.
        """
        kept = versions[0]
        for version in versions[1:]:
            if self._last(version).order > self._last(kept).order:
                kept = version
                continue
            kept.used = kept.used or version.used
            versions.remove(version)
            self.bytes -= version.bytes

    def answer(
        self, keys: Sequence[str], *, oldest_s: float, after: Iterable[TaskId] = ()
    ) -> Answer | None:
        """Return values of all keys at their latest common moment, or None if they must be loaded.

        Args:
            oldest_s: the moment must not be known to be older than this time.
            after: changes that the moment must see.
        """
        frontier = self.frontier
        if frontier is None:
            return None
        latest = []
        for key in keys:
            versions = self._keys.get(key)
            if versions is None or versions[-1].last is not None:
                return None
            latest.append(versions[-1])
        moment, moment_s = frontier, self.frontier_s
        reached = frontier.order
        if all(version.first.order <= reached for version in latest):
            moment_s = max([moment_s, *[version.first_s for version in latest]])
        else:  # What was loaded beyond the frontier is known at that moment alone.
            moment, moment_s = latest[0].first, latest[0].first_s
            if any(version.first.order != moment.order for version in latest):
                return None
        if moment_s < oldest_s or not all(self._covers(moment, each) for each in after):
            return None
        values = {}
        for key, version in zip(keys, latest, strict=True):
            version.used = True
            values[key] = version.value
            self._keys.move_to_end(key)
        return Answer(values, moment, moment_s)

    def at(self, keys: Iterable[str], moment: Moment) -> dict[str, Any]:
        """Return the values that are known to be true at `moment`; other keys are left out."""
        found = {}
        for key in keys:
            for version in self._keys.get(key, ()):
                if self._true(version, moment):
                    found[key] = version.value
        return found

    def _true(self, version: Version, moment: Moment) -> bool:
        """Return True if the version is known to be true at `moment`."""
        return version.first.order <= moment.order <= self._last(version).order

    def _last(self, version: Version) -> Moment:
        """Return the last moment at which the version is known to be true."""
        return version.last or later(version.first, self.frontier)

    def _covers(self, moment: Moment, task_id: TaskId) -> bool:
        seen = self._seen.get(task_id)
        if isinstance(seen, Moment):
            return seen.order <= moment.order
        return seen is not None and moment.sees(seen)
