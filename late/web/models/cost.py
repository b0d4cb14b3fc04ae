"""The usage of today by owner and queue, from the journal. Pure.

It shows usage and not money. The reports (`late report cost`) show prices: they divide a bill
exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from late.model.queue_settings import QueueSettings
from late.model.task import ENQUEUED, Usage

DAY_US = 86_400_000_000
ENDS = frozenset({"done", "dead", "expired", "discarded", "cancelled"})
NOBODY = "nobody"


class Share(msgspec.Struct):
    """Counts of one queue in one group; additive."""

    enqueued: int = 0
    ended: int = 0
    attempts: int = 0
    retries: int = 0
    busy_us: int = 0
    payload_bytes: int = 0

    def add(self, usage: Usage) -> None:
        if usage.outcome == ENQUEUED:
            self.enqueued += usage.count
            return
        self.ended += usage.count if usage.outcome in ENDS else 0
        self.attempts += usage.attempts
        self.retries += usage.retries
        self.busy_us += usage.busy_us
        self.payload_bytes += usage.payload_bytes


class Line(msgspec.Struct, frozen=True):
    """One line of the screen."""

    owner: str
    group: str
    queue: str
    share: Share
    part: float
    """The part of all running time, 0..1."""


def lines(
    shares: Mapping[tuple[str, str], Share], settings: Mapping[str, QueueSettings]
) -> list[Line]:
    """Make the lines by owner, the largest first, and likewise the queues of each owner."""
    whole = sum(share.busy_us for share in shares.values()) or 1
    by_owner: dict[str, int] = {}
    found = []
    for (group, queue), share in shares.items():
        owner = settings.get(queue, QueueSettings()).owner or NOBODY
        by_owner[owner] = by_owner.get(owner, 0) + share.busy_us
        found.append(Line(owner, group, queue, share, share.busy_us / whole))
    return sorted(found, key=lambda x: (-by_owner[x.owner], x.owner, -x.share.busy_us, x.queue))


def together(found: Sequence[Line]) -> Share:
    """Add up lines that are not shown one by one."""
    whole = Share()
    for line in found:
        for name in Share.__struct_fields__:
            setattr(whole, name, getattr(whole, name) + getattr(line.share, name))
    return whole


def add(shares: dict[tuple[str, str], Share], found: Iterable[tuple[str, Usage]]) -> None:
    """Add counts to the share of their queue."""
    for group, usage in found:
        shares.setdefault((group, usage.queue), Share()).add(usage)


def day_of(us: int) -> int:
    """The last midnight before this moment, in UTC; microseconds."""
    return us - us % DAY_US
