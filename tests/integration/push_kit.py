"""A target's pool whose outcomes can be awaited, and services to push to."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from late.dispatcher.push.pool import RemotePool
from late.model.targets import Target
from late.model.task import Attempt, Outcome
from tests.unit.dispatcher_kit import NOW_US


class Pool:
    """A pool, and what it reported."""

    def __init__(self, target: Target, tasks: Mapping[str, Any]) -> None:
        self.outcomes: list[Outcome] = []
        self._news = asyncio.Event()
        self.pool = RemotePool(
            target,
            tasks,
            worker_id="w1",
            now_us=lambda: NOW_US,
            on_finished=self._finished,
            url="sqlite:///nowhere.db",
            rng=random.Random(1),
        )

    def _finished(self, batch: list[Outcome]) -> None:
        self.outcomes += batch
        self._news.set()

    async def run(self, *attempts: Attempt) -> list[Outcome]:
        """Submit, and wait for all of them."""
        before = len(self.outcomes)
        self.pool.submit(attempts)
        await self.ended(before + len(attempts))
        return self.outcomes[before:]

    async def one(self, attempt: Attempt) -> Outcome:
        [outcome] = await self.run(attempt)
        return outcome

    async def ended(self, count: int, limit_s: float = 120) -> None:
        async with asyncio.timeout(limit_s):
            while len(self.outcomes) < count:
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def pool_of(target: Target, tasks: Mapping[str, Any] | None = None) -> AsyncIterator[Pool]:
    """A started pool of `target`, stopped at the end."""
    made = Pool(target, tasks or {})
    await made.pool.start()
    try:
        yield made
    finally:
        await made.pool.stop(0)


class Relay:
    """A network between a worker and one endpoint, which can fall silent with its connections
    open, as a host that lost power does, or cut them. An async context manager."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._passing = asyncio.Event()
        self._passing.set()
        self._new_too = True
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.port = 0

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def fall_silent(self, *, new_too: bool = True) -> None:
        """Pass nothing on; without `new_too` only on the connections that there are."""
        self._passing.clear()
        if not new_too:
            self.speak()

    def speak(self) -> None:
        """Pass things on again, on new connections."""
        self._passing = asyncio.Event()
        self._passing.set()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        passing = self._passing
        self._writers.add(writer)
        if not passing.is_set():
            return
        there, back = await asyncio.open_connection("127.0.0.1", self._upstream)
        self._writers.add(back)
        for source, sink in ((reader, back), (there, writer)):
            task = asyncio.ensure_future(self._pump(source, sink, passing))
            self._tasks.add(task)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, passing: asyncio.Event
    ) -> None:
        try:
            while data := await source.read(65_536):
                await passing.wait()
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            if passing.is_set():
                sink.close()
