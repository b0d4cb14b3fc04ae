"""The cost of metrics: `python -m bench.signals` drains a backlog, asks for the page each second,
and says which share of the processor's time went into counting and answering.

Measured within the run, on the thread's own clock: on a shared machine two runs differ by more than
what is looked for. A look at the database costs the same however much is drained, so it is measured
by itself: there is one every 15 s.

`--drains N` measures it from outside as well, which takes a quiet machine: `late worker` drains
with metrics and without, N times each in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import late
from bench import measure
from bench.alone import free_port
from bench.targets import Sqlite
from late import events
from late.config import WorkerConfig
from late.model.task import Attempt, Record, TaskId
from late.observability import traces
from late.outbox import connect
from late.schema import migrate
from late.worker.worker import Worker


class Timed(events.Emitter):
    """Adds up what telling of events takes."""

    spent_s = 0.0

    def emit(self, event: events.Event, **values: Any) -> None:
        begun = time.thread_time()
        super().emit(event, **values)
        self.spent_s += time.thread_time() - begun


async def drain(url: str, count: int) -> tuple[float, float, float]:
    """Seconds of the processor from the worker's start to its last settlement: all, those for
    counting, those for answering."""
    app = late.App(url)

    @app.task
    async def nothing(n: int) -> None: ...

    for start in range(0, count, 1_000):
        with connect(url) as tx:
            app.enqueue_many(tx, [nothing.call(n) for n in range(start, min(start + 1_000, count))])
    events.default.__class__ = Timed
    events.default.spent_s = 0.0  # type: ignore[attr-defined]
    worker = Worker(app, settings=WorkerConfig(look_every_s=0.0, prune_every_s=3_600.0))
    worker.telemetry.asked = True
    begun, answering = time.process_time(), 0.0
    await worker.start()
    asked = time.monotonic()
    while worker.dispatcher.ended < count or worker.scheduler.unrecorded:
        await asyncio.sleep(0.02)
        if time.monotonic() - asked > 1.0:
            before = time.thread_time()
            await worker.telemetry.page()
            answering += time.thread_time() - before
            asked = time.monotonic()
    spent = time.process_time() - begun
    await worker.stop()
    return spent, events.default.spent_s, answering  # type: ignore[attr-defined]


async def look(url: str) -> tuple[float, float]:
    """Milliseconds of the processor for one look at the database, and for one page."""
    worker = Worker(late.App(url), settings=WorkerConfig(health_port=0, look_every_s=3_600.0))
    await worker.start()
    await worker.telemetry.look_at_database()
    begun = time.process_time()
    for _ in range(10):
        await worker.telemetry.look_at_database()
    looked = time.process_time()
    for _ in range(10):
        await worker.telemetry.page()
    asked = time.process_time()
    await worker.stop()
    return (looked - begun) * 100, (asked - looked) * 100


def off() -> float:
    """Microseconds that an attempt pays for traces while they are off."""
    record = Record(0, 1, TaskId("t"), "q", "n", b"", None, None, 1, 1)
    attempt = Attempt("default", record, 1, 0, 1, 1)
    begun = time.process_time()
    for _ in range(100_000):
        traces.end(traces.begin(attempt), "done", None)
    return (time.process_time() - begun) * 10


def drains(turns: int, count: int) -> dict[str, Any]:
    """Tasks a second without metrics and with them, asked for each second: medians, and that of the
    ratios of the pairs."""
    pairs = []
    with tempfile.TemporaryDirectory(prefix="late-bench-") as scratch:
        folder = Path(scratch)
        target = Sqlite(folder)
        for _ in range(turns):
            pair = []
            for port in (None, free_port()):
                url = target.fresh()
                measure.fill(target, url, count)
                with asked(port) as options:
                    pair.append(measure.drained_per_s(target, url, folder, count, *options))
            pairs.append(pair)
    return {
        "drains": turns,
        "drained": count,
        "per_s_without": round(statistics.median(pair[0] for pair in pairs)),
        "per_s_with": round(statistics.median(pair[1] for pair in pairs)),
        "ratio": round(statistics.median(pair[1] / pair[0] for pair in pairs), 3),
        "ratios": sorted(round(pair[1] / pair[0], 3) for pair in pairs),
    }


@contextlib.contextmanager
def asked(port: int | None) -> Iterator[list[str]]:
    """Options of a worker whose metrics are asked for each second within the block."""
    if port is None:
        yield []
        return
    over = threading.Event()

    def ask() -> None:
        while not over.wait(1.0):
            with contextlib.suppress(OSError):  # it starts, or ends
                page = f"http://127.0.0.1:{port}/metrics"
                urllib.request.urlopen(page, timeout=5).read()  # Our own server. # nosec B310

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield ["--health-port", str(port)]
    finally:
        over.set()
        asking.join()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--drains", type=int, default=0, help="with metrics and without")
    options = parser.parse_args(arguments)
    runs = []
    for _ in range(options.turns):
        with tempfile.TemporaryDirectory() as folder:
            url = f"sqlite:///{Path(folder)}/bench.db"
            migrate.upgrade(url)
            runs.append(asyncio.run(drain(url, options.tasks)))
            look_ms, page_ms = asyncio.run(look(url))
    found = {
        "tasks": options.tasks, "turns": options.turns, "load": round(os.getloadavg()[0], 1),
        "us_per_task": round(statistics.median(run[0] for run in runs) / options.tasks * 1e6, 2),
        "share_of_counting": round(statistics.median(run[1] / run[0] for run in runs), 4),
        "share_of_answering": round(statistics.median(run[2] / run[0] for run in runs), 4),
        "ms_per_look": round(look_ms, 1), "ms_per_page": round(page_ms, 2),
        "us_per_attempt_traces_off": round(off(), 3),
    }  # fmt: skip
    if options.drains:
        found |= drains(options.drains, 10 * options.tasks)
    print(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
