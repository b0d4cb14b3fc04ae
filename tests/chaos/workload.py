"""The app of a storm: tasks of every kind, whose handlers write what happens to them.

Producers and workers import it. What differs between storms is in the environment.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import late
from late.handler.context import AsyncContext, Context
from late.model.ids import shard_of
from tests.chaos.plan import OWN_FAULT
from tests.support.history import Recorder

URL = os.environ.get("LATE_CHAOS_URL", "sqlite:///unused.db")
FOLDER = os.environ.get("LATE_CHAOS_DIR", ".")
DEFECT = os.environ.get("LATE_CHAOS_DEFECT", "")
"""What is broken on purpose, to see the judge find it; see `worker`."""

app = late.App(URL, shards=int(os.environ.get("LATE_CHAOS_SHARDS", "8")))
recorder = Recorder(FOLDER)
_background: set[asyncio.Task[None]] = set()


@contextmanager
def execution(ctx: AsyncContext | Context, due: str = "") -> Iterator[None]:
    """Writes the start and the end of one attempt."""
    place = {"task": ctx.task_id, "group": ctx.group, "attempt": ctx.attempt}
    shard, epoch = shard_of(ctx.task_id), ctx._attempt.epoch
    recorder.write("exec_start", shard=shard, epoch=epoch, word=due, **place)
    word = "failed"
    try:
        yield
        word = "done"
    except asyncio.CancelledError:
        word = "interrupted"
        raise
    finally:
        recorder.write("exec_end", word=word, **place)


@app.task()
async def quick(ctx: AsyncContext) -> None:
    if DEFECT == "ack_first":
        _background.add(asyncio.create_task(_afterwards(ctx)))
        return
    with execution(ctx):
        pass


async def _afterwards(ctx: AsyncContext) -> None:
    """The task has been called done, and only now it is."""
    await asyncio.sleep(1.0)
    with execution(ctx):
        pass


@app.task()
async def slow(ctx: AsyncContext) -> None:
    with execution(ctx):
        await asyncio.sleep(0.2)


@app.task()
def threaded(ctx: Context) -> None:
    with execution(ctx):
        time.sleep(0.002)


@app.task(queue=OWN_FAULT, retry=late.Retry(max_attempts=5, base=0.05, cap=0.2))
async def flaky(ctx: AsyncContext) -> None:
    with execution(ctx):
        if ctx.attempt < 3:
            raise ConnectionError("not yet")


@app.task(retry=late.Retry(max_attempts=2, base=0.05, cap=0.1))
async def doomed(ctx: AsyncContext) -> None:
    with execution(ctx):
        raise ValueError("never")


@app.task()
async def timed(ctx: AsyncContext) -> None:
    with execution(ctx):
        pass


if os.environ.get("LATE_CHAOS_TICKS"):

    @app.schedule(every=timedelta(seconds=1), catch_up="all", overlap="allow")
    @app.task()
    async def tick(ctx: AsyncContext) -> None:
        with execution(ctx, ctx.headers["late-due"]):
            pass
