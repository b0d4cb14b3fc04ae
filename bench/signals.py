"""What metrics cost: `python -m bench.signals` drains the same backlog with and without them.

Processor time and not wall time, because it is the same on a busy machine; by turns, because the
machine changes while it runs. *With* means that events are counted, the database is looked at every
second, and the page is asked for every second, as often as nobody would in earnest.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import late
from late import tracing
from late.config import WorkerConfig
from late.outbox import connect
from late.schema import migrate
from late.task import Attempt, Record, TaskId
from late.worker import Worker


async def drain(url: str, count: int, *, metrics: bool) -> float:
    """Microseconds of the processor per task, from the worker's start to its last settlement."""
    app = late.App(url)

    @app.task
    async def nothing(n: int) -> None: ...

    for start in range(0, count, 1_000):
        with connect(url) as tx:
            app.enqueue_many(tx, [nothing.call(n) for n in range(start, min(start + 1_000, count))])
    settings = WorkerConfig(look_every_s=1.0 if metrics else 0.0, prune_every_s=3_600.0)
    worker = Worker(app, settings=settings)
    if metrics:
        worker.telemetry.asked = True
    else:
        worker.telemetry.run = asyncio.Event().wait  # type: ignore[method-assign,assignment]
    begun = time.process_time()
    await worker.start()
    asked = time.monotonic()
    while worker.dispatcher.ended < count or worker.scheduler.unrecorded:
        await asyncio.sleep(0.02)
        if metrics and time.monotonic() - asked > 1.0:
            await worker.telemetry.page()
            asked = time.monotonic()
    spent = time.process_time() - begun
    await worker.stop()
    return spent / count * 1e6


def off() -> float:
    """Microseconds that an attempt pays for traces while they are off."""
    record = Record(0, 1, TaskId("t"), "q", "n", b"", None, None, 1, 1)
    attempt = Attempt("default", record, 1, 0, 1, 1)
    begun = time.process_time()
    for _ in range(100_000):
        tracing.end(tracing.begin(attempt), "done", None)
    return (time.process_time() - begun) * 10


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--turns", type=int, default=5)
    asked = parser.parse_args(arguments)
    spent: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(asked.turns):
        for metrics in (False, True) if turn % 2 else (True, False):
            with tempfile.TemporaryDirectory() as folder:
                url = f"sqlite:///{Path(folder)}/bench.db"
                migrate.upgrade(url)
                spent[metrics].append(asyncio.run(drain(url, asked.tasks, metrics=metrics)))
    without, with_ = (statistics.median(spent[metrics]) for metrics in (False, True))
    found = {
        "tasks": asked.tasks, "turns": asked.turns, "load": os.getloadavg()[0],
        "us_per_task_without": round(without, 2), "us_per_task_with": round(with_, 2),
        "least_without": round(min(spent[False]), 2), "least_with": round(min(spent[True]), 2),
        "overhead": round(with_ / without - 1, 4),
        "overhead_of_the_least": round(min(spent[True]) / min(spent[False]) - 1, 4),
        "us_per_attempt_traces_off": round(off(), 3),
    }  # fmt: skip
    print(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
