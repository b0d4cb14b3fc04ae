"""All pulled queues of one worker."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from late.dispatcher.pull.lease import pool_name
from late.dispatcher.pull.pool import PullPool
from late.model.task import PULL, Outcome, Policy


class Pulls:
    """A pool for each queue with a policy that says `pull`.

    Args:
        policies: how tasks are run, of names and of whole queues alike.
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
        """As the scheduler knows them."""
        return {pool.name: pool for pool in self.by_queue.values()}

    def placed(self, policies: Mapping[str, Policy]) -> dict[str, Policy]:
        """The policies with the pool of their own queue in the place of `pull`."""
        return {
            name: msgspec.structs.replace(policy, target=pool_name(policy.queue))
            if policy.target == PULL
            else policy
            for name, policy in policies.items()
        }

    def recall(self, shards: Collection[tuple[str, int]]) -> None:
        """As `PullPool.recall`."""
        for pool in self.by_queue.values():
            pool.recall(shards)

    async def start(self) -> None:
        for pool in self.by_queue.values():
            await pool.start()

    async def stop(self, grace_s: float) -> None:
        """As `PullPool.stop`, of all at the same time."""
        await asyncio.gather(*(pool.stop(grace_s) for pool in self.by_queue.values()))
