"""Findings about tenants: one that floods a queue with a fair key. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from urllib.parse import quote

from late.autoscaler.keda.demand import Signals
from late.control.findings.model import Finding
from late.control.findings.phrases import count, number
from late.control.status.snapshot import Snapshot
from late.control.views import Count, QueueStatus, Reported
from late.model.queue_settings import QueueSettings

SHARE = 0.5
"""The part of a queue's arrivals, or of its busy slots, from which on one of several tenants floods
it. Its arrivals show for a minute, and its tasks may run for much longer."""
WAITING = 100
"""Tasks below which nobody waits for long."""


def find(seen: Snapshot) -> Iterator[Finding]:
    """Yield a finding for each queue that one of its tenants floods."""
    limited: dict[tuple[str, str], Count] = {}
    for each in seen.status.limited:
        key = (each.group, each.queue)
        limited[key] = limited.get(key, Count()) + each.waiting
    for queue in seen.status.queues:
        key = (queue.group, queue.queue)
        pace = seen.paces.get(key)
        if pace is None or pace.tenants_seen < 2:
            continue
        waits = _waiting(queue, seen.reports, pace) + limited.get(key, Count())
        if waits.n < WAITING:
            continue
        first = pace.tenants[0]
        if max(first.share, first.slot_share) < SHARE:
            continue
        share = seen.queues.get(queue.queue, QueueSettings()).fair_share or 0.25
        text = (
            f"{number(first.arrivals)} tasks/s, {first.share:.0%} of what {pace.tenants_seen} "
            f"tenants send, and {first.slot_share:.0%} of the busy slots "
            f"({number(first.slots)}). {count(waits)} wait. While others wait it gets "
            f"{share:.0%} of the slots (fair_share)."
        )
        yield Finding(
            "warn", f"Tenant {first.tenant} floods queue {queue.queue}", text,
            f"queues/{quote(queue.queue, safe='')}",
            f"late queue set {queue.queue} fair_share={share / 2:g}",
            groups=frozenset({queue.group}), queues=frozenset({queue.queue}),
        )  # fmt: skip


def _waiting(queue: QueueStatus, reports: Iterable[Reported], pace: Signals) -> Count:
    """Return the tasks of a queue that have not started, in the log and with workers.

    What runs is with workers too. Workers that run something for long report how much they run;
    what ends soon shows in the pace.
    """
    told = sum(each.report.running for each in reports
               if each.working and queue.group in each.report.groups)  # fmt: skip
    runs = max(told, math.ceil(pace.rate * pace.busy_s))
    known = queue.depth + queue.in_flight
    return Count(max(queue.depth.n, known.n - runs), known.capped)
