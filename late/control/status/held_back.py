"""The part of a queue's tasks that more workers would start, and what holds the others. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from late.control.views import QueueStatus, Reported
from late.model.queue_settings import QueueSettings

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
        held: tasks in workers' memory that an open circuit holds back, by target.
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
        names = ", ".join(sorted(held))
        return math.floor(queue.waiting * free), f"{queue.queue} waits for target {names}"
    # With more slots in the fleet each tenant's share of them is more.
    return queue.waiting + (0 if settings.fair_key is None else parked), ""


def held_by_circuits(reports: Iterable[Reported]) -> dict[tuple[str, str], dict[str, int]]:
    """Return what waits for targets that are away, by group and queue."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    for each in reports:
        for target in each.report.targets if each.fresh else ():
            for held in target.held:
                of_queue = found.setdefault((held.group, held.queue), {})
                of_queue[target.name] = of_queue.get(target.name, 0) + held.tasks
    return found
