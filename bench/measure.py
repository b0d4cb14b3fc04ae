"""The measurements. Each makes a fresh database, and leaves nothing running."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import late
from bench.targets import Row, Target, transaction
from bench.tasks import NOTE, ROWS, app, nothing, plain, stamp, update
from late.model.ids import new_id
from late.notify import notifier as waking

BATCH = 1_000
"""Tasks per statement and transaction when enqueueing in bulk: the most that one call takes."""
PATIENCE_S = 60.0
"""Without progress for this long a measurement gives up."""


class GaveUp(Exception):
    """The worker died or stood still; the message holds the end of its output."""


def rows(count: int) -> list[Row]:
    """Make the rows of a bare writer, with the same sizes as the tasks."""
    payload = json.dumps({"n": 1_000_000, "note": NOTE}).encode()
    return [(n % 8, new_id(n % 8), "bench", "bench.tasks.nothing", payload) for n in range(count)]


@dataclass(slots=True)
class Worker:
    """One worker process under measurement."""

    process: subprocess.Popen[bytes]
    marks: Path
    output: Path

    def check(self) -> None:
        if self.process.poll() is not None:
            raise GaveUp(
                f"the worker ended with {self.process.returncode}:\n"
                f"{self.output.read_text(errors='replace')[-2_000:]}"
            )


@contextmanager
def worker(url: str, folder: Path, *options: str, counted: Path | None = None) -> Iterator[Worker]:
    """Start `late worker` and stop it as a deploy would, with SIGTERM."""
    command = ["late.cli"] if counted is None else ["bench.counted", str(counted)]
    with program([*command, "worker", "bench.tasks:app", *options], url, folder) as running:
        yield running


@contextmanager
def woken() -> Iterator[list[str]]:
    """Within the block this process wakes a worker that is started with the options given."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ[waking.PLACES_VARIABLE] = f"127.0.0.1:{port}"
    try:
        yield ["--wake-port", str(port)]
    finally:
        del os.environ[waking.PLACES_VARIABLE]


@contextmanager
def program(
    module: Sequence[str], url: str, folder: Path, name: str = "worker", **variables: str
) -> Iterator[Worker]:
    """Start a module with its arguments and stop it with SIGTERM; `name` tells its files from
    those of others."""
    marks, output = folder / f"{name}.marks", folder / f"{name}.log"
    marks.write_bytes(b"")
    environment = os.environ | {"BENCH_URL": url, "BENCH_MARKS": str(marks)} | variables
    with output.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *module],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Worker(process, marks, output)
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def fill(target: Target, url: str, count: int, task: late.Task[[int, str], Any] = nothing) -> float:
    """Enqueue `count` no-ops (or calls of `task`) in bulk; tasks per second."""
    gc.collect()  # or the first one pays for what making the database has imported
    with closing(target.connect(url)) as connection:
        began = time.perf_counter()
        for start in range(0, count, BATCH):
            calls = [task.call(n, NOTE) for n in range(start, min(start + BATCH, count))]
            with transaction(connection) as tx:
                app.enqueue_many(tx, calls)
        return count / (time.perf_counter() - began)


def one_by_one(target: Target, count: int) -> dict[str, float]:
    """Transactions per second of a business row and one task each, on one connection; and of the
    same two rows written by hand, one of the one and one of the other: what else the machine does
    falls on both."""
    taken_s = {"enqueue_single_per_s": 0.0, "by_hand_per_s": 0.0}
    with closing(target.connect(target.fresh())) as connection:
        for number in range(2 * count):
            by_hand = number % 2 == 1
            began = time.perf_counter()
            with transaction(connection) as tx:
                target.business(tx, number)
                if by_hand:
                    target.task_by_hand(tx, _by_hand(number))
                else:
                    nothing.enqueue(tx, number, NOTE)
            taken = time.perf_counter() - began
            taken_s["by_hand_per_s" if by_hand else "enqueue_single_per_s"] += taken
    return {name: count / taken for name, taken in taken_s.items()}


