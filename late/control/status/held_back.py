"""The part of a queue's tasks that more workers would start, and what holds the others. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from late.control.views import QueueStatus, Reported
from late.model.queue_settings import QueueSettings

NAMED = 3
"""So many of those that hold tasks back are named."""
NEAR = 0.9
"""The part of a limit from which on it counts as reached."""


class Pace(NamedTuple):
    """The attempts of a queue, lately."""

    rate: float
    """Attempts that ended per second."""
    slots: float
    """Slots that they kept busy."""


def helped(
    queue: QueueStatus,
    settings: QueueSettings,
    pace: Pace,
    held: Mapping[str, int],
    parked: int,
) -> tuple[int, str]:
    """Return how many tasks of a queue more workers would start, and what holds the others.

    Args:
        held: tasks in workers' memory that an open circuit or a limit key holds back, by its words.
        parked: tasks of the queue that a limit has parked.
    """
    if settings.paused:
        return 0, f"queue {queue.queue} is paused"
    if settings.rate is not None and pace.rate >= NEAR * settings.rate:
        return 0, f"queue {queue.queue} has its rate of {settings.rate:g}/s"
    most = settings.concurrency
    if isinstance(most, int) and pace.slots >= NEAR * most:
        return 0, f"queue {queue.queue} has its {most} attempts at once"
    if tasks := sum(held.values()):
        # What is not read yet goes where the others of its queue go.
        free = max(0.0, 1 - tasks / max(1, queue.in_flight.n))
        return math.floor(queue.waiting * free), f"{queue.queue} waits for {_names(held)}"
    # With more slots in the fleet each tenant's share of them is more.
    return queue.waiting + (0 if settings.fair_key is None else parked), ""


def _names(held: Mapping[str, int]) -> str:
    """Name those that hold most back."""
    names = sorted(held, key=lambda name: (-held[name], name))
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return "; ".join(names[:NAMED]) + more


def held_in_memory(reports: Iterable[Reported]) -> dict[tuple[str, str], dict[str, int]]:
    """Return what waits for targets that are away, or for tasks of the same limit key, by group and
    queue: what more workers would not start."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    for each in reports:
        for target in each.report.targets if each.working else ():
            for held in target.held:
                of_queue = found.setdefault((held.group, held.queue), {})
                name = f"target {target.name}"
                of_queue[name] = of_queue.get(name, 0) + held.tasks
        for key in each.report.limited_keys if each.working else ():
            found.setdefault((key.group, key.queue), {})[key.text] = key.waiting
    return found
