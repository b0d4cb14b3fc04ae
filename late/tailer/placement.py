"""Name the worker that should own each key: rendezvous hashing with bounded loads.

Every worker computes the same answer from the same list of peers, with no coordinator and no
table. For each key every node gets a score that depends on the two alone::

    h     = hash(node, key), uniform in (0, 1)
    score = -weight / ln(h)

`-ln(h)` is exponentially distributed with rate 1, so dividing by the weight makes the node with
weight `w` win with probability `w / sum(weights)`. If the highest score simply wins (`owner`), the
number of keys of a node is random: with eight keys a node on average, the fullest of 64 nodes has
17. A drain takes as long as the fullest node does. So loads are **bounded** (`place`):

1. the share of a node is `keys * weight / sum(weights)`, and it gets that number rounded down or
   up. The keys left over when all shares are rounded down are the *extras*. One node gets one of
   them at most, and only if its share is no whole number;
2. nodes whose share is below one come first for the extras: no node is idle for want of what
   another one has in addition;
3. the pairs of (key, node) are gone through from the highest score down. A pair holds if its key
   has no owner yet and its node has room: up to its share rounded down, or by one of the extras.

So a key goes to its best node, and from a full one to its next best. A node that joins or leaves
moves what it gets or had, and some keys between others, because the bounds of all have changed.

Only the best node of each key is computed at first. The next one follows when that one is full, by
a look at those that are not: a full node stays full. That costs keys * nodes hashes, and some more.

**Versions.** A worker announces the highest number of placement that it knows beside its version
(`announced`), and all go by the lowest one in the group (`agreed`). A worker from before the first
number places by the highest score alone, and so do all others beside it. Beside the number it
announces the lanes that it serves, if not all, and that it waits on standby or the place that it
has taken (`standby.py`).

Source: Thaler and Ravishankar, "A name-based mapping scheme for rendezvous" (1996); the weighted
form after Schindelhauer and Schomaker, "Weighted distributed hash tables" (2005); bounds after
Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing with bounded loads" (2016).
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Collection, Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import xxhash

from late.store.base import CHANGES, TELLS

HIGHEST_SCORE = 1
"""The placement of workers that announce none."""
BOUNDED = 2
"""The placement with bounded loads."""
PLACES = 3
"""The same, by the places of workers (`standby.py`)."""
LANES = 4
"""The same, for each lane among the workers that serve it (`ownership.py`). This version knows no
higher number."""

_ANNOUNCED = re.compile(
    r"[+.](?:lanes=([^+|.]+)\.)?(?:(standby)\.|place\.([^+|]+)\.)?placement\.(\d{1,9})$"
)
# A worker that knows no lanes searches for what comes behind them. In a name of a lane a dot is
# written as `~`, which no name has, so that it finds nothing of that in a name.


def announced(
    version: str, *, standby: bool = False, place: str = "", lanes: Collection[str] = ()
) -> str:
    """Return the version of a worker as its row shows it.

    With it go the number of its placement, that it counts and tells its changes of the fleet
    (`late.store.base.CHANGES` and `TELLS`), the `lanes` that it serves if not all, and that it
    waits on standby or has taken a `place` not its own.
    """
    said = [f"{version}{'.' if '+' in version else '+'}{CHANGES}.{TELLS}"]
    if lanes:
        said.append("lanes=" + ",".join(sorted(set(lanes))).replace(".", "~"))
    if standby or place:
        said.append("standby" if standby else f"place.{place}")
    return ".".join([*said, f"placement.{LANES}"])


def agreed(versions: Iterable[str]) -> int:
    """Return the number of the placement that workers of these versions have in common."""
    return min((_said(version).number for version in versions), default=LANES)


def waits(version: str) -> bool:
    """Return whether a worker of this version waits on standby."""
    return _said(version).waits


def place_of(version: str) -> str:
    """Return the place that a worker of this version has taken; empty: that of its own id."""
    return _said(version).place


def lanes_of(version: str) -> tuple[str, ...]:
    """Return the lanes that a worker of this version serves, ascending; empty: all."""
    return _said(version).lanes


def without_lanes(version: str) -> str:
    """Return a version without the lanes that it names: they are shown beside it."""
    return (
        re.sub(r"[.]lanes=[^+|.]+(?=[.])", "", version, count=1) if lanes_of(version) else version
    )


def owners(keys: Collection[str], weights: Mapping[str, float], number: int) -> dict[str, str]:
    """Return key -> node by the placement of this number (`agreed`)."""
    if number >= BOUNDED:
        return place(keys, weights)
    return {key: owner(key, weights) for key in keys}


def owner(key: str, weights: Mapping[str, float]) -> str:
    """Return the node with the highest score. Equal scores go to the greater name.

    Args:
        weights: node -> positive, finite weight; not empty.
    """
    return max(weights, key=lambda node: (_score(_digest(node, key), weights[node]), node))


def place(keys: Collection[str], weights: Mapping[str, float]) -> dict[str, str]:
    """Return key -> node with bounded loads. The order of the arguments does not matter.

    Args:
        weights: node -> positive, finite weight; not empty.
    """
    keys = set(keys)
    rooms = _Rooms(len(keys), weights)
    candidates: dict[float, list[bytes]] = {}
    for node in sorted(filter(rooms.has, weights), reverse=True):
        candidates.setdefault(weights[node], []).append(f"{node}|".encode())
    offers = []
    for key in keys:
        score, node = _best(key, candidates)
        offers.append((-score, key, node))
    heapq.heapify(offers)
    placed: dict[str, str] = {}
    while offers:
        _, key, node = offers[0]
        if rooms.has(node):
            rooms.take(node)
            placed[key] = node
            heapq.heappop(offers)
            continue
        for weight, prefixes in candidates.items():
            candidates[weight] = [each for each in prefixes if rooms.has(_name(each))]
        score, node = _best(key, candidates)
        heapq.heapreplace(offers, (-score, key, node))
    return placed


class _Rooms:
    """Counts the keys that each node may still get."""

    def __init__(self, keys: int, weights: Mapping[str, float]) -> None:
        exact = {node: Fraction(weight) for node, weight in weights.items()}
        total = sum(exact.values())
        self._left: dict[str, int] = {}
        self._eligible: set[str] = set()
        """Nodes that may get one of the extras."""
        for node, weight in exact.items():
            self._left[node], rest = divmod(keys * weight, total)
            if rest:
                self._eligible.add(node)
        self._extras = keys - sum(self._left.values())
        below_one = {node for node in self._eligible if not self._left[node]}
        if len(below_one) > self._extras:
            self._eligible = below_one
            return
        self._left.update(dict.fromkeys(below_one, 1))
        self._eligible -= below_one
        self._extras -= len(below_one)

    def has(self, node: str) -> bool:
        """Return whether the node may get one more."""
        return self._left[node] > 0 or (self._extras > 0 and node in self._eligible)

    def take(self, node: str) -> None:
        """Count one more key of a node that has room."""
        if self._left[node] > 0:
            self._left[node] -= 1
            return
        self._extras -= 1
        self._eligible.remove(node)


def _best(key: str, candidates: Mapping[float, list[bytes]]) -> tuple[float, str]:
    """Return the highest score and its node.

    Args:
        candidates: weight -> nodes with a `|` behind, the greatest name first. Of nodes with equal
            weights the greatest hash wins, so the logarithm is taken once for each weight.
    """
    behind, digest = key.encode(), xxhash.xxh3_64_intdigest
    found = []
    for weight, prefixes in candidates.items():
        if prefixes:
            digests = [digest(prefix + behind) for prefix in prefixes]
            highest = max(digests)
            found.append((_score(highest, weight), _name(prefixes[digests.index(highest)])))
    return max(found)


def _name(prefix: bytes) -> str:
    return prefix[:-1].decode()


def _digest(node: str, key: str) -> int:
    # A worker's id holds no `|`, so two pairs never hash the same text.
    return xxhash.xxh3_64_intdigest(f"{node}|{key}".encode())


def _score(digest: int, weight: float) -> float:
    # 52 bits and a half are exact in a double and never 0 or 1, where the logarithm is no use.
    return -weight / math.log(((digest >> 12) + 0.5) / 2**52)


class _Said(NamedTuple):
    """The part in placement that a worker announces."""

    waits: bool
    place: str
    """Empty: it names none."""
    number: int
    lanes: tuple[str, ...]
    """Empty: it names none."""


@lru_cache(maxsize=4096)
def _said(version: str) -> _Said:
    found = _ANNOUNCED.search(version)
    if not found:
        return _Said(False, "", HIGHEST_SCORE, ())
    lanes, standby, place, number = found.groups()
    names = sorted(lanes.replace("~", ".").split(",")) if lanes else ()
    return _Said(bool(standby), place or "", min(int(number), LANES), tuple(names))