def _by_hand(number: int) -> Row:
    """Make the row of a service without a library: an id, and JSON of the arguments."""
    payload = json.dumps({"n": number, "note": NOTE}).encode()
    return number % 8, new_id(number % 8), "bench", "bench.tasks.nothing", payload


def settled(connection: Any) -> tuple[int, int]:
    """Return the number of done tasks in the journal, and the time of the last (µs, database)."""
    found = connection.execute(
        "select usage, settled_at_us from late_settlement where usage is not null"
    ).fetchall()
    connection.rollback()
    count = last = 0
    for usage, at_us in found:
        for _queue, _name, _target, outcome, tasks, *_ in json.loads(usage):
            if outcome == "done":
                count, last = count + tasks, max(last, at_us)
    return count, last


def wait_settled(target: Target, url: str, count: int, running: Worker) -> int:
    """Wait until `count` tasks are settled; when the last one was (µs, the database's clock).

    Raises:
        GaveUp: the worker ended, or nothing moved for `PATIENCE_S`.
    """
    best, moved = -1, time.monotonic()
    with closing(target.connect(url)) as connection:
        while True:
            running.check()
            done, last_us = settled(connection)
            if done >= count:
                return last_us
            if done > best:
                best, moved = done, time.monotonic()
            if time.monotonic() - moved > PATIENCE_S:
                raise GaveUp(f"{done} of {count} settled, and nothing moves")
            time.sleep(0.1)


def drain(target: Target, folder: Path, count: int) -> dict[str, float]:
    """Tasks per second of one worker with a no-op, from the first start to the last settlement,
    and bytes of the database's log per task over its whole life."""
    url = target.fresh()
    empty = target.written_bytes(url)
    enqueue_rate = fill(target, url, count)
    full = target.written_bytes(url)
    drained = drained_per_s(target, url, folder, count)
    result = {"enqueue_bulk_per_s": enqueue_rate, "drain_per_s": drained}
    if target.name == "postgresql":  # SQLite's log is a ring: its size says nothing here
        result["wal_insert_bytes"] = (full - empty) / count
        result["wal_life_bytes"] = (target.written_bytes(url) - empty) / count
    return result


def effects(target: Target, folder: Path, count: int) -> dict[str, float]:
    """Tasks per second of one worker with an UPDATE in `ctx.once()`, as `drain` measures them."""
    url = target.fresh()
    with closing(target.connect(url)) as connection, transaction(connection) as tx:
        for number in range(ROWS):
            target.business(tx, number)
    fill(target, url, count, update)
    return {"effect_per_s": drained_per_s(target, url, folder, count)}


def drain_plain(target: Target, folder: Path, count: int, task: Any = plain) -> dict[str, float]:
    """Do the same with handlers that are a plain `def`: tasks per second."""
    url = target.fresh()
    fill(target, url, count, task)
    return {"drain_plain_per_s": drained_per_s(target, url, folder, count)}


def drained_per_s(target: Target, url: str, folder: Path, count: int, *options: str) -> float:
    """Tasks per second of one worker, started with `options`, from the first start to the last
    settlement."""
    with worker(url, folder, *options) as running:
        last_us = wait_settled(target, url, count, running)
        first_ns = int(running.marks.read_text().split()[1])
    return count / (last_us / 1e6 - first_ns / 1e9)


def statements(target: Target, folder: Path, few: int, many: int) -> dict[str, Any]:
    """Statements that the worker gave its driver, per task: over start, drain and stop of a run of
    `few`, and of what a run of `many` took more."""
    short, long = (_counted(target, folder, count) for count in (few, many))
    more = sum(long.values()) - sum(short.values())
    return {
        "statements_per_task": sum(short.values()) / few,
        "statements_per_busy": more / (many - few),
        "statements": dict(sorted(short.items(), key=lambda item: -item[1])),
        "statements_many": dict(sorted(long.items(), key=lambda item: -item[1])),
    }


