"""A consumer takes from one pulled queue or several."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from late.dispatcher.pull.lease import Hold
from late.dispatcher.pull.pool import PullPool
from late.dispatcher.pull.waiters import Waiter


async def take(
    pools: Sequence[PullPool],
    group: str,
    *,
    limit: int,
    wait_s: float,
    visibility_s: float,
    consumer: str,
    names: frozenset[str] | None = None,
) -> list[tuple[PullPool, Hold]]:
    """Up to `limit` attempts of one of these queues, as soon as there is one; none after `wait_s`.

    Args:
        names: task names that the consumer can do; None for all.

    Cancelled, it takes nothing.
    """
    waiter = Waiter(group, names, limit, asyncio.get_running_loop().create_future())
    try:
        asked = [pool for pool in pools if pool.ask(waiter)]
        if not asked:
            return []
        await asyncio.wait({waiter.future}, timeout=wait_s)
    except asyncio.CancelledError:
        if waiter.future.done() and isinstance(waiter.by, PullPool):
            waiter.by.put_back(waiter.given)
        raise
    finally:
        for pool in pools:
            pool.wanted.remove(waiter)
    by = waiter.by
    if not isinstance(by, PullPool):
        return []
    return [(by, by.hand_out(attempt, consumer, visibility_s)) for attempt in waiter.given]
