"""Worker processes under a steady load, as a deployment runs them, and what they leave behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection, select

from bench.measure import GaveUp
from bench.witness import witness
from late.app.app import App
from late.app.task import Call
from late.control import Control
from late.model.ids import shard_of
from late.model.task import ENQUEUED, TaskId, Usage
from late.schema.engine import make_engine, reading, write
from late.schema.tables import lease, settlement, worker

PATIENCE_S = 300.0
READY_S = 1.0
TURN_S = 0.05
"""The producer commits one transaction of several tasks this often."""


class Start(NamedTuple):
    """One start of one task, as its process witnessed it."""

    number: int
    attempt: int
    at_s: float
    pid: int


class Load:
    """A producer: `rate` tasks a second over all shards, from `with` to the end of the block; their
    numbers count from `first` on."""

    def __init__(self, url: str, rate: int, shards: int, *, first: int = 0) -> None:
        self.committed: dict[int, tuple[int, float]] = {}
        """Number -> (shard, when its transaction had committed)."""
        self._engine = make_engine(url)
        self._first = first
        self._each = max(1, round(rate * TURN_S))
        # An app of its own, as wide as this run's lane is.
        self._app = App(url, shards=shards, strict=False)
        self._over = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="bench-load", daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE_S)
        self._engine.dispose()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._produce()
        except Exception as error:
            self._error = error

    def _produce(self) -> None:
        number, due_s = self._first, time.monotonic()
        while not self._over.is_set():
            calls = [
                self._app.call(witness.name, {"n": n}, queue=witness.queue)
                for n in range(number, number + self._each)
            ]
            ids = write(self._engine, partial(_enqueue, self._app, calls))
            now_s = time.monotonic()
            for n, task_id in enumerate(ids, start=number):
                self.committed[n] = (shard_of(task_id), now_s)
            number += self._each
            # One that falls behind does not bunch up what it has missed.
            due_s = max(due_s + TURN_S, now_s)
            self._over.wait(max(0.0, due_s - time.monotonic()))


def _enqueue(app: App, calls: Sequence[Call], tx: Connection) -> Sequence[TaskId]:
    return app.enqueue_many(tx, calls)


class Fleet:
    """Workers of `bench.witness`, newest last."""

    def __init__(
        self, url: str, folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.url = url
        self.folder = folder
        self.living: list[subprocess.Popen[bytes]] = []
        self._born = 0
        self._engine = make_engine(url)
        self._logs: dict[int, Path] = {}
        self._environment = os.environ | {
            "BENCH_URL": url,
            "BENCH_FOLDER": str(folder),
            **(environment or {}),
        }

    def start(self) -> subprocess.Popen[bytes]:
        """One more worker; does not wait for it."""
        self._born += 1
        log = self.folder / f"worker-{self._born}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "late.cli", "worker", "bench.witness:app"],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self._logs[process.pid] = log
        self.living.append(process)
        return process

    def wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        """Until the database knows that `process` lives, and `READY_S` more: what a readiness check
        with its delay would wait for. (It need not own anything: a small one may get no shard.)

        Raises:
            GaveUp: it has ended, or it took too long.
        """
        deadline = time.monotonic() + PATIENCE_S
        address = worker.c.address.like(f"%:{process.pid}")
        while True:
            with reading(self._engine) as connection:
                if connection.execute(select(worker.c.worker_id).where(address)).first():
                    break
            if process.poll() is not None or time.monotonic() > deadline:
                raise GaveUp(self.log(process))
            time.sleep(0.05)
        time.sleep(READY_S)

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        """SIGTERM, and wait until it is gone.

        Raises:
            GaveUp: it did not end as it should.
        """
        process.terminate()
        self.wait_gone(process)

    def wait_gone(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for one that was told to stop; told twice, it would not let its tasks end.

        Raises:
            GaveUp: it did not end as it should.
        """
        self.living.remove(process)
        if process.wait(PATIENCE_S) != 0:
            raise GaveUp(self.log(process))

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        self.living.remove(process)
        process.wait()

    def close(self) -> None:
        for process in list(self.living):
            self.kill(process)
        self._engine.dispose()

    def log(self, process: subprocess.Popen[bytes]) -> str:
        text = self._logs[process.pid].read_text(errors="replace")
        return f"a worker ended with {process.poll()}:\n{text[-3_000:]}"

    def starts(self) -> list[Start]:
        """Return all recorded starts by time."""
        found = []
        for path in self.folder.glob("*.starts"):
            for line in path.read_text().splitlines():
                number, attempt, at_ns = line.split()
                found.append(Start(int(number), int(attempt), int(at_ns) / 1e9, int(path.stem)))
        return sorted(found, key=lambda start: start.at_s)

    def owned_by(self, process: subprocess.Popen[bytes]) -> set[int]:
        """The shards that it holds, from the database."""
        with Control(self.url) as control:
            found = control.status.read(limit=1)
        ids = {w.worker_id for w in found.workers if w.address.endswith(f":{process.pid}")}
        return {shard.shard_id for shard in found.shards if shard.owner in ids}


