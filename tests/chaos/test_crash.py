"""The server crashes the moment a handler starts: promise P2b, which only a database that may
acknowledge a commit before it is on disk can break."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import psycopg
import pytest

import late
import late.worker.worker
from late.config import WorkerConfig
from late.control import Control
from late.outbox import connect
from late.schema import migrate
from late.schema.tables import SHARDS_DEFAULT
from late.store.postgres.store import PostgresStore
from late.testing.servers.postgres import PostgresServer, find_binaries
from tests import servers
from tests.chaos import figures
from tests.chaos.sizes import FULL, sized

pytestmark = pytest.mark.timeout(sized(600, 3600))
ROUNDS = sized(4, 200)
CONTROLS = sized(8, 20)
"""At most; one that vanishes is enough for a tenth."""
LAZY = {"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB", "bgwriter_delay": "10s"}
"""Nothing reaches the disk before somebody commits who waits for it, as a heartbeat does."""
SETTINGS = WorkerConfig(lease_ttl_s=20.0, poll_max_s=0.02, takeovers_max=32, grace_s=0.0)
PATIENCE_S = 120.0


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    if find_binaries() is None:
        pytest.skip("no PostgreSQL: binaries are needed to start a server of one's own")
    with servers.own_server(LAZY) as made:
        with psycopg.connect(made.url, autocommit=True) as connection:
            connection.execute("create database crash")
        migrate.upgrade(made.url_of("crash"))
        with Control(made.url_of("crash")) as control:
            control.groups.create("crash", start="beginning")
        yield made


async def vanishes(server: PostgresServer, number: int) -> bool:
    """One round: whether a task that has started does not exist after the crash."""
    url = server.url_of("crash")
    # In a group of its own: the default one also looks for schedules, in a thread that a stop
    # does not wait for.
    app, started = late.App(url, group="crash"), asyncio.Event()

    @app.task()
    async def note(n: int) -> None:
        if n == number:
            started.set()
            await asyncio.sleep(PATIENCE_S)  # what has been settled is on disk

    worker = late.worker.worker.Worker(app, settings=SETTINGS)
    await worker.start()
    try:
        async with asyncio.timeout(PATIENCE_S):
            while len(worker.scheduler.cores) < SHARDS_DEFAULT:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            # After what a worker does at its start: each of its commits puts all that was before
            # it on disk.
            await asyncio.sleep(random.uniform(1.3, 2.0))
            with connect(url) as tx:
                tx.execute("set local synchronous_commit = off")
                task = note.enqueue(tx, number)
            await started.wait()
        server.kill()
        server.start()
        with psycopg.connect(url) as connection:
            found = connection.execute("select 1 from late_task where task_id = %s", (task,))
            return found.fetchone() is None
    finally:
        await worker.stop()


async def test_p2b_what_started_survives_a_crash_of_the_server(server: PostgresServer) -> None:
    vanished = [number for number in range(ROUNDS) if await vanishes(server, number)]
    print(f"{ROUNDS} crashes, {len(vanished)} executed and vanished")
    figures.keep({"store": "postgres", "crashes": ROUNDS, "vanished": len(vanished)})

    assert not vanished


async def test_without_the_gate_it_does_not(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else P2b shows nothing."""
    monkeypatch.setattr(
        late.worker.worker, "open_store", lambda url: PostgresStore(url, durable=False)
    )
    rounds = vanished = 0
    while rounds < CONTROLS and (FULL or not vanished):
        vanished += await vanishes(server, rounds)
        rounds += 1
    print(f"{rounds} crashes without the gate, {vanished} executed and vanished")
    figures.keep({"store": "postgres", "crashes": rounds, "vanished": vanished})

    assert vanished
