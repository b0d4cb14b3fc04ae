"""The path of one task through a worker is short: from its page to its handler, and from there to
its settlement. Python calls are counted, so that a machine's load changes nothing.

`LIFE` names the steps of that path in their order; `late/scheduler/__init__.py` lists the same.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import late
from late.clock import DatabaseClock
from late.dispatcher.dispatcher import Dispatcher
from late.dispatcher.settler import Settler
from late.model.task import Cursor, Epoch, Record, ShardId, TaskId
from late.scheduler.scheduler import Scheduler
from late.store.base import Lease, Page, Settlement, SettleResult, Store
from late.store.postgres.store import FEATURES
from late.tailer.tailer import Tailer
from tests.support.paths import Trace

SHARDS = 8
TO_START_MAX, TO_SETTLED_MAX = 200, 170
"""Calls, a twentieth more than it takes: 872 and 652 before empty pages and quiet shards had a
short way. A change that needs more has a reason."""
FUNCTIONS_MAX = 70
"""Functions that one reads to follow a task from its handler's end to its settled row."""
TASKS_MAX = 50
"""Tasks that are tried until one has a path that is short enough: the first calls of some functions
make what the others use, and on a busy machine a task may meet timers, several in a row."""
MEANWHILE = ("Scheduler.run", "Tailer.run")
"""Loops that go on at the same time: a pass of the scheduler and a read of the tail."""
LIFE = (
    ("scheduler/scheduler.py", "Scheduler.pages"),
    ("scheduler/core/transitions.py", "admit"),
    ("scheduler/core/starts.py", "start_all"),
    ("dispatcher/dispatcher.py", "Dispatcher.submit"),
    ("dispatcher/dispatcher.py", "Dispatcher.run_one"),
    ("scheduler/core/ends.py", "finished"),
    ("scheduler/core/shard_core.py", "ShardCore.settlement"),
    ("scheduler/core/ends.py", "settled"),
)
NOW_US = 1_000_000_000

app = late.App("postgresql://localhost/none")


class Shelf:
    """What stands for the store: each read shows all shards, as PostgreSQL does."""

    features = FEATURES

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.fresh: list[Record] = []
        self.reads = 0
        self.settled = asyncio.Event()
        self.settled.set()
        self.done = asyncio.Event()
        self.to_start: list[tuple[str, str]] = []
        self.to_settled: list[tuple[str, str]] = []
        self.roots: list[str] = []

    async def read(self, cursors: Mapping[ShardId, Cursor], limit: int) -> list[Page]:
        await self.settled.wait()  # else reads would be part of the second path, by chance
        self.reads += 1
        cursor = Cursor(f"{self.reads}:{self.reads}:")
        fresh, self.fresh = self.fresh, []
        pages = [
            Page(n, [r for r in fresh if r.shard_id == n], cursor, cursor, False, NOW_US)
            for n in cursors
        ]
        if fresh:
            self.settled.clear()
            self.trace.start()
        return pages

    async def due(self, *_: object, **__: object) -> list[object]:
        return []

    async def settle(self, settlements: Sequence[Settlement]) -> list[SettleResult]:
        return [SettleResult.SETTLED] * len(settlements)


shelf: Shelf


@app.task(queue="paths")
async def nothing(n: int) -> None:
    """The handler: what came before it is one path, what comes after it the other."""
    shelf.to_start = shelf.trace.stop()
    shelf.trace.start()


@asynccontextmanager
async def worker() -> AsyncIterator[Tailer]:
    """Tailer, scheduler, dispatcher and settler, wired as in a worker."""
    global shelf
    shelf = Shelf(Trace())
    clock = DatabaseClock()
    clock.sample(NOW_US, asyncio.get_running_loop().time())

    def on_result(settlement: Settlement, result: SettleResult) -> None:
        scheduler.settled(settlement, result)
        if any(each.outcome == "done" for each in settlement.usage):
            shelf.to_settled = shelf.trace.stop()
            shelf.roots = shelf.trace.roots
            shelf.settled.set()
            shelf.done.set()

    settler = Settler(
        cast(Store, shelf),
        collect=lambda urgent: scheduler.collect(urgent),
        on_result=on_result,
        on_error=lambda settlements, error: None,
        delay_s=0.01,  # what happens while outcomes wait for company is no part of the path
    )
    tailer = Tailer(
        cast(Store, shelf),
        wanted=lambda: scheduler.wanted(),
        on_pages=lambda group, pages: scheduler.pages(group, pages),
    )
    dispatcher = Dispatcher(
        app.tasks,
        worker_id="w",
        concurrency=4,
        now_us=clock.confirmed_us,
        on_finished=lambda outcomes: scheduler.finished(outcomes),
        url=app.url,
    )
    scheduler = Scheduler(
        cast(Store, shelf),
        {name: task.policy for name, task in app.tasks.items()},
        slots=dispatcher,
        concurrency=4,
        now_us=clock.confirmed_us,
        settle_soon=settler.poke,
        read_soon=tailer.wake,
    )
    await dispatcher.start()
    loops = [asyncio.create_task(each.run()) for each in (scheduler, settler, tailer)]
    scheduler.acquired(
        Lease("default", ShardId(n), "w", Epoch(1), 1, Cursor(""), (), {}) for n in range(SHARDS)
    )
    try:
        yield tailer
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        await dispatcher.stop(1)


async def one(tailer: Tailer, number: int) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Give one task to a worker that is quiet; return the two paths that it has taken."""
    reads = shelf.reads
    while shelf.reads < reads + 3:
        tailer.wake()
        await asyncio.sleep(0.01)
    shelf.done.clear()
    task_id = TaskId(f"01999999-0000-7000-8000-{number:012x}")
    row: Any = (ShardId(3), number, task_id, "paths", nothing.name, b'{"n":1}', None, None, 1, 1)
    shelf.fresh.append(Record(*row))
    tailer.wake()
    async with asyncio.timeout(120):
        await shelf.done.wait()
    return shelf.to_start, shelf.to_settled


async def test_the_path_of_a_plain_task_is_short() -> None:
    paths = []
    async with worker() as tailer:
        for number in range(TASKS_MAX):
            paths.append(await one(tailer, number))
            to_start, to_settled = (min(found, key=len) for found in zip(*paths, strict=True))
            if len(to_start) <= TO_START_MAX and len(to_settled) <= TO_SETTLED_MAX:
                break

    assert len(to_start) <= TO_START_MAX, Counter(to_start).most_common(12)
    assert len(to_settled) <= TO_SETTLED_MAX, Counter(to_settled).most_common(12)


async def test_few_functions_settle_a_task_that_has_ended() -> None:
    async with worker() as tailer:
        for number in range(TASKS_MAX):
            _, to_settled = await one(tailer, number)
            own = {
                call
                for call, root in zip(to_settled, shelf.roots, strict=True)
                if root not in MEANWHILE and not call[1].endswith(">")
            }
            assert ("scheduler/core/ends.py", "settled") in own
            if len(own) <= FUNCTIONS_MAX:
                break

    assert len(own) <= FUNCTIONS_MAX, sorted(own)


async def test_a_task_lives_through_its_steps_in_their_order() -> None:
    async with worker() as tailer:
        to_start, to_settled = await one(tailer, 1)

    lived = iter([*to_start, *to_settled])
    for step in LIFE:
        assert step in lived, step
