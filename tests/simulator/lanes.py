"""Lanes of a simulated world, and workers that serve some of them.

| invariant | judged at |
|---|---|
| E11 a shard's owner serves its lane, unless a worker lives that knows no lanes | the end |
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from late.model.lanes import Lane, Layout
from late.tailer.placement import lanes_of

FIRST_SEED = 930_000
"""Worlds of lower seeds have one lane."""
CHOICES = ((), ("default",), ("bulk",), ("bulk", "default"))


def layout_of(seed: int, shards: int) -> Layout:
    """Return the lanes of a world: the upper half of its shards is the second one."""
    if seed < FIRST_SEED or shards == 1:
        return Layout((Lane(shards=shards),))
    half = shards // 2
    return Layout((Lane(shards=half), Lane("bulk", half, shards - half)))


def served(layout: Layout, rng: random.Random, place: int) -> tuple[str, ...]:
    """Return the lanes of a new process; empty: all. That of the first place serves all, so that
    no lane is left for good."""
    if place == 0 or len(layout.lanes) == 1:
        return ()
    return rng.choice(CHOICES)


def strays(layout: Layout, held: Iterable[tuple[str, Iterable[tuple[str, int]]]]) -> list[str]:
    """Return the workers that hold a shard of a lane which they do not serve.

    Args:
        held: (version, (group, shard) of those that it holds) of each live worker.
    """
    found = []
    for version, shards in held:
        lanes = lanes_of(version)
        if version == "1":
            return []
        if lanes and any(layout.lane_of(shard_id) not in lanes for _, shard_id in shards):
            found.append(version)
    return found
