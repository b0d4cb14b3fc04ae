"""Decide how much of a pool the background may have: tasks whose priority is below 0. Pure.

| a pool of | the background has | so the foreground finds free |
|---|---|---|
| 1 slot | 1, in turns | 0 |
| 2 or 3 | all but 1 | 1 |
| more | three quarters | a quarter |

Where settlements are slow, it has one slot: it is held back before anything else is, and never for
ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache

from late.model.task import TRANSACTION_POOL
from late.scheduler.limits.limits import LOCAL_POOL

RESERVED = 4
"""One slot of so many is free for the foreground."""
SLOW_S, SLOW_FULL_S = 0.5, 0.1
"""Settlements that take longer are slow: ever, and while much is unrecorded. That alone says
nothing: quick tasks reach it between two quick commits."""


@cache
def reserve(slots: int) -> int:
    """Return how many of a pool's slots the background leaves free."""
    return max(1, slots // RESERVED) if slots > 1 else 0


def background_room(room: int, load: int, running: int, *, slots: int, slow: bool) -> int:
    """Return how many background tasks may start in a pool now.

    Args:
        room: the attempts that it takes now.
        load: the attempts that it has, of both classes.
        running: those of them that are background.
        slots: those that run at once; of quick ones the pool takes more, so that the next ones are
            there. Of those as many are kept too: a few slow ones would fill the slots that are.
        slow: settlements are slow.
    """
    kept, taken = reserve(slots), room + load
    ahead = max(0, taken - slots - kept)
    most = 1 if slow else max(1, min(taken, slots) - kept + ahead)
    return max(0, min(room, most - running))


def background_rooms(
    room: int,
    load: int,
    rooms: Mapping[str, int],
    running: Counter[str],
    *,
    slots: int,
    commit_s: float,
    full: bool,
) -> dict[str, int]:
    """Return the room for the background in each pool of this process, of all shards.

    Args:
        room: of the worker's own slots, which have `load` attempts; `rooms` is that of the others.
        running: the background of each pool.
        commit_s: the time that a settlement takes, in seconds.
        full: much has run and is not recorded.
    """
    slow = commit_s > (SLOW_FULL_S if full else SLOW_S)
    found = {LOCAL_POOL: background_room(room, load, running[LOCAL_POOL], slots=slots, slow=slow)}
    if TRANSACTION_POOL in rooms:
        # What this pool has of the foreground is not known: so much stays free beside that. All
        # that it takes are its slots.
        below, left = running[TRANSACTION_POOL], rooms[TRANSACTION_POOL]
        most = 1 if slow else max(1, left + below - reserve(slots))
        found[TRANSACTION_POOL] = max(0, min(left, most - below))
    return found