def wait_settled(url: str) -> None:
    """Until nothing waits, runs or is parked.

    Raises:
        GaveUp: it took too long.
    """
    deadline = time.monotonic() + PATIENCE_S
    with Control(url) as control:
        while time.monotonic() < deadline:
            queues = control.status.read(limit=1_000).queues
            if all(q.depth.n + q.in_flight.n + q.parked.n == 0 for q in queues):
                return
            time.sleep(0.2)
    raise GaveUp("the backlog was not worked off")


def outcomes(url: str) -> Counter[str]:
    """Outcome -> how many, by the journal, without the arrivals."""
    found: Counter[str] = Counter()
    engine = make_engine(url)
    with reading(engine) as connection:
        for (text,) in connection.execute(select(settlement.c.usage)):
            for usage in msgspec.json.decode(text, type=list[Usage]) if text else ():
                if usage.outcome != ENQUEUED:
                    found[usage.outcome] += usage.count
    engine.dispose()
    return found


def grants(url: str) -> int:
    """Count the grants of shards by the epochs of the leases."""
    engine = make_engine(url)
    with reading(engine) as connection:
        total = sum(connection.execute(select(lease.c.epoch)).scalars())
    engine.dispose()
    return total


class Gap(NamedTuple):
    """A time in which a shard had a committed task that waited, and nothing started there."""

    shard: int
    from_s: float
    until_s: float

    @property
    def seconds(self) -> float:
        return self.until_s - self.from_s


def gaps(committed: Mapping[int, tuple[int, float]], starts: Iterable[Start]) -> list[Gap]:
    """Every gap that a start has ended, by time.

    A gap begins with the start before on that shard, or with the commit of the oldest task that
    waits, whichever is later. A commit counts from when its producer knew of it, so a start that
    was quicker ends a gap of no length.
    """
    waiting: dict[int, list[float]] = {}
    for shard, at_s in committed.values():
        waiting.setdefault(shard, []).append(at_s)
    for times in waiting.values():
        times.sort()
    last: dict[int, float] = {}
    found = []
    for start in starts:
        if start.number not in committed:
            continue
        shard, committed_s = committed[start.number]
        times = waiting[shard]
        oldest_s = times[0] if times else start.at_s
        place = bisect_left(times, committed_s)
        if place < len(times) and times[place] == committed_s:
            del times[place]
        begun_s = max(oldest_s, last.get(shard, 0.0))
        found.append(Gap(shard, min(begun_s, start.at_s), start.at_s))
        last[shard] = start.at_s
    return found


def longest(found: Sequence[Gap], from_s: float, until_s: float) -> dict[int, float]:
    """Shard -> its longest gap that ended between these times, in seconds."""
    worst: dict[int, float] = {}
    for gap in found:
        if from_s <= gap.until_s <= until_s:
            worst[gap.shard] = max(worst.get(gap.shard, 0.0), gap.seconds)
    return worst
