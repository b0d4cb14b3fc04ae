"""The first screen: a list of problems, the worst first, and the flow. Pure.

The problems are those of `late.control.findings`, as in `late top` and `late doctor`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from late.control.findings.findings import failing, findings
from late.control.findings.model import Finding, Level
from late.control.findings.workers import standing, unheard
from late.control.status.old_transactions import GRANT
from late.control.status.snapshot import Snapshot
from late.control.views import Count, QueueStatus
from late.observability.alerts.rules import FRESHNESS_S
from late.web.formats import age, count, number

SHOWN = 30
"""Problems that are listed; the others are only counted."""
BUSIEST = 10


class Tile(msgspec.Struct, frozen=True):
    """One figure."""

    label: str
    value: str
    note: str = ""
    level: Level = "ok"


class Overview(msgspec.Struct, frozen=True):
    """The model of the screen."""

    tiles: tuple[Tile, ...]
    attention: tuple[Finding, ...]
    more: int
    """Things to look at that are not listed."""
    critical: int
    """The number of all that are."""
    since_us: int | None
    """Since when there is something of the worst level, as far as that is known."""
    busiest: tuple[QueueStatus, ...]
    backlog: str
    """A sentence on the tasks that wait and how fast they end; empty if none waits."""
    still: bool
    """True if something waits and nothing has ended in the last minute."""
    unseen: str = ""
    """A sentence on what this login to the database may not see; empty if it sees all."""


def overview(seen: Snapshot, *, most: int | None = SHOWN) -> Overview:
    """Make the model from a snapshot, with `most` problems; None: with all."""
    found = findings(seen)
    busiest = sorted(seen.status.queues, key=lambda q: (-q.depth.n - q.in_flight.n, q.queue))
    return Overview(
        # What could not be read is not zero.
        tiles=() if seen.partial else tuple(_tiles(seen)),
        attention=tuple(found[:most]),
        more=len(found) - len(found[:most]),
        critical=sum(each.level == "bad" for each in found),
        since_us=_since(found),
        busiest=tuple(busiest[:BUSIEST]),
        backlog=_backlog(seen),
        still=_still(seen),
        unseen=_unseen(seen),
    )


def _unseen(seen: Snapshot) -> str:
    """Say that a finding may be missing, as the database does not show all."""
    n = seen.hidden_sessions
    if not n:
        return ""
    many = f"{n} sessions of other roles" if n > 1 else "1 session of another role"
    return f"Old transactions of {many} would not be named: {GRANT}."


def _waiting(seen: Snapshot) -> Count:
    return sum((each.depth + each.in_flight for each in seen.status.queues), start=Count())


def _still(seen: Snapshot) -> bool:
    return _waiting(seen).n > 0 and not any(each.rate > 0 for each in seen.signals.values())


def _backlog(seen: Snapshot) -> str:
    """Say how many tasks wait or run, and how fast they end."""
    waits = _waiting(seen)
    if not waits.n:
        return ""
    text = f"{count(waits)} {'task waits or runs' if waits.n == 1 else 'tasks wait or run'}"
    if not seen.status.workers:  # What ended was the work of those that were alive.
        return f"{text}." if unheard(seen) else f"{text}, and no worker is there to run them."
    if _still(seen):
        return f"{text}, and no attempt ended in the last minute."
    rate = sum(each.rate for each in seen.signals.values())
    failed = sum(each.failed for each in seen.signals.values())
    fails = f", {failed / rate:.0%} of them fail" if failing(failed / rate) != "ok" else ""
    return f"{text}; {number(rate)} attempts/s end{fails}: {_drained(seen) or 'gone at once'}."


def _since(found: Sequence[Finding]) -> int | None:
    """Return the earliest known time of those of the worst level, which come first."""
    known = [
        each.since_us
        for each in found
        if each.level == found[0].level and each.since_us is not None
    ]
    return min(known, default=None)


def _tiles(seen: Snapshot) -> Iterator[Tile]:
    status = seen.status
    total = {
        field: sum((getattr(queue, field) for queue in status.queues), start=Count())
        for field in ("depth", "in_flight", "parked", "dead")
    }
    rate = sum(each.rate for each in seen.signals.values())
    stale = max((s.stale_s for s in status.shards), default=None)
    yield Tile("Flow", f"{number(rate)}/s", "attempts, last minute")
    failed = sum(each.failed for each in seen.signals.values())
    yield Tile("Backlog", count(total["depth"] + total["in_flight"]), _drained(seen))
    share = failed / rate if rate else 0.0
    yield Tile("Errors", f"{number(failed)}/s", f"{share:.0%} of attempts", failing(share))
    late = stale is not None and stale > FRESHNESS_S
    yield Tile("Freshness", age(stale), "the oldest that is not done", "bad" if late else "ok")
    limited = sum((each.waiting for each in status.limited), start=Count())
    why = f"{count(limited)} by a limit or an outage" if limited.n else "wait for a time or a key"
    yield Tile("Parked", count(total["parked"]), why)
    yield Tile("Dead", count(total["dead"]), "dead letters", "warn" if total["dead"].n else "ok")
    workers = len(status.workers)
    still = len(standing(seen))
    note = f"alive; {still} stand still" if still else "alive"
    yield Tile("Workers", number(workers), note, "bad" if still or not workers else "ok")


def _drained(seen: Snapshot) -> str:
    """The time until the backlog is gone at the present pace, in the group that takes longest."""
    if unheard(seen):
        return ""
    # What a pause, a limit or a target holds back does not move at that pace.
    held = sum(each.backlog - each.moving for each in seen.signals.values())
    groups = [each for each in seen.signals.values() if each.moving]
    if held and not groups:
        return "all of it is held back"
    # The rate is of the last minute: nothing of it says when a group without workers ends.
    drains = [each.moving_s if each.workers else math.inf for each in groups]
    still = drains.count(math.inf)
    if still and still == len(drains):
        return "nothing moves"
    if still:
        return f"{still} of {len(drains)} groups stand still"
    but = f", but {held:,} are held back" if held > 0 else ""
    return f"gone in {age(max(drains))}{but}" if drains else ""
