"""Inline mode: tasks run in a test without a database, a worker or waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from late.app.app import App, Call, Task
from late.errors import KeyConflict, UnknownTask
from late.handler.batch import Batch
from late.handler.classify import check_ran, returned
from late.handler.context import AsyncContext, Context
from late.handler.outcomes import AlreadyDone, Discard, Kept, Signal
from late.handler.shared_context import SharedAsyncContext, SharedContext
from late.model.task import (
    BATCH_POOL,
    TRANSACTION_POOL,
    Attempt,
    NewTask,
    Options,
    Record,
    TaskId,
)
from late.model.workflow import CANCEL, STARTED, Stage, StageEnd, changes
from late.outbox.shared import SharedTransaction, open_shared
from late.payload.command import decode
from late.testing.workflows import StagesInMemory

LIMIT = 1_000
"""The most tasks that one `run` executes. If there are more, a task probably enqueues itself."""
_NEWEST = 2**63 - 1
"""The epoch of the attempts. They have no lease, so no owner of the shard may count as a later one:
each `drain` and each worker on the database of the test raises the epochs of its leases."""


class Captured(msgspec.Struct, frozen=True):
    """One task that was enqueued inside `inline(app)`."""

    task_id: TaskId
    name: str
    queue: str
    args: dict[str, Any]
    """The arguments as the handler gets them: they were encoded and decoded once."""
    options: Options
    row: NewTask


class Box:
    """The tasks that were enqueued inside `inline(app)`, in order."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._keys: dict[str, NewTask] = {}
        self._stages = StagesInMemory()
        self._calls: dict[TaskId, Call] = {}
        self.pending: list[Captured] = []
        """The tasks that have not run yet."""
        self.done: list[Captured] = []
        """The tasks that have ended without a failure, also discarded ones."""

    def of(self, task: Task[Any, Any] | str) -> list[Captured]:
        """Return the pending calls of one task, in order."""
        name = task if isinstance(task, str) else task.name
        return [one for one in self.pending if one.name == name]

    def run(self, *, limit: int = LIMIT) -> int:
        """Run the pending tasks, and those that they enqueue, in this thread; return their number.

        They run in the order of the enqueues; delays, priorities, expiries and ordering keys have
        no effect. The first failure is raised unchanged. So are `Retry`, `Snooze` and `Nack`,
        because nothing runs later in this mode. The task that raised stays first in `pending`.
        `Discard` ends a task. Tasks of targets and of consumers stay in `pending`: no handler of
        this app executes them.

        Raises:
            UnknownTask: a task has no handler, and its queue no route.
            AssertionError: there are more than `limit` tasks.
            RuntimeError: the handler is async, and a loop is running: use `run_async`.
        """
        count = 0
        while (current := self._next()) is not None:
            count = _counted(count, limit, current)
            with self._judged(current) as end:
                result = self._start(current, in_loop=False)
                end(_settle(asyncio.run(_await(result)) if self._waits(current) else result))
        return count

    async def run_async(self, *, limit: int = LIMIT) -> int:
        """Run the pending tasks in an async test; see `run`."""
        count = 0
        while (current := self._next()) is not None:
            count = _counted(count, limit, current)
            with self._judged(current) as end:
                result = self._start(current, in_loop=True)
                end(_settle(await result if self._waits(current) else result))
        return count

    def _waits(self, current: Captured) -> bool:
        """Return whether its handler is awaited, as a worker does it: not whatever can be."""
        return self._app.tasks[current.name].is_async

    def capture(self, calls: Sequence[Call], rows: Sequence[NewTask]) -> list[TaskId]:
        """Take the rows that the app would insert. Unique keys stay taken until the box is gone."""
        if not calls:  # These are commands. Only a cancel has an effect on pending tasks.
            gone = {
                c.task_id
                for c in (decode(_record(row)) for row in rows)
                if c and c.kind == "cancel"
            }
            orders = [StageEnd(task_id, CANCEL) for task_id in gone]
            gone |= set(changes(orders, self._stages, 0).stopping)
            self.pending = [each for each in self.pending if each.task_id not in gone]
            return [row.task_id for row in rows]
        ids = []
        for call, row in zip(calls, rows, strict=True):
            if row.unique_key and row.on_conflict == "replace":
                old = self._keys.pop(row.unique_key, row).task_id
                self.pending = [one for one in self.pending if one.task_id != old]
            first = self._keys.setdefault(row.unique_key, row) if row.unique_key else row
            if first.digest != row.digest:
                raise KeyConflict(f"unique key {row.unique_key!r} is held by another body")
            if first is not row and row.on_conflict == "reject":
                raise KeyConflict(f"unique key {row.unique_key!r} is held by {first.task_id}")
            if first is row:
                self.pending.append(self._captured(call, row))
            ids.append(first.task_id)
        return [
            self._keys[row.unique_key].task_id if row.unique_key else task_id
            for row, task_id in zip(rows, ids, strict=True)
        ]

    def capture_stages(self, calls: Sequence[Call], stages: Sequence[Stage]) -> list[TaskId]:
        """Take a workflow: its first tasks are pending, and the others follow their ends."""
        self._stages.add(stages)
        self._calls |= {stage.task_id: call for call, stage in zip(calls, stages, strict=True)}
        for stage in stages:
            if stage.state == STARTED:
                self._start_stage(stage.task())
        return [stage.task_id for stage in stages]

    def _start_stage(self, row: NewTask) -> None:
        self.pending.append(self._captured(self._calls[row.task_id], row))

    def _captured(self, call: Call, row: NewTask) -> Captured:
        options = call.settings.options
        args = (
            call.task.decode(_record(row), options)
            if call.task is not None
            else dict(msgspec.to_builtins(call.values))
        )
        return Captured(row.task_id, row.name, row.queue, args, options, row)

    def _next(self) -> Captured | None:
        """Return the first pending task that a handler of this app executes."""
        return next((each for each in self.pending if not self._is_elsewhere(each)), None)

    def _is_elsewhere(self, captured: Captured) -> bool:
        task = self._app.tasks.get(captured.name)
        policy = self._app.routes.get(captured.queue) if task is None else task.policy
        return policy is not None and not (
            policy.target in ("local", TRANSACTION_POOL) or policy.target.startswith(BATCH_POOL)
        )

    @contextmanager
    def _judged(self, current: Captured) -> Iterator[Callable[[bytes | None], None]]:
        ended = StageEnd(current.task_id, "discarded")

        def end(result: bytes | None) -> None:
            nonlocal ended
            ended = StageEnd(current.task_id, "done", result)

        try:
            yield end
        except AlreadyDone:
            end(None)
        except Discard:
            pass
        with suppress(ValueError):  # The task may have cancelled itself.
            self.pending.remove(current)
        self.done.append(current)
        for row in changes([ended], self._stages, 0).started:
            self._start_stage(row)

    def _start(self, captured: Captured, *, in_loop: bool) -> Any:
        task = self._app.tasks.get(captured.name)
        if task is None:
            raise UnknownTask(f"no task {captured.name!r} is registered")
        if task.is_async and not in_loop and _loop_runs():
            raise RuntimeError("a loop is running: use `await box.run_async()`")
        record = _record(captured.row)
        kwargs = task.decode(record, captured.options)
        if task.batch is not None:
            return _alone(task, kwargs["item"])
        if not task.wants_context:
            return task.fn(**kwargs)
        kind = AsyncContext if task.is_async else Context
        attempt = Attempt(
            group=self._app.group,
            record=record,
            number=1,
            deaths=0,
            epoch=_NEWEST,
            due_at_us=record.created_at_us,
            options=captured.options,
        )
        context = kind(
            attempt,
            started_at_us=record.created_at_us,
            timeout_s=task.timeout_s,
            attempts_max=1,
            url=self._app.url,
            beat=lambda attempt: None,
        )
        if task.transaction and isinstance(context, AsyncContext):
            return _in_async_transaction(task, context, kwargs, self._app.url)
        if task.transaction and isinstance(context, Context):
            return _in_transaction(task, context, kwargs, self._app.url)
        return task.fn(context, **kwargs)


