"""The pool of tasks with `transaction=True`, as one worker needs it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from late.dispatcher.transactions.pool import TransactionPool
from late.model.task import TRANSACTION_POOL, Attempt
from late.scheduler.shared_settlements import Commit, SharedSettlements

if TYPE_CHECKING:
    from late.worker.worker import Worker


def transaction_pool_of(worker: Worker, rng: random.Random) -> dict[str, TransactionPool]:
    """Make the pool if a task needs it, for a worker whose other parts are not made yet.

    Raises:
        ConfigError: the database of the app cannot do it.
    """
    tasks = {name: task for name, task in worker.app.tasks.items() if task.transaction}
    if not tasks:
        return {}

    def alone(attempts: Sequence[Attempt]) -> AbstractAsyncContextManager[Commit | None]:
        settlements = SharedSettlements(
            worker.scheduler,
            worker.settler,
            holders=lambda: (worker.dispatcher, *worker.pools.values()),
            on_error=lambda refused, error: worker.keeper.refused(refused, error),
            now_us=worker.clock.now_us,
        )
        return settlements.alone(attempts)

    pool = TransactionPool(
        tasks,
        url=worker.app.url,
        alone=alone,
        concurrency=worker.settings.concurrency,
        worker_id=worker.id,
        now_us=worker.clock.now_us,
        on_finished=lambda outcomes: worker.scheduler.finished(outcomes),
        wake=lambda: worker.scheduler.wake(),
        trusted=lambda: worker.trusted,
        cancel_asked=lambda attempt: worker.scheduler.cancel_asked(attempt),
        rng=rng,
    )
    return {TRANSACTION_POOL: pool}