def _counted(target: Target, folder: Path, count: int) -> dict[str, int]:
    url = target.fresh()
    fill(target, url, count)
    report = folder / "statements.json"
    with worker(url, folder, counted=report) as running:
        wait_settled(target, url, count, running)
    counts: dict[str, int] = json.loads(report.read_text())
    return counts


def latency(
    target: Target, folder: Path, rate: int, seconds: float, *, hold: bool = False
) -> dict[str, float]:
    """Measure `lags_ms`, and return its percentiles."""
    lags = sorted(lags_ms(target, folder, rate, seconds, hold=hold))
    return {
        "asked_per_s": rate,
        "reached_per_s": len(lags) / seconds,
        "p50_ms": percentile(lags, 0.50),
        "p95_ms": percentile(lags, 0.95),
        "p99_ms": percentile(lags, 0.99),
        "max_ms": lags[-1],
    }


def lags_ms(
    target: Target,
    folder: Path,
    rate: float,
    seconds: float,
    *,
    hold: bool = False,
    wake: bool = False,
) -> list[float]:
    """From the return of the commit to the start of the handler, in milliseconds, in no order.

    Args:
        hold: keep another transaction open that has written, as a slow report or a stuck client
            does, for the whole time.
        wake: the producers wake the worker, which is told to listen.
    """
    url = target.fresh()
    with (
        woken() if wake else nullcontext([]) as options,
        worker(url, folder, *options) as running,
        closing(target.connect(url)) as holder,
    ):
        _warm_up(target, url, running)
        if hold:
            target.business(holder, -1)
        committed: dict[int, int] = {}
        threads = [
            threading.Thread(target=_produce, args=(target, url, share, seconds, committed))
            for share in _shares(rate)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        holder.rollback()
        started = read_stamps(running, len(committed))
    return [max(0.0, (started[n] - at) / 1e6) for n, at in committed.items()]


def percentile(ascending: Sequence[float], share: float) -> float:
    """The nearest rank: a value that was measured, not one in between."""
    return ascending[min(len(ascending) - 1, round(share * len(ascending)))]


def _shares(rate: float) -> list[tuple[int, int, float]]:
    """(first number, step, rate) of each producer: one per 250 transactions a second."""
    count = max(1, int(rate // 250))
    return [(number, count, rate / count) for number in range(count)]


def _produce(
    target: Target,
    url: str,
    share: tuple[int, int, float],
    seconds: float,
    committed: dict[int, int],
) -> None:
    first, step, rate = share
    with closing(target.connect(url)) as connection:
        began = time.monotonic()
        for turn in range(int(rate * seconds)):
            # Even spacing; a producer that falls behind does not bunch up what it has missed.
            time.sleep(max(0.0, began + turn / rate - time.monotonic()))
            number = first + turn * step
            with transaction(connection) as tx:
                target.business(tx, number)
                task_id = stamp.enqueue(tx, number, NOTE)
            committed[number] = time.time_ns()
            late.wake(task_id)  # tells nobody, unless `woken`


def _warm_up(target: Target, url: str, running: Worker) -> None:
    """The worker owns its shards and has run something: starting up is not what is measured."""
    with closing(target.connect(url)) as connection, transaction(connection) as tx:
        app.enqueue_many(tx, [nothing.call(n, NOTE) for n in range(64)])
    wait_settled(target, url, 64, running)


def read_stamps(running: Worker, count: int) -> dict[int, int]:
    """Number -> start in ns, once all have come.

    Raises:
        GaveUp: they have not within `PATIENCE_S`.
    """
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        running.check()
        lines = [line.split() for line in running.marks.read_text().splitlines()]
        started = {int(number): int(at) for number, at in lines if number != "first"}
        if len(started) >= count:
            return started
        time.sleep(0.05)
    raise GaveUp(f"{len(started)} of {count} tasks started")
