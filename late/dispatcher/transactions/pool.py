"""The pool of tasks with `transaction=True`.

Each attempt has a slot and waits there for the end of the transaction that it is part of. So
time-outs, stopping, fencing and outcomes are those of `dispatcher.py`, as with batch handlers.
An outcome that is in the journal already goes no further than here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from late.dispatcher.dispatcher import Dispatcher
from late.dispatcher.local.threads import Threads
from late.dispatcher.transactions.run import Turn, unbegun
from late.dispatcher.transactions.shadow import ShadowRuns
from late.dispatcher.transactions.turn_queue import TURNS_MAX, Alone, TurnQueue
from late.errors import ConfigError
from late.handler.classify import RetryRule, Scrub, Verdict
from late.handler.context import AsyncContext
from late.model.task import TRANSACTION_POOL, Attempt, Options, Outcome, Record
from late.outbox.shared import open_shared

AHEAD_MAX = 240
"""Attempts beyond the worker's slots, so that transactions have several."""
AHEAD_S = 0.100
"""So much work is taken ahead, judged by the usual time of a task: slow ones get none ahead. Not by
the rate: small transactions make that low, and then they would stay small."""
GRAIN = 32
"""So many are asked for at once, while a transaction of the largest size is here already. Each
request costs a pass over all shards."""


class TransactionTask(Protocol):
    """The parts of a registered task that are needed. `late.Task` satisfies it."""

    @property
    def name(self) -> str: ...
    @property
    def fn(self) -> Callable[..., Any]: ...
    @property
    def is_async(self) -> bool: ...
    @property
    def timeout_s(self) -> float | None: ...
    @property
    def retry(self) -> RetryRule | None: ...
    @property
    def overlap_on_timeout(self) -> bool: ...
    def decode(self, record: Record, options: Options | None) -> Mapping[str, Any]: ...


class TransactionHandler:
    """A task as the dispatcher runs it: an attempt joins a transaction and waits for its end."""

    process = False
    is_async = True
    wants_context = True
    soft_timeout_s = None

    def __init__(
        self,
        task: TransactionTask,
        join: Callable[[Turn], None],
        pool: Any,
        shadow: ShadowRuns | None = None,
    ) -> None:
        self.name = task.name
        self.timeout_s = task.timeout_s
        self.retry = task.retry
        self.overlap_on_timeout = task.overlap_on_timeout
        self.decode = task.decode
        self._call = task.fn
        self._awaits = task.is_async
        self._join = join
        self._pool = pool
        self._shadow = shadow

    async def fn(self, context: AsyncContext, **arguments: Any) -> object:
        """Run in a transaction, and return the verdict on this attempt.

        In a shadow return or raise what the handler does: its transaction is its own, and is rolled
        back.
        """
        if context.shadow:
            assert self._shadow is not None
            return await self._shadow.run(
                context, partial(self._call, **arguments), is_async=self._awaits
            )
        new_future = asyncio.get_running_loop().create_future
        call = partial(self._call, **arguments)
        turn = Turn(context.own, context, call, self.retry, new_future(), is_async=self._awaits)
        self._join(turn)
        try:
            await turn.ended
        except asyncio.CancelledError:
            turn.ended = new_future()  # The first one was cancelled with its slot.
            verdict: Verdict | None = await self._pool.cancel(turn)
            if verdict is None:
                raise
            return verdict
        return turn.verdict


class TransactionPool(Dispatcher):
    """Slots for the tasks that wait for their transaction.

    Args:
        tasks: by name.
        alone: see `TurnQueue`; called late.
        concurrency: the worker's slots: so many tasks may run alone at the same time.
        on_finished: gets the outcomes that are not in the journal.
        wake: called when there is room again.

    Raises:
        ConfigError: the database cannot do it.
    """

    def __init__(
        self,
        tasks: Mapping[str, TransactionTask],
        *,
        url: str,
        alone: Alone,
        concurrency: int,
        now_us: Callable[[], int],
        on_finished: Callable[[list[Outcome]], None],
        wake: Callable[[], None],
        trusted: Callable[[], bool],
        scrub: Scrub | None = None,
        **settings: Any,
    ) -> None:
        self._name = next(iter(tasks))
        self._transactions = open_shared(url, task=self._name, most=concurrency)
        self._queue = TurnQueue(
            self._transactions,
            alone,
            concurrency=concurrency,
            may_start=self._may_start,
            now_us=now_us,
            report=lambda outcome: on_finished([outcome]),
            scrub=scrub,
        )
        self._turns: dict[int, Turn] = {}
        """Those whose outcome is not told, by the identity of their attempts, which they keep."""
        self._pass_on = on_finished
        self._wake_scheduler = wake
        self._most = concurrency
        self._shadow_threads = Threads()
        shadow = ShadowRuns(self._transactions, self._shadow_threads)
        handlers = {
            n: TransactionHandler(task, self._joined, self._queue, shadow)
            for n, task in tasks.items()
        }
        super().__init__(
            handlers,
            name=TRANSACTION_POOL,
            concurrency=concurrency + AHEAD_MAX,
            process_workers=0,
            url=url,
            now_us=now_us,
            on_finished=self._reported,
            trusted=trusted,
            scrub=scrub,
            **settings,
        )
        self._finished.on_fenced = self._fenced

    @property
    def room(self) -> int:
        """Attempts that it takes; none once it stops, or when threads that hang fill it."""
        if self._draining or self._queue.hanging >= self._most:
            return 0
        usual_s = self._queue.usual_s
        ahead = min(AHEAD_MAX, int(AHEAD_S / usual_s)) if usual_s else 0
        room = max(0, min(self.free, self._most + ahead - self._load))
        return room if room >= GRAIN or self._load < max(self._most, TURNS_MAX) else 0

    @property
    def queued(self) -> Collection[Attempt]:
        return [*super().queued, *unbegun(self._turns.values())]

    async def start(self) -> None:
        """Start the slots.

        Raises:
            ConfigError: no transaction can be had, such as behind a pool of statements.
        """
        try:
            await self._target.in_thread(self._try)
        except Exception as error:
            raise ConfigError(
                f"task {self._name!r} has transaction=True, and no transaction can be had: {error}"
            ) from error
        await super().start()

    async def stop(self, grace_s: float) -> None:
        await super().stop(grace_s)
        self._shadow_threads.close()
        self._queue.stop()

    def _try(self) -> None:
        tx = self._transactions.begin(False)
        tx.roll_back()
        tx.close()

    def _may_start(self, attempt: Attempt) -> bool:
        return self._trusted() and not self._finished.is_fenced(attempt)

    def _joined(self, turn: Turn) -> None:
        self._turns[id(turn.attempt)] = turn
        self._queue.add(turn)

    def _fenced(self, attempt: Attempt) -> bool:
        """Forget an attempt whose shard is lost; return whether its transaction has committed."""
        turn = self._turns.pop(id(attempt), None)
        return turn is not None and turn.recorded

    def _reported(self, outcomes: Sequence[Outcome]) -> None:
        """Pass on what the journal does not have."""
        rest = []
        for outcome in outcomes:
            turn = self._turns.pop(id(outcome.attempt), None)
            if turn is not None and turn.committing:
                turn.withheld = outcome  # What becomes of its transaction decides.
            elif turn is None or not turn.recorded:
                rest.append(outcome)
        if rest:
            self._pass_on(rest)
        if self.room > 0:
            self._wake_scheduler()
