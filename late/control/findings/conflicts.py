"""Findings about transactions that get into each other's way. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from late.control.analyze.report import UNKNOWN, Pair
from late.control.findings.model import Finding
from late.control.findings.outages import told
from late.control.findings.phrases import age
from late.control.status.snapshot import Snapshot

SHARE = 0.05
"""The part of the handlers' running time from which on a pair's lost time is a finding."""
LOST_S = 5.0
"""Seconds lost in ten minutes below which no pair matters. The alert has both limits too."""
PAIRS_MAX = 5


def find(seen: Snapshot) -> Iterator[Finding]:
    """Yield a finding for each pair that costs more than its share; bad, if it fails a task."""
    failing = {outage.task for outage in told(seen)}
    for pair, finding in _pairs(seen):
        bad = not failing.isdisjoint(map(_task, pair.tags))
        yield msgspec.structs.replace(finding, level="bad") if bad else finding


def causes(seen: Snapshot) -> dict[str, Finding]:
    """Return by task the finding on the pair that costs it most."""
    found: dict[str, Finding] = {}
    for pair, finding in _pairs(seen):
        for task in map(_task, pair.tags):
            found.setdefault(task, finding)
    return found


def _task(tag: str) -> str:
    """Return the task whose handler has transactions of this tag; of others a text that is none."""
    return tag.partition(":")[2]


def _pairs(seen: Snapshot) -> Iterator[tuple[Pair, Finding]]:
    since_us = min((each.started_at_us for each in seen.status.workers), default=0)
    # Workers that have just started have not run for all of that time.
    for_s = min(seen.live_conflicts.for_s, (seen.status.now_us - since_us) / 1e6)
    ran_s = sum(each.rate * each.busy_s for each in seen.signals.values()) * for_s
    for pair in seen.live_conflicts.pairs[:PAIRS_MAX]:
        if pair.lost_s >= LOST_S and pair.lost_s >= SHARE * ran_s:
            yield pair, _of(pair, ran_s, for_s)


def _of(pair: Pair, ran_s: float, for_s: float) -> Finding:
    one, two = pair.tags
    if UNKNOWN in pair.tags:
        what = f"Transactions {two if one == UNKNOWN else one} lose time to others"
    elif one == two:
        what = f"Transactions {one} are in each other's way"
    else:
        what = f"Transactions {one} and {two} are in each other's way"
    share = f", {min(1.0, pair.lost_s / ran_s):.0%} of the running time" if ran_s else ""
    where = f" on {pair.places[0].place}" if pair.places else ""
    text = (
        f"They lost {age(pair.lost_s)} in {age(for_s)}{where}{share}. What helps: {pair.advice[0]}."
    )
    return Finding("warn", what, text, "conflicts", "late analyze --seconds 30")
