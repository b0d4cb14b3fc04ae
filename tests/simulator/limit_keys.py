"""Tasks of a simulated world with a limit key, in worlds whose queue limits them.

| invariant | judged at |
|---|---|
| S24 under one owner no more tasks of a limit key run at once than the queue lets | each start |
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from late.model.queue_settings import QueueSettings
from late.model.task import LIMIT_KEY, Attempt, NewTask

if TYPE_CHECKING:
    from tests.simulator.plan import Booking
    from tests.simulator.truth import Witness

FIRST_SEED = 800_000
"""Worlds of lower seeds have none: they are what they were when they were first looked at."""
SHARE = 0.4
"""Of the worlds."""


def limit(
    seed: int, bookings: Sequence[Booking], settings: QueueSettings
) -> tuple[tuple[Booking, ...], QueueSettings]:
    """Return the work of a world, most of which has limit keys, and settings that limit them."""
    rng = random.Random(seed ^ 0x11417)
    if seed < FIRST_SEED or rng.random() >= SHARE:
        return tuple(bookings), settings

    def keyed(task: NewTask) -> NewTask:
        if rng.random() < 0.3:
            return task
        # All tasks of a key are in one shard, as producers place them.
        key = f"shop-{task.shard_id}-{rng.randrange(2)}"
        return msgspec.structs.replace(task, headers=msgspec.json.encode({LIMIT_KEY: key}).decode())

    limited = msgspec.structs.replace(
        settings, key_concurrency=rng.choice((1, 2)), key_rate=rng.choice((None, None, 20.0))
    )
    booked = tuple(
        msgspec.structs.replace(
            each, tasks=tuple(map(keyed, each.tasks)), again=tuple(map(keyed, each.again))
        )
        for each in bookings
    )
    return booked, limited


def objection(
    settings: QueueSettings, attempt: Attempt, witnesses: Iterable[Witness]
) -> str | None:
    """Return why the attempt, which has just begun, should not have, if so.

    A former owner's attempts go on beside those of the next one: each is judged alone.
    """
    headers = attempt.record.headers
    if settings.key_concurrency is None or headers is None or LIMIT_KEY not in headers:
        return None
    beside = sum(attempt.epoch in each.running and each.headers == headers for each in witnesses)
    if beside <= settings.key_concurrency:
        return None
    return f"S24: {beside} tasks of {headers} run at a time, of {settings.key_concurrency}"
