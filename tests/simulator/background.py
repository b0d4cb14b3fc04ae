"""Tasks of a simulated world that are background: their priority is below 0."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from late.model.task import NewTask, Options

if TYPE_CHECKING:
    from tests.simulator.plan import Booking

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
