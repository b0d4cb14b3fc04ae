"""A worker that never polls runs what it is told of, and only that."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

import late
from late.config import WorkerConfig
from late.model.ids import shard_of
from late.notify.notifier import Notifier
from late.outbox import connect
from late.worker.worker import Worker
from tests.support import sqlite


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> late.App:
    monkeypatch.setattr("late.tailer.tailer.poll_after_s", lambda *_: 3_600.0)
    url = sqlite.database(tmp_path / "late.db")
    return late.App(url, shards=2)


@asynccontextmanager
async def working(app: late.App, **settings: int) -> AsyncIterator[Worker]:
    """A worker that has its shards and has read them, so that nothing but a hint makes it look."""
    worker = Worker(app, settings=WorkerConfig(grace_s=5.0, **settings))
    await worker.start()
    try:
        async with asyncio.timeout(120):
            reads = -1
            while len(worker.tailer._read_at) < 2 or reads < worker.tailer.reads:
                reads = worker.tailer.reads
                await asyncio.sleep(0.5)
        yield worker
    finally:
        await worker.stop()


async def test_a_datagram_and_a_commit_of_the_same_process_are_heard(
    app: late.App, tmp_path: Path
) -> None:
    ran: asyncio.Queue[str] = asyncio.Queue()

    @app.task
    async def note(text: str) -> None:
        await ran.put(text)

    async with working(app, wake_port=0) as worker, asyncio.timeout(120):
        # Of a service's own transaction a datagram tells, as from another process.
        with closing(sqlite3.connect(tmp_path / "late.db")) as service:
            task_id = note.enqueue(service, "theirs")
            service.commit()
        assert worker.listener is not None
        Notifier(f"127.0.0.1:{worker.listener.port}").tell(frozenset({shard_of(task_id)}))
        assert await ran.get() == "theirs"
        # What late commits itself it tells by itself.
        with connect(app.url) as tx:
            note.enqueue(tx, "ours")
        assert await ran.get() == "ours"


async def test_a_handler_that_enqueues_wakes_its_own_worker(app: late.App) -> None:
    ran: asyncio.Queue[int] = asyncio.Queue()

    @app.task
    async def step(ctx: late.AsyncContext, left: int) -> None:
        await ran.put(left)
        if left:
            await ctx.enqueue(step.call(left - 1))

    async with working(app) as worker, asyncio.timeout(120):
        assert worker.listener is None, "no socket unless asked for"
        with connect(app.url) as tx:
            step.enqueue(tx, 5)
        assert [await ran.get() for _ in range(6)] == [5, 4, 3, 2, 1, 0]
