"""The tasks of one (group, shard) at a past moment, led back from the tables of now. Pure.

    unfinished then = unfinished now - read since + ended since

Unfinished are the tasks that are open or parked. How many of them were open is in the settlement of
then, so the others were parked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from late.control.past.journal import Since
from late.control.views import Count


class Unfinished(msgspec.Struct, frozen=True):
    """Open and parked tasks, by queue."""

    in_flight: Mapping[str, Count]
    parked: Mapping[str, Count]


def unfinished_then(now: Mapping[str, int], since: Since) -> dict[str, int] | None:
    """Return the number of unfinished tasks by queue; None if the books do not tell."""
    if since.anew or since.redriven:
        return None
    found: Counter[str] = Counter(now)
    found.subtract(since.arrived)
    found.update(since.ended)
    return None if min(found.values(), default=0) < 0 else {q: n for q, n in found.items() if n}


def split(
    unfinished: Mapping[str, int], open_count: int, opened: Iterable[str] | None
) -> Unfinished | None:
    """Tell open tasks from parked ones; None if the numbers do not fit together.

    Where the queues of the open tasks are not known, both counts are the least that is possible.

    Args:
        open_count: the number of open tasks of the shard.
        opened: their queues, one for each; None if some are not known.
    """
    total = sum(unfinished.values())
    known = None if opened is None else Counter(opened)
    in_flight, parked = {}, {}
    for queue, n in unfinished.items():
        least, most = max(0, open_count - (total - n)), min(open_count, n)
        if known is not None:
            least = most = known[queue]
        in_flight[queue] = Count(least, least < most)
        parked[queue] = Count(n - most, least < most)
    fits = open_count <= total and all(each.n >= 0 for each in parked.values())
    if known is not None and not known.keys() <= unfinished.keys():
        return None
    return Unfinished(in_flight, parked) if fits else None
