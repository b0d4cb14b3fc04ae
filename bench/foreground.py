"""`make bench-foreground`: waits of foreground tasks in quiet and beside a saturated background.

One worker of 16 slots on PostgreSQL. A producer commits foreground tasks at a steady rate; after a
while a backlog of background tasks (priority -1) of the same handler, which outlasts the
measurement, is committed. A wait counts from the return of the commit to the first line of the
handler. `without` is the same code with nothing kept for the foreground but the weights 8 : 1.

    python -m bench.foreground --postgres URL [--turns 2] [--seconds 8]
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any, NamedTuple
from unittest.mock import patch

import late
from bench.overload.producers import Make, Samples
from bench.overload.stage import Stage
from bench.steady.loop import Beside
from bench.targets import Postgres
from late.outbox import connect
from late.scheduler.limits.ready_queues import ReadyQueues

RATE = 40
"""Foreground tasks a second."""
CALL_S = 0.05
"""The time for which the service of the shape `call` lets a handler wait."""
BACKLOG = {"nothing": 8_000, "write": 1_500, "call": 400}
"""Background tasks for each second of the measurement."""
SETTLING_S = 2.0
"""From the commit of the backlog to the measurement."""


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


async def turn(url: str, shape: str, seconds: float) -> Found:
    """Measure once, on a fresh database."""
    samples, done = Samples(), list[float]()
    app = app_of(url, shape, samples, done)
    stage = Stage(url, app, {})
    async with stage.open(concurrency=16):
        with connect(url) as tx:
            tx.execute("create table written (id serial primary key, note text)")
        stage.produce("task", foreground, RATE)
        while not stage.committed:  # noqa: ASYNC110 -- another process counts
            await asyncio.sleep(0.1)
        await asyncio.sleep(SETTLING_S)
        with Beside() as loop:
            quiet_from = time.monotonic()
            await asyncio.sleep(seconds)
            quiet_until = time.monotonic()
        number = round(BACKLOG[shape] * (seconds + SETTLING_S))
        low = app.tasks["work"].options(priority=-1)
        await asyncio.to_thread(stage.enqueue, [low.call(0.0, low=True) for _ in range(number)])
        await asyncio.sleep(SETTLING_S)
        beside_from = time.monotonic()
        await asyncio.sleep(seconds)
        beside_until = time.monotonic()
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


def row(shape: str, kept: bool, turns: Sequence[Found]) -> str:
    """Return a line of the table: medians over the turns."""

    def middle(pick: Any) -> float:
        return median(pick(each) for each in turns)

    ratios = [each.beside_ms[1] / each.quiet_ms[1] for each in turns]
    cells = [
        shape,
        "kept" if kept else "without",
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
    asked = parser.parse_args()
    found: dict[tuple[str, bool], list[Found]] = {}
    for number in range(asked.turns):
        for shape in asked.shapes:
            for kept in (True, False) if number % 2 == 0 else (False, True):
                target = Postgres(asked.postgres)
                with ExitStack() if kept else nothing_kept():
                    try:
                        one = asyncio.run(turn(target.fresh(), shape, asked.seconds))
                    finally:
                        target.clear()
                found.setdefault((shape, kept), []).append(one)
                print(f"turn {number + 1}: {row(shape, kept, [one])}", flush=True)
    print(HEAD)
    for (shape, kept), turns in found.items():
        print(row(shape, kept, turns))


if __name__ == "__main__":
    main()
