"""Offers between workers, as one worker needs them: its own pool, and its runner for others."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from late.dispatcher.offers.pool import OfferPool
from late.dispatcher.offers.runner import OfferRunner
from late.model.offers import Offer
from late.model.task import (
    HELD_US,
    TRANSACTION_POOL,
    Attempt,
    OpenTask,
    Outcome,
    Policy,
    Record,
    ShardId,
)
from late.scheduler.core.transitions import adopt
from late.scheduler.limits.limits import LOCAL_POOL
from late.scheduler.pools import Pool
from late.scheduler.scheduler import Scheduler
from late.scheduler.task_state import expires_at_us, from_record, policy_of
from late.store.base import Store

if TYPE_CHECKING:
    from late.control import Control
    from late.worker.worker import Worker


class WorkerOffers:
    """The pool `ELSEWHERE` of one worker, and what it runs for the others.

    Args:
        control: blocks, and is called in a thread.
        others: the live workers of a group, without this one.
        free: the number of attempts that its own slots can start.
        submit: starts attempts in its own slots.
        pools: its other pools, by target.
        policies: of what it can run.
        scheduler: of this worker; called late, because it needs this pool.
    """

    def __init__(
        self,
        me: str,
        groups: Sequence[str],
        store: Store,
        control: Callable[[], Control],
        *,
        others: Callable[[str], frozenset[str]],
        free: Callable[[], int],
        submit: Callable[[Sequence[Attempt]], None],
        pools: Mapping[str, Pool],
        policies: Mapping[str, Policy],
        scheduler: Callable[[], Scheduler],
        now_us: Callable[[], int],
        trusted: Callable[[], bool],
        rng: random.Random,
    ) -> None:
        self._store = store
        self._slots = submit
        self._pools = pools
        self._policies = policies
        self._scheduler = scheduler
        self.pool = OfferPool(
            me,
            table=lambda: control().offers,
            others=others,
            now_us=now_us,
            on_finished=lambda outcomes: scheduler().finished(outcomes),
            adopt=self._adopt,
            trusted=trusted,
            rng=rng,
        )
        self.runner = OfferRunner(
            me,
            groups,
            table=lambda: control().offers,
            others=lambda: trusted() and any(others(group) for group in groups),
            free=free,
            policy_of=self._policy_of,
            read=self._read,
            attempt_of=self._attempt_of,
            submit=self._begin,
            rng=rng,
        )

    # -- what the scheduler sees -----------------------------------------------------------------

    @property
    def room(self) -> int:
        return self.pool.room

    @property
    def queued(self) -> Collection[Attempt]:
        return self.pool.queued

    def submit(self, attempts: Sequence[Attempt]) -> None:
        self.pool.submit(attempts)

    def abandon(self, group: str, shard_id: int, epoch: int) -> None:
        self.pool.abandon(group, shard_id, epoch)
        self.runner.abandon(group, shard_id, epoch)

    # -- what the slots see ----------------------------------------------------------------------

    def finished(self, outcomes: Sequence[Outcome]) -> None:
        """Hand outcomes to the scheduler but for those of other workers' shards."""
        if self.runner.taken:
            outcomes = self.runner.keep_taken(outcomes)
        if outcomes:
            self._scheduler().finished(outcomes)

    def offer(self, outcome: Outcome) -> bool:
        """Offer an attempt to others that cannot run here; False if its outcome stands."""
        if outcome.after_us is not None or self.runner.runs(outcome.attempt):
            return False
        return self.pool.offer(outcome)

    # -- life ------------------------------------------------------------------------------------

    def recall(self, shards: Collection[tuple[str, int]]) -> None:
        """Take back what nobody has taken: these shards are about to be handed over."""
        self.pool.recall(shards)

    def told(self, offers: bool | None) -> None:
        """Take in what a heartbeat says of other workers' offers."""
        self.runner.told(offers)

    async def start(self) -> None:
        await self.pool.start()
        await self.runner.start()

    async def watch(self) -> None:
        """Raise what has ended one of the two loops: attempts of others would wait for ever."""
        loops = (self.pool.running, self.runner.running)
        await asyncio.gather(*(loop for loop in loops if loop is not None))

    async def stop(self, grace_s: float) -> None:
        """Offer and take nothing more, wait up to `grace_s` for the answers of others."""
        self.runner.drain()
        await self.pool.stop(grace_s)

    async def close(self) -> None:
        """Write the last answers, after the slots have stopped."""
        await self.runner.stop()

    # -- what it runs for others -----------------------------------------------------------------

    def _policy_of(self, queue: str, name: str) -> Policy | None:
        policy = policy_of(queue, name, self._policies)
        if policy is None or policy.target == LOCAL_POOL:
            return policy
        if policy.target == TRANSACTION_POOL:  # Only the owner of the shard can settle in it.
            return None
        pool = self._pools.get(policy.target)
        return None if pool is None or pool.room <= 0 else policy

    async def _read(self, offer: Offer) -> Record | None:
        """Read the record where it is durable: an edited one is in the timer table only."""
        group, shard_id, task_id = offer.key
        parked = await self._store.due(
            group, shard_id, until_us=HELD_US, limit=1, task_ids=[task_id]
        )
        if parked:
            return parked[0].record
        found = await self._store.fetch(shard_id, [OpenTask(offer.attempt.position, task_id)])
        return found[0] if found else None

    def _attempt_of(self, offer: Offer, record: Record) -> Attempt | None:
        entry = from_record(record, self._policies)
        if entry.inspect() is not None or not entry.known:
            return None
        plain, said = record.options is None, offer.attempt
        return Attempt(
            offer.key.group,
            record,
            said.number,
            said.deaths,
            offer.epoch,
            said.due_at_us,
            None if plain else entry.options,
            None if plain else expires_at_us(record, entry.options),
            entry.policy.target,
            said.timeout_us,
            said.is_replay,
            entry.policy.result_ttl_us > 0,
        )

    def _begin(self, attempts: list[Attempt]) -> None:
        for attempt in attempts:
            pool = self._pools.get(attempt.target)
            (self._slots if pool is None else pool.submit)([attempt])

    def _adopt(self, attempt: Attempt, policy: Policy) -> None:
        core = self._scheduler().cores.get((attempt.group, ShardId(attempt.record.shard_id)))
        if core is not None:
            adopt(core.state, attempt, policy)


def offers_of(
    worker: Worker,
    store: Store,
    groups: Sequence[str],
    policies: Mapping[str, Policy],
    pools: Mapping[str, Pool],
    rng: random.Random,
) -> WorkerOffers:
    """Make the offers of a worker whose other parts are not made yet."""
    return WorkerOffers(
        worker.id,
        groups,
        store,
        worker.control,
        others=lambda group: worker.keeper.others(group),
        free=lambda: worker.dispatcher.free,
        submit=lambda attempts: worker.dispatcher.submit(attempts),
        pools=pools,
        policies=policies,
        scheduler=lambda: worker.scheduler,
        now_us=worker.clock.now_us,
        trusted=lambda: worker.trusted,
        rng=rng,
    )
