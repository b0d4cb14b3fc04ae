"""The first screen: a list of problems, the worst first, and the flow. Pure.

The limits are those of the alerts (`late.observability.alerts`), so that the page and the alerts
agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal
from urllib.parse import quote

import msgspec

from late.control.views import Count, GroupView, QueueStatus
from late.model.queue_settings import QueueSettings
from late.observability.alerts.rules import FRESHNESS_S, OBJECTIVE_S
from late.web.formats import age, count, number
from late.web.snapshot import Snapshot

Level = Literal["bad", "warn", "ok"]
SHOWN = 30
"""Problems that are listed; the others are only counted."""
BUSIEST = 10
FAILING, FAILING_BAD = 0.05, 0.5
"""Parts of attempts that fail: from the first on it is a warning, from the second on an outage."""


class Tile(msgspec.Struct, frozen=True):
    """One figure."""

    label: str
    value: str
    note: str = ""
    level: Level = "ok"


class Attention(msgspec.Struct, frozen=True):
    """One thing to look at."""

    level: Level
    what: str
    detail: str
    href: str
    """A link, relative to the root of the page."""


class Overview(msgspec.Struct, frozen=True):
    """The model of the screen."""

    tiles: tuple[Tile, ...]
    attention: tuple[Attention, ...]
    more: int
    """Things to look at that are not listed."""
    busiest: tuple[QueueStatus, ...]


def overview(seen: Snapshot) -> Overview:
    """Make the model from a snapshot."""
    found = sorted(attention(seen), key=lambda each: each.level != "bad")
    busiest = sorted(seen.status.queues, key=lambda q: (-q.depth.n - q.in_flight.n, q.queue))
    return Overview(
        tiles=tuple(_tiles(seen)),
        attention=tuple(found[:SHOWN]),
        more=max(0, len(found) - SHOWN),
        busiest=tuple(busiest[:BUSIEST]),
    )


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
    yield Tile("Errors", f"{number(failed)}/s", f"{share:.0%} of attempts", _failing(share))
    late = stale is not None and stale > FRESHNESS_S
    yield Tile("Freshness", age(stale), "all older is done", "bad" if late else "ok")
    yield Tile("Parked", count(total["parked"]), "delays and retries")
    yield Tile("Dead", count(total["dead"]), "dead letters", "warn" if total["dead"].n else "ok")
    workers = len(status.workers)
    yield Tile("Workers", number(workers), "alive", "ok" if workers else "bad")


def _drained(seen: Snapshot) -> str:
    """The time until the backlog is gone at the present pace, in the group that takes longest."""
    drains = [each.drain_s for each in seen.signals.values() if each.backlog]
    still = drains.count(math.inf)
    if still and still == len(drains):
        return "nothing moves"
    if still:
        return f"{still} of {len(drains)} groups stand still"
    return f"gone in {age(max(drains))}" if drains else ""


def _failing(share: float) -> Level:
    return "bad" if share >= FAILING_BAD else "warn" if share >= FAILING else "ok"


def attention(seen: Snapshot) -> Iterator[Attention]:
    """List everything that an operator should look at, in the order of the subjects."""
    if not seen.status.workers:
        yield Attention("bad", "No worker is alive", "Nothing runs until one starts.", "workers")
    for group in seen.groups:
        yield from _of_group(group, seen)
    for of in seen.status.unhandled:
        text = f"{count(of.waiting)} of queue {of.queue} wait, the first for {age(of.since_s)}."
        text += _able(of.handlers)
        yield Attention("bad", f"No worker of {of.group} can run {of.task}", text, "timers")
    for queue in seen.status.queues:
        yield from _of_queue(queue, seen.queues.get(queue.queue, QueueSettings()))


def _able(handlers: int | None) -> str:
    """Say how many live workers have a handler, where that is known."""
    if handlers is None:
        return ""
    workers = "worker has" if handlers == 1 else "workers have"
    return f" {handlers or 'No'} live {workers} a handler."


def _of_group(group: GroupView, seen: Snapshot) -> Iterator[Attention]:
    where = f"groups/{quote(group.name, safe='')}"
    ours = [shard for shard in seen.status.shards if shard.group == group.name]
    homeless = sum(not shard.owner_live for shard in ours)
    if group.state == "paused":
        if group.lag.n:
            text = f"{count(group.lag)} wait, the oldest for {age(group.lag_s)}."
            yield Attention("warn", f"Group {group.name} is paused", text, where)
        return
    if group.state == "unregistered":
        text = "It has no row of its own: late group create."
        yield Attention("warn", f"Group {group.name} is not registered", text, where)
    if homeless and group.workers:
        text = f"{homeless} of {len(ours)} shards have no live owner."
        link = f"shards?group={quote(group.name, safe='')}"
        yield Attention("bad", f"Shards of {group.name} are not worked", text, link)
    elif homeless and group.lag.n:
        text = f"No live worker serves it; {count(group.lag)} wait."
        yield Attention("bad", f"Nobody works group {group.name}", text, "workers")
    pace = seen.signals.get(group.name)
    if pace is not None and pace.rate and _failing(pace.failed / pace.rate) != "ok":
        share = pace.failed / pace.rate
        text = f"{number(pace.failed)}/s, {share:.0%} of its attempts, in the last minute."
        yield Attention(_failing(share), f"Tasks of {group.name} fail", text, "dead")
    if group.lagging:
        text = f"The oldest that it has not read is {age(group.lag_s)} old."
        yield Attention("bad", f"Group {group.name} lags", text, where)
    elif group.stale_s is not None and group.stale_s > FRESHNESS_S:
        text = f"Only what is older than {age(group.stale_s)} is done."
        yield Attention("warn", f"Group {group.name} is stale", text, where)


def _of_queue(queue: QueueStatus, settings: QueueSettings) -> Iterator[Attention]:
    where = f"queues/{quote(queue.queue, safe='')}"
    name = f"{queue.queue} ({queue.group})"
    waits = queue.depth + queue.in_flight
    objective_s = settings.objective_s or OBJECTIVE_S
    if settings.paused and waits.n:
        text = f"{count(waits)} wait, the oldest for {age(queue.oldest_age_s)}."
        yield Attention("warn", f"Queue {name} is paused", text, where)
    elif queue.oldest_age_s is not None and queue.oldest_age_s > objective_s:
        text = f"The oldest is {age(queue.oldest_age_s)} old; its objective is {age(objective_s)}."
        level: Level = "bad" if settings.severity == "page" else "warn"
        yield Attention(level, f"Queue {name} is behind", text, where)
    if settings.closed:
        yield Attention("warn", f"Queue {name} is closed", "It refuses new tasks.", where)
    if queue.dead.n:
        link = f"dead?queue={quote(queue.queue, safe='')}&group={quote(queue.group, safe='')}"
        text = f"{count(queue.dead)} wait for a decision."
        yield Attention("warn", f"Dead letters in {name}", text, link)
