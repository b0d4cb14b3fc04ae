"""The pulled queues of one worker, and the call by which a consumer takes from several."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from late.dispatcher.pull.pool import PullPool
from late.dispatcher.pull.queue import PullLease, Waiter, pool_name
from late.dispatcher.pull.refusals import known_as
from late.model.task import PULL, Outcome, Policy


class Pulls:
    """A pool for each queue with a policy that says `pull`.

    Args:
        policies: of task names and of whole queues alike.
    """

    def __init__(
        self,
        policies: Iterable[Policy],
        *,
        now_us: Callable[[], int],
        on_finished: Callable[[list[Outcome]], None],
        wake: Callable[[], None],
        trusted: Callable[[], bool],
        rng: random.Random,
    ) -> None:
        self.by_queue: Mapping[str, PullPool] = {
            queue: PullPool(
                queue, now_us=now_us, on_finished=on_finished, wake=wake, trusted=trusted, rng=rng
            )
            for queue in sorted({policy.queue for policy in policies if policy.target == PULL})
        }

    @property
    def by_name(self) -> dict[str, PullPool]:
        """The pools by the names that the scheduler knows."""
        return {pool.name: pool for pool in self.by_queue.values()}

    def placed(self, policies: Mapping[str, Policy]) -> dict[str, Policy]:
        """Return the policies with the pool of their own queue in the place of `pull`."""
        return {
            name: msgspec.structs.replace(policy, target=pool_name(policy.queue))
            if policy.target == PULL
            else policy
            for name, policy in policies.items()
        }

    def recall(self, shards: Collection[tuple[str, int]]) -> None:
        """Give back what nobody has begun, as `PullPool.recall`."""
        for pool in self.by_queue.values():
            pool.recall(shards)

    def record(self) -> None:
        """Give nothing to consumers, as `PullPool.record`."""
        for pool in self.by_queue.values():
            pool.record()

    async def start(self) -> None:
        for pool in self.by_queue.values():
            await pool.start()

    async def stop(self, grace_s: float) -> None:
        """Stop all of them at the same time, as `PullPool.stop`."""
        await asyncio.gather(*(pool.stop(grace_s) for pool in self.by_queue.values()))


async def receive(
    pools: Sequence[PullPool],
    group: str,
    *,
    limit: int,
    wait_s: float,
    visibility_s: float,
    consumer: str,
    names: frozenset[str] | None = None,
) -> list[tuple[PullPool, PullLease]]:
    """Take up to `limit` attempts of one of these queues as soon as there is one; none after
    `wait_s`.

    Args:
        names: task names that the consumer can do; None for all.

    Cancelled, it takes nothing.
    """
    future = asyncio.get_running_loop().create_future()
    waiter = Waiter(group, names, limit, future, consumer=known_as(consumer))
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
            pool.waiters.remove(waiter)
    by = waiter.by
    if not isinstance(by, PullPool):
        return []
    return [(by, by.hand_out(attempt, consumer, visibility_s)) for attempt in waiter.given]