@contextmanager
def inline(app: App) -> Iterator[Box]:
    """Capture the tasks that `app` enqueues inside the block, for any transaction and for None.

        with inline(app) as box:
            place_order(session)          # enqueues `charge`
            assert box.of(charge)[0].args["amount"] == Decimal("3.50")
            box.run()                     # runs it here

    Payloads are encoded and decoded as usual, so that a payload that cannot be stored fails here
    too. The transaction has no effect: a task is captured even if it is rolled back. To test that a
    task commits with its business row, use `assert_enqueued` on a real database.
    """
    box = Box(app)
    before = app.capture, app.capture_stages
    app.capture, app.capture_stages = box.capture, box.capture_stages
    try:
        yield box
    finally:
        app.capture, app.capture_stages = before


def _counted(count: int, limit: int, current: Captured) -> int:
    assert count < limit, f"more than {limit} tasks: does {current.name!r} repeat?"
    return count + 1


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _await(result: Any) -> Any:
    return await result


def _alone(task: Task[Any, Any], value: Any) -> Any:
    """Run a batch task with one item. The item's failure is raised as if the handler raised it."""
    batch = Batch.of(value)

    async def call() -> None:
        check_ran(await task.fn(batch))
        check()

    def check() -> None:
        if batch[0].failure is not None:
            raise batch[0].failure

    if task.is_async:
        return call()
    check_ran(task.fn(batch))
    check()
    return None


def _in_transaction(
    task: Task[Any, Any], context: Context, kwargs: dict[str, Any], url: str
) -> Any:
    """Run a task with `transaction=True` in a transaction of its own, of the app's database.

    Raises:
        ConfigError: the app's database cannot do it: see docs/effects.md.
    """
    transactions = open_shared(url, task=task.name)
    tx = transactions.begin(False)
    try:
        value = task.fn(SharedContext(context, tx), **kwargs)
        tx.flush()
        tx.end_session()
        _commit(tx, value)
    finally:
        tx.close()
        transactions.close()
    return value


async def _in_async_transaction(
    task: Task[Any, Any], context: AsyncContext, kwargs: dict[str, Any], url: str
) -> Any:
    transactions = open_shared(url, task=task.name)
    tx = transactions.begin(True)
    try:
        value = await task.fn(SharedAsyncContext(context, tx), **kwargs)
        await tx.flush_async()
        await tx.end_session_async()
        _commit(tx, value)
    finally:
        tx.close()
        transactions.close()
    return value


def _commit(tx: SharedTransaction, value: object) -> None:
    if returned(value).kind != "done":
        return
    tx.last()
    _, error = tx.commit(())
    if error is not None:
        raise error


def _settle(result: Any) -> bytes | None:
    """Return the result that is kept, if one is."""
    if isinstance(result, Kept):
        return result.result
    if isinstance(result, Signal):
        raise result
    check_ran(result)
    return None


def _record(row: NewTask) -> Record:
    return Record(
        shard_id=row.shard_id,
        position=1,
        task_id=row.task_id,
        queue=row.queue,
        name=row.name,
        payload=row.payload,
        headers=row.headers,
        options=row.options,
        created_at_us=time.time_ns() // 1000,
        sequence=1,
    )
