"""`make bench-foreground`: waits of foreground tasks in quiet and beside a saturated background.

One worker of 16 slots on PostgreSQL. A producer commits foreground tasks at a steady rate; after a
while a backlog of background tasks (priority -1) of the same handler, which outlasts the
measurement, is committed. A wait counts from the return of the commit to the first line of the
handler. `without` is the same code with nothing kept for the foreground but the weights 8 : 1.
With `lane` the background is in a lane of its own, with a worker process of its own that the
operating system lets wait (`nice -n 19`). With `apart` it is in a deployment of its own, which is
another schema of the same database, with such a worker.

    python -m bench.foreground --postgres URL [--turns 2] [--seconds 8] [--ways kept apart]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing import get_context
from statistics import median
from typing import Any, NamedTuple
from unittest.mock import patch

import late
from bench.overload.producers import Make, Samples
from bench.overload.stage import Stage
from bench.steady.loop import Beside
from bench.targets import Postgres
from late.app.task import Call
from late.control import Control
from late.outbox import connect
from late.scheduler.limits.ready_queues import ReadyQueues
from late.schema.migrate import upgrade

RATE = 40
"""Foreground tasks a second."""
CALL_S = 0.05
"""The time for which the service of the shape `call` lets a handler wait."""
BACKLOG = {"nothing": 40_000, "write": 3_000, "call": 400}
"""Background tasks for each second of the measurement."""
SETTLING_S = 2.0
"""From the commit of the backlog to the measurement."""
WAYS = ("kept", "without", "lane", "apart")
"""Where the background is, and what of it is held back."""
APART = "?options=-csearch_path%3Dbackground"
"""Makes the URL of the database that of the other deployment."""
LANE = "background"
LANE_SHARDS = 8


class Found(NamedTuple):
    """One turn."""

    quiet_ms: tuple[float, float]
    """p50 and p99."""
    beside_ms: tuple[float, float]
    background_per_s: float
    left: int
    """Background tasks that have not started at the end; 0: it was not saturated."""
    loop_ms: float
    load: float


def app_of(url: str, shape: str, started: Samples, done: list[float]) -> late.App:
    """An app whose handlers note their start, and write a row if they are to."""
    app = late.App(url)

    def note(at: float, low: bool) -> None:
        if low:
            done.append(time.monotonic())
        else:
            started.add("task", at)

    if shape in ("write", "call"):

        @app.task(name="work")
        def work(ctx: late.Context, at: float, low: bool = False) -> None:
            note(at, low)
            if shape == "call":
                time.sleep(CALL_S)  # as a client of HTTP would wait for its answer
            with ctx.begin() as tx:
                tx.execute("insert into written (note) values (%s)", (str(at),))

    else:

        @app.task(name="work")
        def nothing(at: float, low: bool = False) -> None:
            note(at, low)

    return app


def foreground(app: late.App) -> Make:
    """The calls of a producer, in its process."""

    @app.task(name="work")
    def work(at: float, low: bool = False) -> None: ...

    return lambda number, at: work.call(at)


def nothing_kept() -> ExitStack:
    """Let the background have all slots, the window, and its place in the line."""
    stack = ExitStack()
    for place, new in {
        "late.scheduler.scheduler.background_rooms": lambda room, *_, **__: {"local": room},
        "late.dispatcher.dispatcher.line_up": deque.extend,
    }.items():
        stack.enter_context(patch(place, new))
    stack.enter_context(patch.object(ReadyQueues, "background_surplus", lambda self, keep: []))
    return stack


class Elsewhere:
    """The other lane or deployment, with a worker in a process of its own."""

    def __init__(self, url: str, shape: str, way: str, slots: int) -> None:
        self._url, lanes = url, None
        if way == "lane":
            lanes = LANE
            with Control(url) as control:
                control.lanes.create(LANE, LANE_SHARDS)
        else:
            self._url = url + APART
            with connect(url) as tx:
                tx.execute("create schema background")
            upgrade(self._url)
            with connect(self._url) as tx:
                tx.execute("create table written (id serial primary key, note text)")
        context = get_context("spawn")
        self._over, self._ready = context.Event(), context.Event()
        self._said, say = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_work_there,
            args=(self._url, shape, lanes, slots, self._ready, self._over, say),
            daemon=True,
        )
        self._process.start()
        say.close()
        self._ready.wait()

    def enqueue(self, app: late.App, calls: Sequence[Call]) -> None:
        """Commit `calls` as `Stage.enqueue` does."""
        with connect(self._url) as tx:
            for start in range(0, len(calls), 1_000):
                app.enqueue_many(tx, calls[start : start + 1_000])

    def done(self) -> list[float]:
        """End the worker; return when each task began."""
        self._over.set()
        began: list[float] = self._said.recv()
        self._process.join()
        return began


def _work_there(
    url: str, shape: str, lanes: str | None, slots: int, ready: Any, over: Any, say: Any
) -> None:
    os.nice(19)
    done = list[float]()

    async def work() -> None:
        async with Stage(url, app_of(url, shape, Samples(), done), {}).open(
            concurrency=slots, lanes=lanes
        ):
            ready.set()
            await asyncio.to_thread(over.wait)

    asyncio.run(work())
    say.send(done)


async def turn(url: str, shape: str, seconds: float, way: str, slots: int) -> Found:
    """Measure once, on a fresh database."""
    samples, done = Samples(), list[float]()
    app = app_of(url, shape, samples, done)
    stage = Stage(url, app, {})
    async with stage.open(concurrency=16, lanes="default" if way == "lane" else None):
        with connect(url) as tx:
            tx.execute("create table written (id serial primary key, note text)")
        there = None
        if way in ("lane", "apart"):
            there = await asyncio.to_thread(Elsewhere, url, shape, way, slots)
        stage.produce("task", foreground, RATE)
        while not stage.committed:  # noqa: ASYNC110 -- another process counts
            await asyncio.sleep(0.1)
        await asyncio.sleep(SETTLING_S)
        with Beside() as loop:
            quiet_from = time.monotonic()
            await asyncio.sleep(seconds)
            quiet_until = time.monotonic()
        number = round(BACKLOG[shape] * (seconds + SETTLING_S))
        low = app.tasks["work"].options(priority=-1, lane=LANE if way == "lane" else "default")
        calls = [low.call(0.0, low=True) for _ in range(number)]
        if there is None:
            await asyncio.to_thread(stage.enqueue, calls)
        else:
            await asyncio.to_thread(there.enqueue, app, calls)
        await asyncio.sleep(SETTLING_S)
        beside_from = time.monotonic()
        await asyncio.sleep(seconds)
        beside_until = time.monotonic()
        if there is not None:
            done = await asyncio.to_thread(there.done)
        ran = sum(beside_from <= at < beside_until for at in done)
        left = number - len(done)
        await stage.cease(samples)
    of = samples.wait_ms
    return Found(
        (of("task", quiet_from, quiet_until, 0.5), of("task", quiet_from, quiet_until, 0.99)),
        (of("task", beside_from, beside_until, 0.5), of("task", beside_from, beside_until, 0.99)),
        ran / seconds,
        left,
        **loop.figures(),
    )


def row(shape: str, way: str, turns: Sequence[Found]) -> str:
    """Return a line of the table: medians over the turns."""

    def middle(pick: Any) -> float:
        return median(pick(each) for each in turns)

    ratios = [each.beside_ms[1] / each.quiet_ms[1] for each in turns]
    cells = [
        shape,
        way,
        f"{middle(lambda t: t.quiet_ms[0]):.1f} / {middle(lambda t: t.quiet_ms[1]):.1f}",
        f"{middle(lambda t: t.beside_ms[0]):.1f} / {middle(lambda t: t.beside_ms[1]):.1f}",
        f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        f"{middle(lambda t: t.background_per_s):,.0f}",
        f"{min(each.left for each in turns):,}",
        f"{middle(lambda t: t.loop_ms):.2f}",
        f"{middle(lambda t: t.load):.1f}",
    ]
    return "| " + " | ".join(cells) + " |"


HEAD = (
    "| handler | slots for the foreground | quiet, p50 / p99 ms | beside, p50 / p99 ms "
    "| p99 beside / quiet | background, /s | left, least | fixed loop, ms | load |\n"
    "|---|---|--:|--:|--:|--:|--:|--:|--:|"
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.foreground", description=__doc__)
    parser.add_argument("--postgres", metavar="URL", required=True)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--shapes", nargs="*", default=list(BACKLOG), choices=list(BACKLOG))
    parser.add_argument("--slots", type=int, default=16, help="of the worker of lane and apart")
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=WAYS)
    asked = parser.parse_args()
    found: dict[tuple[str, str], list[Found]] = {}
    for number in range(asked.turns):
        for shape in asked.shapes:
            for way in asked.ways[:: 1 if number % 2 == 0 else -1]:
                target = Postgres(asked.postgres)
                with nothing_kept() if way == "without" else ExitStack():
                    try:
                        one = asyncio.run(
                            turn(target.fresh(), shape, asked.seconds, way, asked.slots)
                        )
                    finally:
                        target.clear()
                found.setdefault((shape, way), []).append(one)
                print(f"turn {number + 1}: {row(shape, way, [one])}", flush=True)
    print(HEAD)
    for (shape, way), turns in found.items():
        print(row(shape, way, turns))


if __name__ == "__main__":
    main()
