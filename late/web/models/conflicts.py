"""Transactions in each other's way: the model of their screen. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

from late.control.analyze.report import Pair, Place
from late.control.analyze.reported import Conflicts

SHOWN = 50
DETAILED = 10
"""Pairs whose statements and remedies are shown."""
WORSE, BETTER = 1.5, 0.67
"""The time lost now by that of before: from the first on it got worse, up to the second better."""

Trend = Literal["new", "worse", "alike", "better", "gone"]


class PairRow(msgspec.Struct, frozen=True):
    """One pair, now and before."""

    tags: tuple[str, str]
    lost_s: float
    before_s: float
    trend: Trend
    pair: Pair | None
    """None if it was seen before and is not any more."""

    @property
    def level(self) -> Literal["warn", "ok"]:
        return "warn" if self.trend in ("new", "worse") else "ok"

    @property
    def places(self) -> list[Place]:
        return [] if self.pair is None else self.pair.places

    @property
    def kinds(self) -> str:
        """Return the number of conflicts of each kind, for people."""
        if self.pair is None:
            return ""
        return ", ".join(f"{kind} {n:,}" for kind, n in self.pair.kinds.items())


class Page(msgspec.Struct, frozen=True):
    """The model of the screen."""

    for_s: float
    lost_s: float
    before_s: float
    rows: tuple[PairRow, ...]
    detailed: tuple[Pair, ...]
    more: int
    """Pairs that are not listed."""


def page(found: Conflicts) -> Page:
    """Make the rows: what costs most now first, then what is over."""
    now = {pair.tags: pair for pair in found.pairs}
    minutes = found.for_s / 60
    before = {each.tags: (each.before or 0.0) * minutes for each in found.changes}
    order = [*now, *sorted(before.keys() - now.keys(), key=lambda tags: (-before[tags], tags))]
    rows = [_row(tags, now.get(tags), before.get(tags, 0.0)) for tags in order]
    return Page(
        for_s=found.for_s,
        lost_s=found.lost_s,
        before_s=sum(before.values()),
        rows=tuple(rows[:SHOWN]),
        detailed=tuple(found.pairs[:DETAILED]),
        more=len(rows[SHOWN:]),
    )


def _row(tags: tuple[str, str], pair: Pair | None, before_s: float) -> PairRow:
    lost_s = 0.0 if pair is None else pair.lost_s
    return PairRow(tags, lost_s, before_s, _trend(lost_s, before_s, pair is None), pair)


def _trend(lost_s: float, before_s: float, gone: bool) -> Trend:
    if gone:
        return "gone"
    if before_s <= 0:
        return "new"
    ratio = lost_s / before_s
    return "worse" if ratio >= WORSE else "better" if ratio <= BETTER else "alike"
