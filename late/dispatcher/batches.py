"""Batch handlers: one call for many tasks, each settled by itself.

Every attempt has a slot of the handler's own pool and waits there for the call that it is part of.
So time-outs, cancelling, stopping, fencing and outcomes are those of `dispatcher.py`, and this file
only puts attempts together.

The items of a call that fails as a whole are tried again one by one: an item that no batch survives
must not take others with it until all of them are dead letters.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from late.dispatcher.dispatcher import Dispatcher
from late.dispatcher.local.slot import Slot
from late.dispatcher.local.threads import Threads
from late.handler.batch import Batch, Item
from late.handler.classify import RetryRule, check_ran
from late.handler.context import AsyncContext
from late.model.task import BATCH_POOL, Options, Outcome, Policy, Record

LINGER_S = 0.01
"""The time that a batch that is not full waits for more: a page comes in pieces."""


class BatchTask(Protocol):
    """The parts of a registered task that a batch needs. `late.Task` satisfies it."""

    @property
    def name(self) -> str: ...
    @property
    def fn(self) -> Callable[..., Any]: ...
    @property
    def is_async(self) -> bool: ...
    @property
    def batch(self) -> int | None: ...
    @property
    def timeout_s(self) -> float | None: ...
    @property
    def retry(self) -> RetryRule | None: ...
    @property
    def overlap_on_timeout(self) -> bool: ...
    @property
    def policy(self) -> Policy: ...
    def decode(self, record: Record, options: Options | None) -> dict[str, Any]: ...


class _Gathering:
    """One call, from its first item to its end."""

    def __init__(self) -> None:
        self.items: list[Item[Any]] = []
        self.slots: list[Slot] = []
        self.shadow = False
        self.waiting = 0
        """The number of attempts that still wait for its end."""
        self.full = asyncio.Event()
        self.run: asyncio.Task[None] | None = None


class BatchHandler:
    """A batch task as the dispatcher runs it: an attempt joins a call and waits for its end."""

    process = False
    is_async = True
    wants_context = True
    soft_timeout_s = None

    def __init__(self, task: BatchTask, threads: Threads) -> None:
        self.name = task.name
        self.timeout_s = task.timeout_s
        self.retry = task.retry
        self.overlap_on_timeout = task.overlap_on_timeout
        self.decode = task.decode
        self._call = task.fn
        self._async = task.is_async
        self._size = task.batch or 1
        self._threads = threads
        self._open: _Gathering | None = None

    async def fn(self, context: AsyncContext, *, item: Any) -> object:
        """Run as part of a batch, and return or raise the outcome of this item."""
        mine = Item(
            item,
            task_id=context.task_id,
            attempt=context.attempt,
            headers=context.headers,
            name=self.name,
        )
        call = self._join(mine, alone=context.attempt > 1)
        call.shadow = context.shadow  # A worker serves shadows alone, or none.
        assert call.run is not None
        if isinstance(context._slot, Slot):  # A test may run one without a pool.
            call.slots.append(context._slot)
        call.waiting += 1
        try:
            # Shielded: one attempt that is ended must not end the call of the others.
            await asyncio.shield(call.run)
        except asyncio.CancelledError:
            call.waiting -= 1
            if call.waiting == 0:
                call.run.cancel()  # The last one ends the call.
            # Each keeps its slot until then: no repeat of it starts beside the call.
            await asyncio.wait([call.run])
            if call.run.cancelled():
                raise
        else:
            call.waiting -= 1
        if mine.failure is not None:
            raise mine.failure
        for name, number in mine.counts:
            context.count(name, number)
        return None

    def _join(self, item: Item[Any], *, alone: bool) -> _Gathering:
        call = None if alone else self._open
        if call is None:
            call = _Gathering()
            call.run = asyncio.get_running_loop().create_task(
                self._run(call), name=f"late-batch-{self.name}"
            )
            if not alone:
                self._open = call
        call.items.append(item)
        if alone or len(call.items) >= self._size:
            call.full.set()
            if self._open is call:
                self._open = None
        return call

    async def _run(self, call: _Gathering) -> None:
        try:
            async with asyncio.timeout(LINGER_S):
                await call.full.wait()
        except TimeoutError:
            pass
        if self._open is call:
            self._open = None
        for slot in call.slots:
            slot.share = len(call.items)
        batch = Batch(call.items, shadow=call.shadow)
        try:
            if self._async:
                check_ran(await self._call(batch))
            else:
                await self._in_thread(batch)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            for item in batch:
                item.failure = item.failure or error

    async def _in_thread(self, batch: Batch[Any]) -> None:
        """Run in a thread, which cannot be ended: its attempts keep their slots, as stuck, until it
        ends by itself."""
        work = asyncio.ensure_future(self._threads.run(lambda: self._call(batch)))
        try:
            check_ran(await asyncio.shield(work))
        except asyncio.CancelledError:
            await asyncio.wait([work])
            work.result()  # what was done counts, however late


class BatchPool(Dispatcher):
    """The slots of one batch handler: for the batch that runs and the next one."""

    def __init__(self, task: BatchTask, **settings: Any) -> None:
        """Make the slots; `settings` are those of `Dispatcher`."""
        self._batch_threads = Threads()
        handler = BatchHandler(task, self._batch_threads)
        super().__init__(
            {task.name: handler},
            name=task.policy.target,
            concurrency=2 * (task.batch or 1),
            process_workers=0,
            **settings,
        )

    @property
    def room(self) -> int:
        """Slots that are free; none once it stops."""
        return 0 if self._draining else self.free

    async def stop(self, grace_s: float) -> None:
        await super().stop(grace_s)
        self._batch_threads.close()


def batch_pools(
    tasks: Mapping[str, Any],
    *,
    worker_id: str,
    now_us: Callable[[], int],
    on_finished: Callable[[list[Outcome]], None],
    trusted: Callable[[], bool],
    rng: random.Random,
    url: str,
) -> dict[str, BatchPool]:
    """Make a pool for each batch handler among `tasks`, not started."""
    return {
        f"{BATCH_POOL}{name}": BatchPool(
            task,
            worker_id=worker_id,
            now_us=now_us,
            on_finished=on_finished,
            url=url,
            trusted=trusted,
            rng=rng,
        )
        for name, task in tasks.items()
        if task.batch is not None
    }
