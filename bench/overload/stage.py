"""The stage of every scenario: a worker in this process, and producers beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import late
from bench.overload.producers import Make, Producer, Samples
from late.app.task import Call
from late.config import WorkerConfig
from late.control import Control
from late.outbox import connect
from late.schema.migrate import upgrade
from late.worker.assembly import freeze_gc
from late.worker.worker import Worker


class Stage:
    """One run of one scenario on a fresh database."""

    def __init__(self, url: str, app: late.App, knobs: Mapping[str, Mapping[str, Any]]) -> None:
        self.url = url
        self.app = app
        self.knobs = knobs
        """`queue:NAME` or `target:NAME` -> knobs."""
        self.worker: Worker
        self.control: Control
        self._enqueued = 0
        self._producers: list[Producer] = []

    @asynccontextmanager
    async def open(self, **settings: Any):  # type: ignore[no-untyped-def]
        """Migrate, turn the knobs, run a worker; stop it at the end."""
        upgrade(self.url)
        self.control = Control(self.url)
        for subject, changes in self.knobs.items():
            kind, _, name = subject.partition(":")
            self.control.queues.change("queue" if kind == "queue" else "target", name, changes)
        self.worker = Worker(self.app, settings=WorkerConfig(poll_max_s=0.05, **settings))
        await self.worker.start()
        freeze_gc()  # as `late worker` does
        try:
            yield self
        finally:
            for producer in self._producers:
                producer.kill()
            self.worker.settings = WorkerConfig(grace_s=2.0)
            self.worker.ask_to_stop()
            await self.worker.wait()
            self.control.close()

    def enqueue(self, calls: list[Call]) -> None:
        """Commit `calls` in one transaction, a thousand rows to a statement."""
        with connect(self.url) as tx:
            for start in range(0, len(calls), 1_000):
                self.app.enqueue_many(tx, calls[start : start + 1_000])
        self._enqueued += len(calls)

    def produce(self, of: str, makes: Callable[[late.App], Make], rate: int) -> Producer:
        """`rate` tasks a second from a moment later on, in a process of their own."""
        self._producers.append(Producer(self.url, of, makes, rate))
        return self._producers[-1]

    @property
    def committed(self) -> int:
        """The number of committed tasks."""
        return self._enqueued + sum(producer.number for producer in self._producers)

    async def cease(self, samples: Samples) -> None:
        """End the producers; the samples are told what they have committed."""
        producers, self._producers = self._producers, []
        for producer in producers:
            samples.committed(producer.of, await asyncio.to_thread(producer.stop))

    def dead(self) -> int:
        """Dead letters."""
        return len(self.control.dead_letters.find(limit=1_000))
