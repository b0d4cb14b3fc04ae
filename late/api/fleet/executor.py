"""An app's handlers in a process without shards: `late serve MODULE:APP --roles dispatch`.

It fetches tasks from the processes that have the shards (`tail` without `dispatch`), as a consumer
does, and runs them on the slots of a worker. Time-outs, threads, child processes, contexts and
outcomes are the same. Running attempts are extended again and again. A process that dies stops
extending. Its attempts then count as failed, because nobody can say what ended them.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence

from late.api.access.peer_keys import Keyring
from late.api.errors import Unavailable
from late.api.fleet.fleet import Fleet
from late.api.pull.deliveries import Delivery, TakeRequest
from late.api.pull.receipts import Receipt, StaleReceipt, UnknownReceipt
from late.app.app import App
from late.config import WorkerConfig
from late.dispatcher.dispatcher import Dispatcher
from late.handler.classify import Verdict
from late.model.task import Attempt, Outcome

logger = logging.getLogger("late.executor")

VISIBLE_S = 15.0
"""A process that does not extend its attempts for this long has lost them."""
WAIT_S = 10.0
ANSWER_PAUSES_S = (0.1, 0.3, 1.0, 3.0, 5.0)
"""Pauses between tries to send an answer to a process that cannot be reached."""
LAST_ANSWERS_S = 5.0


class Executor:
    """Fetches and runs tasks as the module describes: call `start`, then `stop`.

    Args:
        keys: the deployment's keys, for receipts.
        target: see `late.worker.worker.run`.
    """

    def __init__(
        self,
        app: App,
        fleet: Fleet,
        *,
        keys: Keyring,
        groups: Sequence[str],
        settings: WorkerConfig,
        now_us: Callable[[], int],
        target: str | None = None,
    ) -> None:
        mine = {name: task for name, task in app.tasks.items() if task.policy.target == "local"}
        self.name = f"x-{secrets.token_hex(8)}"
        self._names = frozenset(mine)
        self._queues = tuple(sorted({task.queue for task in mine.values()}))
        self._fleet = fleet
        self._keys = keys
        self._groups = groups
        self._grace_s = settings.grace_s
        self.dispatcher = Dispatcher(
            mine,
            worker_id=self.name,
            concurrency=settings.concurrency,
            now_us=now_us,
            on_finished=self._finished,
            url=app.url,
            process_workers=settings.process_workers,
            app=target,
        )
        self._held: dict[int, tuple[Attempt, Receipt]] = {}
        """Running attempts by `id`. An attempt stays here while it runs, so its `id` is unique."""
        self._freed = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self._answering: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begin to fetch.

        Raises:
            ConfigError: see `Dispatcher.start`.
        """
        await self.dispatcher.start()
        loops = [self._fetch(group) for group in self._groups]
        self._loops = [asyncio.create_task(loop) for loop in (*loops, self._prolong())]
        logger.info("%s runs %s for the processes that have the shards", self.name,
                    ", ".join(sorted(self._names)))  # fmt: skip

    async def stop(self) -> None:
        """Fetch no more, let running attempts end within the grace, and send all answers."""
        for loop in self._loops[:-1]:
            loop.cancel()
        await self.dispatcher.stop(self._grace_s)
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        if self._answering:
            await asyncio.wait(self._answering, timeout=LAST_ANSWERS_S)
        for answer in list(self._answering):
            answer.cancel()

    async def _fetch(self, group: str) -> None:
        while True:
            while not self.dispatcher.free:
                self._freed.clear()
                await self._freed.wait()
            found = await self._fleet.take(
                TakeRequest(
                    group,
                    self._queues,
                    limit=self.dispatcher.free,
                    wait_s=WAIT_S,
                    visibility_s=VISIBLE_S,
                    consumer=self.name,
                    names=self._names,
                    whole=True,
                )
            )
            self.dispatcher.submit([each.attempt for each in found if await self._hold(each)])

    async def _hold(self, delivery: Delivery) -> bool:
        """Keep the receipt of a task that shall run; False if its key was removed."""
        try:
            receipt = await self._keys.unseal(delivery.receipt)
        except UnknownReceipt:
            task_id = delivery.attempt.record.task_id
            logger.warning("the key of the receipt of %s is void: it comes again", task_id)
            return False
        self._held[id(delivery.attempt)] = delivery.attempt, receipt
        return True

    def _finished(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            _, receipt = self._held.pop(id(outcome.attempt))
            verdict = Verdict(
                outcome.kind, outcome.error, outcome.reason, outcome.after_us,
                outcome.retryable, outcome.overloaded, outcome.result, counts=outcome.counts,
            )  # fmt: skip
            task = asyncio.ensure_future(self._answer(receipt, verdict))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        self._freed.set()

    async def _answer(self, receipt: Receipt, verdict: Verdict) -> None:
        for pause_s in (*ANSWER_PAUSES_S, None):
            try:
                await self._fleet.answer(receipt, verdict)
            except StaleReceipt:
                logger.info("the result of %s came too late", receipt.task_id)
            except Unavailable as away:
                if pause_s is not None:
                    await asyncio.sleep(pause_s)
                    continue
                logger.warning("the result of %s is lost: %s", receipt.task_id, away)
            return

    async def _prolong(self) -> None:
        """Extend all running attempts, again and again."""
        while True:
            await asyncio.sleep(VISIBLE_S / 3)
            held = [receipt for _, receipt in self._held.values()]
            await asyncio.gather(
                *(self._fleet.extend(receipt, VISIBLE_S) for receipt in held),
                return_exceptions=True,  # the final answer shows what is lost
            )
