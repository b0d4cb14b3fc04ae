"""The path of a task through a worker without a database: what `make bench-guard` counts.

    python -m bench.path [--tasks 20000] [--shape plain] [--metrics] [--profile]

Tailer, scheduler, dispatcher and settler are wired as in a worker. Rows come out of memory as a
driver gives them; settlements are encoded for the driver and thrown away. Nothing in here depends
on how fast the machine is: turns of the event loop, the read-ahead and the settlements are decided
by counts and not by the clock, so that two runs take the same steps. A settlement comes after each
thousand outcomes, also of tasks whose end somebody waits for: at this rate they get no other.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import pstats
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import cast

import late
from bench.path_tasks import SHAPES, SHARDS, Row, Shape
from late import events
from late.clock import DatabaseClock
from late.dispatcher import outcome_buffer as finished
from late.dispatcher import settler as settling
from late.dispatcher.dispatcher import Dispatcher
from late.dispatcher.local import chunks
from late.dispatcher.settler import Settler
from late.model.lanes import Lane, Layout
from late.model.task import Cursor, Epoch, Outcome, Record, ShardId
from late.observability import metrics
from late.scheduler import read_ahead
from late.scheduler import scheduler as scheduling
from late.store.base import Lease, Page, Settlement, SettleResult, Store
from late.store.postgres.journal import statements_of
from late.store.postgres.store import FEATURES
from late.tailer.tailer import Tailer

CONCURRENCY = 16
LONG_S = 3_600.0
TASK_S = 0.000_01
"""A task takes so long by the clock that the worker is given."""
PLAIN = SHAPES["plain"]


class Shelf:
    """A substitute for the store: it reads rows from memory and drops settlements."""

    features = FEATURES

    def __init__(self, kept: Mapping[ShardId, list[Row]]) -> None:
        self._rows = kept
        self._at = dict.fromkeys(kept, 0)
        self.left = sum(map(len, kept.values()))
        self.empty = asyncio.Event()
        """Set once all rows are settled."""

    async def read(self, cursors: Mapping[ShardId, Cursor], limit: int) -> list[Page]:
        pages = []
        for shard in cursors:
            at = self._at[shard]
            found = self._rows[shard][at : at + limit]
            self._at[shard] = end = at + len(found)
            cursor = Cursor(f"{end + 1}:{end + 1}:")
            more = len(found) == limit
            pages.append(Page(shard, [Record(*row) for row in found], cursor, "1:2:|1:2:", more, 1))
        return pages

    async def due(self, *_: object, **__: object) -> list[object]:
        return []

    async def settle(self, settlements: Sequence[Settlement]) -> list[SettleResult]:
        for _ in statements_of(settlements):
            await asyncio.sleep(0)
        for settlement in settlements:
            assert not settlement.parked  # it would not come back
            self.left -= sum(each.count for each in settlement.usage if each.outcome == "done")
        if self.left <= 0:
            self.empty.set()
        return [SettleResult.SETTLED] * len(settlements)


async def drain(shelf: Shelf, app: late.App) -> None:
    """Run every task of the shelf, and settle it."""
    store = cast(Store, shelf)
    count, ended = shelf.left, 0
    clock = DatabaseClock(lambda: ended * TASK_S)
    clock.sample(time.time_ns() // 1_000, 0)
    settler = Settler(
        store,
        collect=lambda urgent: scheduler.collect(urgent),
        on_result=lambda settlement, result: scheduler.settled(settlement, result),
        on_error=lambda settlements, error: None,
        delay_s=LONG_S,
    )
    tailer = Tailer(
        store,
        wanted=lambda: scheduler.wanted(),
        on_pages=lambda group, pages: scheduler.pages(group, pages),
    )

    def on_finished(outcomes: list[Outcome]) -> None:
        nonlocal ended
        ended += len(outcomes)
        scheduler.finished(outcomes)
        if ended == count:  # fewer than the settler waits for
            loops.append(asyncio.create_task(settler.flush()))

    dispatcher = Dispatcher(
        app.tasks,
        worker_id="w",
        concurrency=CONCURRENCY,
        now_us=clock.now_us,
        on_finished=on_finished,
        url=app.url,
    )
    scheduler = scheduling.Scheduler(
        store,
        {name: task.policy for name, task in app.tasks.items()},
        slots=dispatcher,
        concurrency=CONCURRENCY,
        now_us=clock.now_us,
        settle_soon=settler.poke,
        read_soon=tailer.wake,
    )
    scheduler.resized(Layout((Lane(shards=SHARDS, version=1),)))
    await dispatcher.start()
    loops = [asyncio.create_task(each.run()) for each in (scheduler, settler, tailer)]
    scheduler.acquired(
        Lease("default", ShardId(n), "w", Epoch(1), 1, Cursor(""), (), {}) for n in range(SHARDS)
    )
    await shelf.empty.wait()
    for loop in loops:
        loop.cancel()
    await asyncio.wait(loops)
    await dispatcher.stop(0)


async def main(
    count: int, profile: cProfile.Profile | None, *, counting: bool = False, shape: Shape = PLAIN
) -> None:
    chunks.CHUNK_S = chunks.SHORT_S = finished.TURN_S = scheduling.TURN_S = (
        read_ahead.READAHEAD_S
    ) = settling.URGENT_S = LONG_S
    registry = metrics.Registry()
    if counting:  # as a worker does that can be asked for its metrics
        metrics.follow(events.default, registry)
    shelf = Shelf(shape.rows(count))
    gc.collect()  # as a worker does: or what was imported counts with the tasks, or not, by chance
    gc.freeze()
    began, before = time.perf_counter(), time.process_time()
    with profile or nullcontext():
        await drain(shelf, shape.app)
    took, used = time.perf_counter() - began, time.process_time() - before
    if counting:
        told = f'late_outcomes_total{{group="default",queue="bench",task="{shape.name}",'
        assert f'{told}target="local",outcome="done"}} {count}' in metrics.render(registry).decode()
    print(f"{count} tasks, {count / took:,.0f}/s, {used / max(1, count) * 1e6:.2f} µs each")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--shape", choices=SHAPES, default="plain", help="see bench/path_tasks.py")
    parser.add_argument("--metrics", action="store_true", help="count events, as for a page")
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    profile = cProfile.Profile() if given.profile else None
    asyncio.run(main(given.tasks, profile, counting=given.metrics, shape=SHAPES[given.shape]))
    if profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)
