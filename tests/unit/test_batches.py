"""Batch handlers: one call for many tasks, each with its own end."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import late
from late.dispatcher.batches import BatchPool
from late.errors import ConfigError, InvalidPayload
from late.handler.batch import Batch
from late.model.ids import new_id
from late.model.task import Attempt, Outcome, Record
from late.testing import inline


def app_of(fn: Callable[..., Any], **asked: Any) -> late.Task[Any, Any]:
    app = late.App("sqlite:///unused.db")
    task: late.Task[Any, Any] = app.task(**asked)(fn)
    return task


def attempt(task: late.Task[Any, Any], value: Any, number: int = 1) -> Attempt:
    row = task.app.row(task.call(value))
    record = Record(row.shard_id, 1, new_id(0), row.queue, row.name, row.payload, None, None, 1, 1)
    return Attempt("default", record, number, 0, 1, 1)


class Ran:
    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.outcomes: dict[int, Outcome] = {}
        self.numbers: dict[str, int] = {}
        self.news = asyncio.Event()

    def finished(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            self.outcomes[self.numbers[outcome.attempt.record.task_id]] = outcome
        self.news.set()

    def kinds(self) -> Counter[str]:
        return Counter(outcome.kind for outcome in self.outcomes.values())


@asynccontextmanager
async def running(task: late.Task[Any, Any], ran: Ran) -> AsyncIterator[BatchPool]:
    pool = BatchPool(
        task, worker_id="w", now_us=lambda: 1, on_finished=ran.finished, url="sqlite:///x.db"
    )
    await pool.start()
    yield pool
    await pool.stop(5.0)


async def run(task: late.Task[Any, Any], ran: Ran, *values: int, number: int = 1) -> None:
    async with running(task, ran) as pool:
        attempts = [attempt(task, value, number) for value in values]
        ran.numbers |= {
            one.record.task_id: value for one, value in zip(attempts, values, strict=True)
        }
        assert pool.room >= len(attempts)
        pool.submit(attempts)
        async with asyncio.timeout(120):
            while len(ran.outcomes) < len(values):
                ran.news.clear()
                await ran.news.wait()


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_many_tasks_are_one_call(kind: str) -> None:
    ran = Ran()

    async def index(batch: Batch[int]) -> None:
        ran.calls.append(batch.values)

    def index_in_thread(batch: Batch[int]) -> None:
        ran.calls.append(batch.values)

    task = app_of(index if kind == "async" else index_in_thread, batch=10)
    await run(task, ran, *range(20))
    assert sorted(len(call) for call in ran.calls) == [10, 10]
    assert sorted(n for call in ran.calls for n in call) == list(range(20))
    assert ran.kinds() == {"done": 20}
    assert {o.target for o in ran.outcomes.values()} == {f"batch:{task.name}"}


async def test_a_batch_that_is_not_full_does_not_wait_for_ever() -> None:
    ran = Ran()

    async def index(batch: Batch[int]) -> None:
        ran.calls.append(batch.values)

    await run(app_of(index, batch=100), ran, 1, 2, 3)
    assert ran.calls == [[1, 2, 3]]


async def test_each_item_has_its_own_end() -> None:
    async def index(batch: Batch[int]) -> None:
        for item in batch:
            if item.value == 1:
                item.fail(ValueError("bad document"))
            if item.value == 2:
                item.fail(late.Snooze(60))
            if item.value == 3:
                item.fail(late.Discard("gone"))

    ran = Ran()
    await run(app_of(index, batch=10), ran, *range(6))
    assert ran.kinds() == {"done": 3, "failed": 1, "snooze": 1, "discard": 1}
    assert "bad document" in str(ran.outcomes[1].error)
    assert ran.outcomes[2].after_us == 60_000_000


async def test_what_is_raised_is_for_all_that_have_no_end_of_their_own() -> None:
    async def index(batch: Batch[int]) -> None:
        batch[0].fail(late.Discard())
        raise ConnectionError("no index")

    ran = Ran()
    await run(app_of(index, batch=10), ran, *range(5))
    assert ran.kinds() == {"discard": 1, "failed": 4}
    assert all("no index" in str(o.error) for o in ran.outcomes.values() if o.kind == "failed")


async def test_what_failed_is_tried_again_alone() -> None:
    ran = Ran()

    async def index(batch: Batch[int]) -> None:
        ran.calls.append(batch.values)
        if 3 in batch.values:
            raise ValueError("poison")

    await run(app_of(index, batch=10), ran, *range(5), number=2)
    assert sorted(ran.calls) == [[0], [1], [2], [3], [4]]
    assert ran.kinds() == {"done": 4, "failed": 1}


async def test_a_batch_that_outlives_its_time_is_ended_and_fails() -> None:
    ended = asyncio.Event()

    async def index(batch: Batch[int]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    ran = Ran()
    await run(app_of(index, batch=10, timeout_s=0.05), ran, *range(3))
    assert ended.is_set()
    assert ran.kinds() == {"failed": 3}
    assert "timed out" in str(ran.outcomes[0].error)


async def test_a_thread_that_outlives_its_time_keeps_the_slots_of_its_items() -> None:
    """No item is tried again beside it; what it has done counts when it has done it."""
    go_on = threading.Event()

    def index(batch: Batch[int]) -> None:
        go_on.wait(120)

    ran, task = Ran(), app_of(index, batch=2, timeout_s=0.05)
    async with running(task, ran) as pool:
        attempts = [attempt(task, n) for n in range(2)]
        ran.numbers |= {a.record.task_id: n for n, a in enumerate(attempts)}
        pool.submit(attempts)
        async with asyncio.timeout(120):
            while pool.stuck.count < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (ran.outcomes, pool.room) == ({}, 2)
        go_on.set()
        async with asyncio.timeout(120):
            while pool.stuck.count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert pool.load == 0
    assert ran.kinds() == {"done": 2}


async def test_a_stop_interrupts_what_does_not_end() -> None:
    begun = asyncio.Event()

    async def index(batch: Batch[int]) -> None:
        begun.set()
        await asyncio.Event().wait()

    ran, task = Ran(), app_of(index, batch=2)
    async with running(task, ran) as pool:
        attempts = [attempt(task, n) for n in range(3)]
        ran.numbers |= {a.record.task_id: n for n, a in enumerate(attempts)}
        pool.submit(attempts)
        async with asyncio.timeout(120):
            await begun.wait()
        await pool.stop(0.0)
        assert pool.room == 0
    assert ran.kinds() == {"interrupted": 3}


async def test_the_time_of_a_call_is_divided_among_its_items() -> None:
    async def slow(batch: Batch[int]) -> None:
        await asyncio.sleep(0.5)

    ran = Ran()
    await run(app_of(slow, batch=4), ran, 1, 2, 3, 4)
    # Four times the call's own time would be two seconds.
    assert 500_000 <= sum(each.busy_us for each in ran.outcomes.values()) + 4 < 1_500_000


async def test_the_time_until_a_time_out_is_divided_too() -> None:
    async def hangs(batch: Batch[int]) -> None:
        await asyncio.sleep(60)

    ran = Ran()
    await run(app_of(hangs, batch=4, timeout_s=0.5), ran, 1, 2, 3, 4)
    assert ran.kinds() == {"failed": 4}
    assert sum(each.busy_us for each in ran.outcomes.values()) < 1_500_000


def test_inline_runs_a_batch_of_one() -> None:
    app, seen = late.App("sqlite:///unused.db"), []

    @app.task(batch=5)
    def index(batch: late.Batch[int]) -> None:
        seen.append(batch.values)
        if batch[0].value == 2:
            batch[0].fail(late.Discard())

    with inline(app) as box:
        index.enqueue(None, 1)  # type: ignore[call-overload]
        index.enqueue(None, 2)  # type: ignore[call-overload]
        assert box.run() == 2
    index.fn(late.Batch.of(7, 8))
    assert seen == [[1], [2], [7, 8]]


def test_the_argument_is_checked_where_it_is_enqueued() -> None:
    def index(batch: Batch[int]) -> None: ...

    with pytest.raises(InvalidPayload):
        app_of(index, batch=5).call("seven")


def none(batch: Batch[int], more: int) -> None: ...
def plain(batch: list[int]) -> None: ...
def fine(batch: Batch[int]) -> None: ...
def unreadable(batch: Batch[Callable[[], int]]) -> None: ...


@pytest.mark.parametrize(
    ("fn", "asked"),
    [
        (none, {"batch": 5}),
        (plain, {"batch": 5}),
        (unreadable, {"batch": 5}),
        (fine, {"batch": 0}),
        (fine, {"batch": 1_001}),
        (fine, {"batch": True}),
        (fine, {"batch": 5, "process": True}),
        (fine, {}),
    ],
)
def test_what_is_no_batch_handler(fn: Callable[..., Any], asked: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        app_of(fn, **asked)
