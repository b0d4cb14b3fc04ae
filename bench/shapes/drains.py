"""One drain of one shape on one store: how fast, and whose processor time it took.

The shape `rested` is the plain one after a pause between its bulk load and the drain; `vacuumed`
is the same after a VACUUM instead.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import alone, measure
from bench.main import rest
from bench.peers import cost
from bench.peers.adapters.mix import delay_s, is_delayed
from bench.shapes.tasks import ROWS, SHAPES, Shape, app
from bench.steady.loop import Beside
from bench.targets import Target, transaction

PLAIN = SHAPES["plain"]
LOADED = {
    "rested": PLAIN._replace(title="plain, a rest after the load"),
    "vacuumed": PLAIN._replace(title="plain, VACUUM after the load"),
}
LINES = SHAPES | LOADED
FILLED_PER_S = 5_000
"""Slower than any fill of a shape with delays, which begin when so much time has passed."""
LEAST = 200


def fill(target: Target, url: str, shape: Shape, count: int) -> dict[int, float]:
    """Enqueue in bulk; return when each delayed task is due, by this machine's clock.

    Delays count from a moment after the fill, which is waited for: they pass while the backlog
    drains. For several workers, which live already, all tasks appear in one commit.
    """
    due: dict[int, float] = {}
    start_s = time.time() + count / FILLED_PER_S
    each = count if shape.workers > 1 else measure.BATCH
    with closing(target.connect(url)) as connection:
        for start in range(0, count, each):
            with transaction(connection) as tx:
                for first in range(start, min(start + each, count), measure.BATCH):
                    numbers = range(first, min(first + measure.BATCH, count))
                    wait_s = max(0.0, start_s - time.time())
                    app.enqueue_many(tx, [shape.call(n, wait_s) for n in numbers])
                    if shape.delays:
                        from_s = max(start_s, time.time())
                        due |= {n: from_s + delay_s(n) for n in numbers if is_delayed(n)}
    if due:
        time.sleep(max(0.0, start_s - time.time()))
    return due


def run(target: Target, folder: Path, name: str, plain_count: int, rest_s: float) -> dict[str, Any]:
    """Drain one shape once, on a fresh database: its share of the tasks of the plain one.

    Raises:
        GaveUp: a worker ended, or nothing moved.
    """
    shape = LINES[name]
    count = max(LEAST, round(plain_count * shape.share))
    rest(target)
    url = target.fresh()
    _fill_business(target, url)
    due = fill(target, url, shape, count) if shape.workers == 1 else {}
    _prepare(target, url, name, rest_s)
    server = cost.postmaster(url) if target.name == "postgresql" else None
    with Beside() as beside:
        server_s = cost.cpu_s(server)
        with ExitStack() as stack:
            running = [
                stack.enter_context(_worker(url, folder, number)) for number in range(shape.workers)
            ]
            idle_s: Sequence[float] = ()
            if shape.workers > 1:
                _wait_even(target, url, running)
                idle_s = [processor_s(one) for one in running]
                fill(target, url, shape, count)
            last_us = measure.wait_settled(target, url, count, running[0])
            lives_s = [processor_s(one) for one in running]
        server_after_s = cost.cpu_s(server)
    marks = [Marks.read(one.marks) for one in running]
    begun_s = idle_s or [mark.used_s for mark in marks]
    first_s = min(mark.first_s for mark in marks)
    found = {
        "tasks": count,
        "per_s": count / (last_us / 1e6 - first_s),
        "worker_us": 1e6 * (sum(lives_s) - sum(begun_s)) / count,
        "life_us": 1e6 * sum(lives_s) / count,
    }
    if server_s is not None and server_after_s is not None and shape.workers == 1:
        found["server_us"] = 1e6 * (server_after_s - server_s) / count
    return found | lateness(marks, due) | beside.figures()


@dataclass(frozen=True, slots=True)
class Marks:
    """What the handlers of one worker have left."""

    first_s: float
    used_s: float
    """The processor time that the process had taken before its first task."""
    started: dict[int, float]

    @classmethod
    def read(cls, file: Path) -> Marks:
        return cls.parse(file.read_text().splitlines())

    @classmethod
    def parse(cls, written: Sequence[str]) -> Marks:
        """Take the earliest of the first marks: threads that start at once leave several."""
        lines = [line.split() for line in written]
        firsts = [(int(at) / 1e9, int(used) / 1e9) for what, at, *rest in lines
                  if what == "first" for used in rest]  # fmt: skip
        started = {int(what): int(at) / 1e9 for what, at, *_ in lines if what != "first"}
        first_s, used_s = min(firsts, default=(float("inf"), 0.0))
        return cls(first_s, used_s, started)


def lateness(marks: Sequence[Marks], due: dict[int, float]) -> dict[str, float]:
    """Return the ranks of the delayed tasks' starts after they were due, in ms."""
    late_ms = sorted(
        1e3 * (at - due[number]) for mark in marks for number, at in mark.started.items()
    )
    if not late_ms:
        return {}
    return {
        "late_p50_ms": measure.percentile(late_ms, 0.5),
        "late_p99_ms": measure.percentile(late_ms, 0.99),
    }


def processor_s(running: measure.Worker) -> float:
    """Return the processor time of a living worker so far, from its start.

    Linux's clock of another process: it is exact where /proc/PID/stat counts ticks of 10 ms.
    """
    return time.clock_gettime((~running.process.pid << 3) | 2)


def _worker(url: str, folder: Path, number: int) -> Any:
    command = ["late.cli", "worker", "bench.shapes.tasks:app"]
    return measure.program(command, url, folder, f"worker-{number}")


def _fill_business(target: Target, url: str) -> None:
    with closing(target.connect(url)) as connection, transaction(connection) as tx:
        for number in range(ROWS):
            target.business(tx, number)


def _prepare(target: Target, url: str, name: str, rest_s: float) -> None:
    """Do what the row says between its load and its drain."""
    if name == "rested":
        time.sleep(rest_s)
    elif name == "vacuumed":
        with closing(target.connect(url)) as connection:
            if target.name == "postgresql":
                connection.autocommit = True
            connection.execute("vacuum")


def _wait_even(target: Target, url: str, running: Sequence[measure.Worker]) -> None:
    """Wait until each worker holds its share of the shards."""
    with closing(target.connect(url)) as connection:
        if target.name == "postgresql":
            connection.autocommit = True
        while alone.shares(connection, running) != alone.even(len(running)):
            pass  # it waits a second, and fails when a worker has ended
