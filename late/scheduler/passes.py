"""Sums over the cores of a worker, with which a pass begins. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from late.scheduler.core.shard_core import ShardCore
from late.scheduler.events_effects import Care


class Totals(NamedTuple):
    """Sums over all shards."""

    repeated: int
    """Tasks that a death would repeat: they run, or have run and are not in the journal."""
    marking: int
    """Attempts whose start is being recorded first."""
    care: Care
    """The starts that are allowed beside them."""
    background: Counter[str]
    """Background tasks under way, by pool."""


def totals_of(cores: Iterable[ShardCore], now_us: int) -> Totals:
    """Add up what `cores` have under way."""
    repeated, marking, below = 0, 0, Counter[str]()
    care: Care = "trial"
    for core in cores:
        repeated += core.state.pending.repeated
        if core.state.background:
            below.update(core.state.background)
        suspects = core.state.suspects
        if suspects.marked:
            marking += suspects.marking
            care = suspects.restricted(care, now_us)
    return Totals(repeated, marking, care, below)
