"""The measurements of `late bench`: one worker process, and this one as the service."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from sqlalchemy import Engine, select

from late.cli.bench.tasks import MARKS, NOTE, URL, app, nothing, stamp
from late.errors import LateError
from late.model.task import Usage
from late.schema.engine import make_engine, reading
from late.schema.tables import settlement

BATCH = 1_000
SINGLES = 300
PATIENCE_S = 60.0
"""The longest time without progress."""
STOP_S = 30.0
_usage_of = msgspec.json.Decoder(list[Usage]).decode


class GaveUp(LateError):
    """The worker ended, or nothing moved; the message holds the end of its output."""


class Measured(msgspec.Struct):
    """The results of `late bench`. Rates are tasks a second, the rest milliseconds."""

    tasks: int
    enqueue_bulk_per_s: float
    enqueue_single_per_s: float
    drain_per_s: float
    rate_per_s: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float


def measure(url: str, folder: Path, *, tasks: int, rate: int, seconds: float) -> Measured:
    """Measure everything on the empty tables at `url`.

    `folder` takes marks and the worker's output.

    Raises:
        GaveUp: see the class.
    """
    engine = make_engine(url)
    try:
        single = one_by_one(engine)
        bulk = fill(engine, tasks)
        with worker(url, folder) as running:
            drain = drained(engine, running, SINGLES + tasks)
            lags = latency(engine, running, rate, seconds)
    finally:
        engine.dispose()
    p50, p95, p99 = (
        lags[min(len(lags) - 1, round(share * len(lags)))] for share in (0.5, 0.95, 0.99)
    )
    return Measured(tasks, bulk, single, drain, rate, p50, p95, p99, lags[-1])


def fill(engine: Engine, count: int) -> float:
    """Enqueue a thousand tasks in each transaction, and return tasks a second."""
    began = time.perf_counter()
    for start in range(0, count, BATCH):
        calls = [nothing.call(n, NOTE) for n in range(start, min(start + BATCH, count))]
        with engine.begin() as tx:
            app.enqueue_many(tx, calls)
    return count / (time.perf_counter() - began)


def one_by_one(engine: Engine) -> float:
    """Enqueue one task in each transaction, and return transactions a second."""
    began = time.perf_counter()
    for number in range(SINGLES):
        with engine.begin() as tx:
            nothing.enqueue(tx, number, NOTE)
    return SINGLES / (time.perf_counter() - began)


class Running(msgspec.Struct):
    """The worker process and its files."""

    process: subprocess.Popen[bytes]
    marks: Path
    output: Path

    def lines(self) -> list[list[str]]:
        """Return its marks so far.

        Raises:
            GaveUp: it has ended.
        """
        if self.process.poll() is not None:
            said = self.output.read_text(errors="replace")[-1_000:]
            raise GaveUp(f"the worker ended with {self.process.returncode}:\n{said}")
        return [line.split() for line in self.marks.read_text().rpartition("\n")[0].splitlines()]


@contextmanager
def worker(url: str, folder: Path) -> Iterator[Running]:
    """Run a worker with its default settings in a process of its own."""
    marks, output = folder / "marks", folder / "output"
    marks.touch()
    with output.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "late.cli", "worker", "late.cli.bench.tasks:app"],
            env=os.environ | {URL: url, MARKS: str(marks)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Running(process, marks, output)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def drained(engine: Engine, running: Running, count: int) -> float:
    """Return tasks a second, from the first start until the journal has all of them.

    Raises:
        GaveUp: see the class.
    """
    best, moved = -1, time.monotonic()
    while True:
        # In this order: what is settled has left its mark, but not the other way round.
        done = settled(engine)
        lines, now_ns = running.lines(), time.time_ns()
        if done >= count:
            return count / (now_ns - int(lines[0][1])) * 1e9
        if done > best:
            best, moved = done, time.monotonic()
        if time.monotonic() - moved > PATIENCE_S:
            raise GaveUp(f"{done} of {count} tasks are settled, and nothing moves")
        time.sleep(0.02)


def settled(engine: Engine) -> int:
    """Count the tasks that are done in the journal."""
    with reading(engine) as connection:
        texts = connection.execute(
            select(settlement.c.usage).where(settlement.c.usage.is_not(None))
        ).scalars()
        return sum(u.count for text in texts for u in _usage_of(text) if u.outcome == "done")


def latency(engine: Engine, running: Running, rate: int, seconds: float) -> list[float]:
    """Return the times from a commit to the start of the handler, ascending, in milliseconds.

    Raises:
        GaveUp: see the class.
    """
    committed: dict[int, int] = {}
    began = time.monotonic()
    for number in range(max(1, int(rate * seconds))):
        time.sleep(max(0.0, began + number / rate - time.monotonic()))
        with engine.begin() as tx:
            stamp.enqueue(tx, number, NOTE)
        committed[number] = time.time_ns()
    deadline = time.monotonic() + PATIENCE_S
    while True:
        started = {int(n): int(at) for n, at in running.lines() if n != "first"}
        if len(started) >= len(committed):
            return sorted(max(0, started[n] - at) / 1e6 for n, at in committed.items())
        if time.monotonic() > deadline:
            raise GaveUp(f"{len(started)} of {len(committed)} tasks started")
        time.sleep(0.02)
