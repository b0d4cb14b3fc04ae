"""A database that is away for a while, or that ends what takes too long."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from socket import create_server
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import psycopg
import pytest
from sqlalchemy import make_url

import late
from late import events
from late.api.server import Server
from late.api.settings import ServeSettings
from late.config import WorkerConfig
from late.errors import StoreUnavailable
from late.outbox import connect
from late.worker import assembly
from late.worker.worker import Worker
from tests.integration.postgres_kit import PATIENCE_S, Producer, database
from tests.support.leases import LONG_LEASES

TASKS = 300


@pytest.fixture
def url() -> Iterator[str]:
    with database() as made:
        yield made


@pytest.fixture
def told() -> Iterator[list[str]]:
    """The names of the events."""
    found: list[str] = []
    end = events.default.subscribe(lambda event, _: found.append(event.name))
    yield found
    end()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110 (it is in other threads)
            await asyncio.sleep(0.02)


def elsewhere(url: str) -> tuple[str, int]:
    """The same database behind a port where nobody listens."""
    with create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    there = make_url(url).set(host="127.0.0.1", port=port)
    return there.render_as_string(hide_password=False), port


@asynccontextmanager
async def relay(url: str, port: int) -> AsyncIterator[None]:
    """Listen on `port`, and pass everything on to the server of `url`."""
    server_at = make_url(url)
    tasks: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(server_at.host, server_at.port or 5432)
        for task in (copy(reader, there[1]), copy(there[0], writer)):
            tasks.add(asyncio.create_task(task))

    listening = await asyncio.start_server(serve, "127.0.0.1", port)
    try:
        yield
    finally:
        listening.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # the transports close their sockets


def answer(port: int, path: str) -> tuple[int, Any]:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as reply:
            return reply.status, json.load(reply)
    except HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


async def test_a_worker_waits_for_its_database(url: str, told: list[str]) -> None:
    there, port = elsewhere(url)
    app, ran = late.App(there), []

    @app.task
    def note(n: int) -> None:
        ran.append(n)

    with connect(url) as tx:
        note.enqueue(tx, 7)
    worker = Worker(app, settings=WorkerConfig(health_port=0, grace_s=5.0))
    assert worker.health is not None
    port_of_health = worker.health.port
    starting = asyncio.create_task(worker.start())
    await until(lambda: "database_awaited" in told)
    # It is live, so that nobody restarts it, and not ready, so that a rollout waits.
    for _ in range(2):
        status, state = await asyncio.to_thread(answer, port_of_health, "/readyz")
        assert status == 503
        assert state["reason"] == "it starts: the database has not answered yet"
        assert (await asyncio.to_thread(answer, port_of_health, "/livez"))[0] == 200
        await asyncio.sleep(0.5)
    async with relay(url, port):
        await starting
        await until(lambda: ran == [7])
        await until(lambda: answer(port_of_health, "/readyz")[0] == 200)
        await worker.stop()
    assert told.count("database_awaited") == 1, "it says so once"


async def test_a_worker_with_nothing_to_record_stops_while_its_database_is_away(url: str) -> None:
    there, port = elsewhere(url)
    app, ran = late.App(there), []

    @app.task
    def note(n: int) -> None:
        ran.append(n)

    with connect(url) as tx:
        note.enqueue(tx, 7)
    worker = Worker(app, settings=WorkerConfig(grace_s=3_600.0, lease_ttl_s=2.0))
    async with relay(url, port):
        await worker.start()
        await until(lambda: ran == [7])
        await until(lambda: worker.scheduler.unrecorded == 0)
    await until(lambda: not worker.trusted)
    async with asyncio.timeout(PATIENCE_S):
        await worker.stop()


@pytest.mark.parametrize(
    ("running", "unrecorded", "trusted", "over"),
    [(0, 0, False, True), (1, 0, False, False), (0, 1, False, False), (0, 0, True, False)],
)
def test_what_runs_and_what_is_not_recorded_has_its_grace(
    running: int, unrecorded: int, trusted: bool, over: bool
) -> None:
    parts: list[Any] = [
        SimpleNamespace(running=running),
        SimpleNamespace(unrecorded=unrecorded),
        SimpleNamespace(trusted=trusted),
    ]
    assert assembly.has_nothing(*parts) is over


async def test_interfaces_without_a_worker_wait_too(
    url: str, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("late.api.server.CLOCK_EVERY_S", 0.1)
    monkeypatch.setattr("late.api.server.SILENT_S", 2.0)
    there, port = elsewhere(url)
    server = Server(
        late.App(there),
        ServeSettings(http_port=0, roles=("web",)),
        settings=WorkerConfig(health_port=0),
    )
    assert server._health is not None
    starting = asyncio.create_task(server.start())
    await until(lambda: "database_awaited" in told)
    assert (await asyncio.to_thread(answer, server._health.port, "/livez"))[0] == 200
    assert (await asyncio.to_thread(answer, server._health.port, "/readyz"))[0] == 503
    async with relay(url, port):
        await starting
        port_of_health = server._health.port
        await until(lambda: answer(port_of_health, "/readyz")[0] == 200)
    # No roll-out goes on, and no producer is sent here, while the database is away.
    await until(lambda: answer(port_of_health, "/readyz")[0] == 503)
    _, state = await asyncio.to_thread(answer, port_of_health, "/readyz")
    assert state["reason"] == "the database does not answer"
    assert (await asyncio.to_thread(answer, port_of_health, "/livez"))[0] == 200
    async with relay(url, port):
        await until(lambda: answer(port_of_health, "/readyz")[0] == 200)
        await server.stop()
    assert told.count("database_awaited") == 1, "it says so once"


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("stopped", [False, True])
async def test_it_gives_up_after_its_time_or_at_a_stop(
    url: str, stopped: bool, alone: bool
) -> None:
    there, _ = elsewhere(url)
    app, settings = late.App(there), WorkerConfig(wait_for_database_s=3_600.0 if stopped else 0.3)
    listen = ServeSettings(http_port=0, roles=("web",))
    worker = Server(app, listen, settings=settings) if alone else Worker(app, settings=settings)
    starting = asyncio.create_task(worker.start())
    if stopped:
        await asyncio.sleep(0.2)
        worker.ask_to_stop()
    with pytest.raises(StoreUnavailable):
        async with asyncio.timeout(PATIENCE_S):
            await starting


async def test_nothing_is_repeated_under_short_time_outs(url: str) -> None:
    """The server ends what takes 100 ms; what a worker writes to is locked for longer than that,
    again and again."""
    app, ran = late.App(url), Counter[int]()

    @app.task
    def note(n: int) -> None:
        ran[n] += 1
        time.sleep(0.001)

    with producer(url) as connection:
        name = connection.info.dbname
        for setting in ("statement_timeout", "idle_in_transaction_session_timeout"):
            connection.execute(f"alter database {name} set {setting} = '100ms'")
        connection.commit()
        settings = WorkerConfig(concurrency=8, grace_s=60.0, **LONG_LEASES)
        worker = Worker(app, settings=settings)
        await worker.start()
        for n in range(TASKS):
            await asyncio.to_thread(enqueue, connection, note, n, locks=n % 20 == 10)
        await until(lambda: len(ran) == TASKS)
        await worker.stop()
    assert ran == Counter(range(TASKS))


def producer(url: str) -> Producer:
    """A connection without these time-outs."""
    off = "-c statement_timeout=0 -c idle_in_transaction_session_timeout=0"
    return psycopg.connect(url.replace("+psycopg", ""), options=off)


def enqueue(connection: Producer, task: Any, n: int, *, locks: bool) -> None:
    task.enqueue(connection, n)
    if locks:
        connection.execute("lock table late_settlement, late_worker in access exclusive mode")
        time.sleep(0.3)
    connection.commit()
