"""Tasks of a simulated world that are background: their priority is below 0.

| invariant | judged at |
|---|---|
| S23 background that lacks nothing but a slot starts, if one is free and it has none | 0.5 s |
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from late.model.task import NewTask, Options
from tests.simulator.handlers import CONCURRENCY
from tests.simulator.truth import Broken

if TYPE_CHECKING:
    from tests.simulator.loop import Process
    from tests.simulator.plan import Booking
    from tests.simulator.process import SimWorker

FIRST_SEED = 800_000
"""Worlds of lower seeds have none: they are what they were when they were first looked at."""
SHARES = (0.0, 0.3, 0.6, 0.9)
"""Of the tasks of a world."""


def lower(seed: int, bookings: Sequence[Booking]) -> tuple[Booking, ...]:
    """Return the work of a world, some of which is background."""
    if seed < FIRST_SEED:
        return tuple(bookings)
    rng, replace = random.Random(seed ^ 0xBAC6), msgspec.structs.replace
    share = rng.choice(SHARES)

    def lowered(task: NewTask) -> NewTask:
        if rng.random() >= share:
            return task
        options = msgspec.json.decode(task.options or "{}", type=Options)
        options = replace(options, priority=rng.choice((-1, -1, -5)))
        return replace(task, options=msgspec.json.encode(options).decode())

    return tuple(
        replace(each, tasks=tuple(map(lowered, each.tasks)), again=tuple(map(lowered, each.again)))
        for each in bookings
    )


LOOKS = 10
"""So many looks in a row, half a second apart. A pass comes each second at least."""


class Patience:
    """Counts for how many looks each worker has let its background wait."""

    def __init__(self) -> None:
        self._looks: Counter[str] = Counter()

    def judge(self, places: Iterable[tuple[Process, SimWorker]]) -> None:
        """Look at all workers.

        Raises:
            Broken: S23.
        """
        for process, worker in places:
            if process.dead or process.paused or not _lets_wait(worker):
                del self._looks[process.name]
                continue
            self._looks[process.name] += 1
            if self._looks[process.name] > LOOKS:
                raise Broken(f"S23: {process.name} has a free slot, and its background waits")


def _lets_wait(worker: SimWorker) -> bool:
    slots = worker.slots
    if not worker.trusted or slots.stopping or slots.load >= CONCURRENCY:
        return False
    if any(attempt.is_background for attempt in slots.attempts):
        return False
    states = [core.state for core in worker.scheduler.cores.values()]
    if any(state.limited or state.suspects.marked or state.suspects.waiting for state in states):
        return False
    return any(s.can_start(background=True) and s.ready_queues.background for s in states)
