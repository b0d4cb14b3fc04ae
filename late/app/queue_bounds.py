"""Refuse tasks for queues that hold too many, by the depths that were published last."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from late.errors import QueueFull

STALE_S = 5.0
"""A published depth that is older than this is ignored."""


class Depth(NamedTuple):
    """The number of tasks that wait in a queue, as it was published."""

    tasks: int
    bound: int | None
    """The bound of the queue's knob, if it has one."""
    at_s: float
    """The value of `time.monotonic()` at that moment."""


def check(
    queues: Iterable[str], depths: Mapping[str, Depth], max_backlog: int | Mapping[str, int] | None
) -> None:
    """Raise `QueueFull` if one of `queues` has reached the lower of its two bounds."""
    for queue in queues:
        depth = depths.get(queue)
        if depth is None or time.monotonic() - depth.at_s > STALE_S:
            continue
        own = max_backlog.get(queue) if isinstance(max_backlog, Mapping) else max_backlog
        bound = min([each for each in (own, depth.bound) if each is not None], default=None)
        if bound is None or depth.tasks < bound:
            continue
        if bound == 0:
            raise QueueFull(f"queue {queue!r} is closed: it takes no new tasks")
        raise QueueFull(f"queue {queue!r} holds {depth.tasks} tasks, its bound is {bound}")
