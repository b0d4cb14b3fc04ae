"""The pools of one worker: one for each of its targets, and all of them together."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from late.dispatcher.batches import BatchPool, batch_pools
from late.dispatcher.dispatcher import Dispatcher
from late.dispatcher.pull.pools import Pulls
from late.dispatcher.push.pool import RemotePool
from late.errors import ConfigError
from late.handler.classify import Scrub
from late.model.targets import FILE_VARIABLE, Target, configured
from late.model.task import BATCH_POOL, PULL, TRANSACTION_POOL, Outcome, Policy, ShardId
from late.payload import codec as codecs
from late.worker.offers import WorkerOffers


class Registered(Protocol):
    """The parts of an app that its pools need. `late.App` satisfies it."""

    url: str
    codec: codecs.Codec

    @property
    def targets(self) -> Mapping[str, Target]: ...
    @property
    def tasks(self) -> Mapping[str, Any]: ...
    @property
    def routes(self) -> Mapping[str, Policy]: ...


def remote_pools(
    app: Registered,
    *,
    worker_id: str,
    now_us: Callable[[], int],
    on_finished: Callable[[list[Outcome]], None],
    trusted: Callable[[], bool],
    rng: random.Random,
    scrub: Scrub | None = None,
) -> dict[str, RemotePool | BatchPool]:
    """Make the pools of the targets that an app's tasks and routes name, and of its batch handlers.
    They are not started.

    Raises:
        ConfigError: the file of targets is wrong; or a task's or route's target is not there. Its
            tasks would be parked as if nobody knew them, for a day, and then be dead letters.
    """
    targets = configured(app.targets.values())
    check_targets(app, targets)
    wanted = {policy.target for policy in _named(app).values()}
    remote = {
        name: RemotePool(
            target,
            {n: task for n, task in app.tasks.items() if task.policy.target == name},
            codec=app.codec,
            worker_id=worker_id,
            now_us=now_us,
            on_finished=on_finished,
            url=app.url,
            trusted=trusted,
            rng=rng,
            scrub=scrub,
        )
        for name, target in targets.items()
        if name in wanted
    }
    batches = batch_pools(
        app.tasks,
        worker_id=worker_id,
        now_us=now_us,
        on_finished=on_finished,
        trusted=trusted,
        rng=rng,
        url=app.url,
    )
    return {**remote, **batches}


class Dispatchers:
    """The worker's own slots, those of its targets and its pulled queues, started and stopped
    together. Only its own slots owe a start: an attempt that a target has no room for, or that
    consumers do not fetch, waits."""

    def __init__(
        self,
        local: Dispatcher,
        remote: Mapping[str, Dispatcher],
        pulls: Pulls,
        offers: WorkerOffers,
    ) -> None:
        self._all = [local, *remote.values()]
        self._pulls = pulls
        self._offers = offers

    def record(self) -> None:
        """Call no target and serve no consumer, before `start`: this worker serves shadows."""
        for each in self._all:
            if isinstance(each, RemotePool):
                each.record()
        self._pulls.record()

    async def start(self) -> None:
        """
        Raises:
            ConfigError: as `Dispatcher.start` and `RemotePool.start`; then `stop` what there is.
        """
        for each in self._all:
            await each.start()
        await self._pulls.start()
        await self._offers.start()

    async def stop(self, grace_s: float) -> None:
        """Stop all of them at the same time, as `Dispatcher.stop`."""
        await asyncio.gather(
            self._offers.stop(grace_s),
            self._pulls.stop(grace_s),
            *(each.stop(grace_s) for each in self._all),
        )
        await self._offers.close()

    def recall(self, shards: Collection[tuple[str, int]]) -> None:
        """Give back what nobody has begun of shards that are about to be handed over."""
        self._pulls.recall(shards)
        self._offers.recall(shards)

    @property
    def running(self) -> int:
        """The number of attempts whose handlers or calls have not ended."""
        return sum(each.running for each in self._all)

    @property
    def overdue(self) -> set[tuple[str, ShardId]]:
        """Shards with an attempt whose handler runs on after its time-out."""
        return {shard for each in self._all for shard in each.stuck.unsettled}

    @property
    def late_by_shard(self) -> Counter[tuple[str, ShardId]]:
        found: Counter[tuple[str, ShardId]] = Counter()
        for each in self._all:
            found.update(each.late_by_shard)
        return found


def check_targets(app: Registered, pools: Mapping[str, object]) -> None:
    """Refuse a task or route whose target is none of `pools`: its tasks would be parked for a day
    as if nobody knew them, and then be dead letters.

    Raises:
        ConfigError: it names target and task.
    """
    for what, policy in _named(app).items():
        own = ("local", PULL, TRANSACTION_POOL)
        local = policy.target in own or policy.target.startswith(BATCH_POOL)
        if not local and policy.target not in pools:
            raise ConfigError(
                f"{what} goes to target {policy.target!r}, which is neither in"
                f" App(targets=...) nor in the file of {FILE_VARIABLE}"
            )


def _named(app: Registered) -> dict[str, Policy]:
    """Map every task and queue of `app`, as named in messages, to its policy."""
    found: dict[str, Policy] = {f"task {name!r}": task.policy for name, task in app.tasks.items()}
    return found | {f"queue {name!r}": policy for name, policy in app.routes.items()}
