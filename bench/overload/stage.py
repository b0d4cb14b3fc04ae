"""What every scenario needs: a worker in this process, producers at a steady rate, samples."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from typing import Any

import late
from bench.measure import percentile
from bench.targets import transaction
from late.config import WorkerConfig
from late.control import Control
from late.outbox import connect
from late.schema.migrate import upgrade
from late.tasks import Call
from late.wiring import devote
from late.worker import Worker

TURN_S = 0.05


def _connection(url: str) -> Any:
    """A producer's own, kept as services do: to connect costs as much as a hundred tasks."""
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite:///")
        return sqlite3.connect(path, timeout=30, check_same_thread=False)
    import psycopg

    return psycopg.connect(url)


class Samples:
    """How long tasks waited from their commit to their start, by what they belong to.

    They are judged by when they were committed: those that started within a time would be the few
    that got through, and the ones that an overload keeps waiting would be missing.
    """

    def __init__(self) -> None:
        self._waits: dict[tuple[str, float], float | None] = {}

    def expect(self, of: str) -> float:
        """A task is about to be committed; returns when, in seconds, which is its name here."""
        now_s = time.monotonic()
        self._waits[of, now_s] = None
        return now_s

    def add(self, of: str, committed_s: float) -> None:
        """It starts now."""
        self._waits.setdefault((of, committed_s), None)
        if self._waits[of, committed_s] is None:
            self._waits[of, committed_s] = time.monotonic() - committed_s

    def p99_ms(self, of: str, from_s: float, until_s: float) -> float:
        """Of those that were committed within these moments. One that has not started yet has
        waited until now."""
        now_s = time.monotonic()
        found = sorted(
            now_s - at_s if wait_s is None else wait_s
            for (each, at_s), wait_s in list(self._waits.items())
            if each == of and from_s <= at_s < until_s
        )
        return round((percentile(found, 0.99) if found else until_s - from_s) * 1_000, 1)


@dataclass
class Produced:
    """What a producer has committed."""

    number: int = 0


class Stage:
    """One run of one scenario on a fresh database."""

    def __init__(self, url: str, app: late.App, knobs: Mapping[str, Mapping[str, Any]]) -> None:
        self.url = url
        self.app = app
        self.knobs = knobs
        """`queue:NAME` or `target:NAME` -> knobs."""
        self.worker: Worker
        self.control: Control
        self.committed = 0
        self._producers: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def open(self, **settings: Any):  # type: ignore[no-untyped-def]
        """Migrate, turn the knobs, run a worker; stop it at the end."""
        upgrade(self.url)
        self.control = Control(self.url)
        for subject, changes in self.knobs.items():
            kind, _, name = subject.partition(":")
            self.control.turn_knobs("queue" if kind == "queue" else "target", name, changes)
        self.worker = Worker(self.app, settings=WorkerConfig(poll_max_s=0.05, **settings))
        await self.worker.start()
        devote()  # as `late worker` does
        try:
            yield self
        finally:
            for producer in self._producers:
                producer.cancel()
            await asyncio.gather(*self._producers, return_exceptions=True)
            self.worker.settings = WorkerConfig(grace_s=2.0)
            self.worker.ask_to_stop()
            await self.worker.wait()
            self.control.close()

    def enqueue(self, calls: list[Call]) -> None:
        """Commit `calls` in one transaction, a thousand rows to a statement."""
        with connect(self.url) as tx:
            for start in range(0, len(calls), 1_000):
                self.app.enqueue_many(tx, calls[start : start + 1_000])
        self.committed += len(calls)

    def produce(self, make: Callable[[int], Call], rate: int) -> Produced:
        """`rate` tasks a second from now on, in a thread's transactions."""
        made = Produced()
        self._producers.append(asyncio.create_task(self._produce(make, rate, made)))
        return made

    async def _produce(self, make: Callable[[int], Call], rate: int, made: Produced) -> None:
        each = max(1, round(rate * TURN_S))
        due_s = time.monotonic()
        with closing(_connection(self.url)) as connection:
            while True:
                calls = [make(n) for n in range(made.number, made.number + each)]
                await asyncio.to_thread(self._commit, connection, calls)
                made.number += each
                due_s = max(due_s + each / rate, time.monotonic() - 1.0)
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))

    def _commit(self, connection: Any, calls: list[Call]) -> None:
        with transaction(connection):
            self.app.enqueue_many(connection, calls)
        self.committed += len(calls)

    def dead(self) -> int:
        """Dead letters."""
        return len(self.control.dead_letters(limit=1_000))
