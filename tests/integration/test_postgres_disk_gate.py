"""Pages before all that their cursor sees is on disk, and what a crash of the server makes of them.

The server of these tests writes nothing to the disk unless somebody commits who waits for it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator

import psycopg
import pytest

import late
from late.config import WorkerConfig
from late.errors import PlaceInDoubt, StoreUnavailable
from late.schema import migrate
from late.store.postgres import disk_gate
from late.store.postgres.store import PostgresStore
from late.testing.servers.postgres import PostgresServer, find_binaries
from late.worker.worker import Worker
from tests import servers
from tests.integration.postgres_kit import (
    PATIENCE_S,
    Producer,
    Reader,
    enqueue,
    open_store,
    opened,
    producer,
)
from tests.integration.waking_kit import until

LAZY = {"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB", "autovacuum": "off"}
WRITERS = ("walwriter", "background writer", "checkpointer")
NAME = "gate"


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    if find_binaries() is None:
        pytest.skip("no PostgreSQL: binaries are needed to start a server of one's own")
    with servers.own_server(LAZY) as made:
        with psycopg.connect(made.url, autocommit=True) as connection:
            connection.execute(f"create database {NAME}")
        migrate.upgrade(made.url_of(NAME))
        with psycopg.connect(made.url_of(NAME), autocommit=True) as connection:
            connection.execute("create table business (n int)")
            asked = "select pid from pg_stat_activity where backend_type = any (%s)"
            for (pid,) in connection.execute(asked, (list(WRITERS),)).fetchall():
                os.kill(pid, signal.SIGSTOP)
        yield made
        made.kill()  # To stop it would wait for those.


@pytest.fixture
def url(server: PostgresServer) -> str:
    return server.url_of(NAME)


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    made = await open_store(url)
    yield made
    await made.close()


def lazily(url: str) -> Producer:
    """A connection whose commits do not wait for the disk."""
    connection = producer(url)
    connection.execute("set synchronous_commit = off")
    return connection


def write(connection: Producer) -> None:
    connection.execute("insert into business values (1)")


def is_behind(connection: Producer) -> bool:
    """Tell whether the disk is behind what is committed. It stays so, unless somebody commits who
    waits for it."""
    asked = "select pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn()"
    return connection.execute(asked).fetchone() == (True,)


async def read_after_a_crash(store: PostgresStore, reader: Reader) -> int:
    """The number of records that come, once the store has a connection again."""
    while True:
        try:
            return await reader.step()
        except PlaceInDoubt:
            raise
        except StoreUnavailable:
            await asyncio.sleep(0.05)


async def test_a_task_does_not_wait_for_what_others_write(store: PostgresStore, url: str) -> None:
    reader = Reader(store)
    with opened(lazy := lazily(url), waiting := producer(url)):
        for _ in range(5):
            task_id = enqueue(waiting)
            write(lazy)
            assert is_behind(lazy)
            await reader.until(task_id)
            assert is_behind(lazy), "nobody has put anything on disk for it"


@pytest.mark.parametrize("when", ["in the session", "in the transaction"])
async def test_a_task_of_a_commit_that_does_not_wait_does(
    store: PostgresStore, url: str, when: str
) -> None:
    reader = Reader(store)
    with opened(lazy := lazily(url), other := producer(url, autocommit=False)):
        for _ in range(5):
            if when == "in the session":
                task_id = enqueue(lazy)
            else:
                other.execute("set local synchronous_commit = off")
                task_id = enqueue(other)
                other.commit()
            assert is_behind(lazy)
            await reader.until(task_id)
            assert not is_behind(lazy)


async def test_behind_a_pooler_every_task_waits(store: PostgresStore, url: str) -> None:
    store._pools.reading._prepares = False  # as a connection that is none to the server itself
    reader = Reader(store)
    with opened(lazy := lazily(url), waiting := producer(url)):
        task_id = enqueue(waiting)
        write(lazy)
        await reader.until(task_id)
        assert not is_behind(lazy)


async def test_after_a_crash_the_places_in_memory_are_in_doubt(
    store: PostgresStore, server: PostgresServer, url: str
) -> None:
    """The id of a transaction that was lost is given to the next one, which the cursor hides."""
    reader = Reader(store)
    with opened(lazy := lazily(url), waiting := producer(url)):
        first = enqueue(waiting)
        write(lazy)
        await reader.until(first)
        server.kill()
    server.start()
    with opened(again := producer(url)):
        hidden = enqueue(again)
        with pytest.raises(PlaceInDoubt):
            await read_after_a_crash(store, reader)

        assert await reader.step() == 0, "the id was given again, or this test shows nothing"
        anew = Reader(store)
        await anew.until(first, hidden)


async def test_a_crash_when_all_was_on_disk_is_none_to_a_reader(
    store: PostgresStore, server: PostgresServer, url: str
) -> None:
    reader = Reader(store)
    with opened(waiting := producer(url)):
        first = enqueue(waiting)
    await reader.until(first)
    server.kill()
    server.start()
    with opened(again := producer(url)):
        second = enqueue(again)
        while second not in reader.ids:
            await read_after_a_crash(store, reader)
    assert reader.ids == [first, second]


async def test_a_lost_connection_is_no_crash(store: PostgresStore, url: str) -> None:
    reader = Reader(store)
    with opened(lazy := lazily(url), waiting := producer(url)):
        first = enqueue(waiting)
        write(lazy)
        await reader.until(first)
        lazy.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where pid <> pg_backend_pid() and application_name = 'late'"
        )
        second = enqueue(waiting)
        while second not in reader.ids:
            await read_after_a_crash(store, reader)
    assert reader.ids == [first, second]


def test_a_process_that_is_killed_makes_another_server(server: PostgresServer, url: str) -> None:
    """It starts all its processes anew, and has the same start."""

    def instance() -> tuple[object, ...] | None:
        with opened(connection := producer(url)):
            return connection.execute(disk_gate._INSTANCE).fetchone()

    before = instance()
    assert instance() == before
    with opened(victim := producer(url)):
        os.kill(victim.info.backend_pid, signal.SIGKILL)
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            after = instance()
            break
        except psycopg.OperationalError:
            time.sleep(0.05)
    assert after != before


async def test_a_worker_reads_its_shards_anew_after_a_crash(
    server: PostgresServer,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its lease outlives the crash, so that nothing else makes it give up what it has in memory."""
    app, ran = late.App(url), list[int]()

    @app.task
    def note(n: int) -> None:
        ran.append(n)

    crashed = _crashes_at(monkeypatch)
    settings = WorkerConfig(lease_ttl_s=60.0, poll_max_s=0.02, takeovers_max=32, grace_s=1.0)
    worker = Worker(app, settings=settings)
    await worker.start()
    try:
        await until(lambda: len(worker.scheduler.cores) == 8)
        before = dict(worker.keeper.leases)
        with opened(connection := producer(url, autocommit=False)):
            note.enqueue(connection, 1)
            connection.commit()
        await until(lambda: ran == [1])
        crashed()
        await until(lambda: len(worker.keeper.leases) == 8 and _all_later(worker, before))
        assert "as after a crash" in caplog.text
        with opened(connection := producer(url, autocommit=False)):
            note.enqueue(connection, 2)
            connection.commit()
        await until(lambda: 2 in ran)
    finally:
        await worker.stop()


def _crashes_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let the next read find, when the function is called, that the server has crashed."""
    old, found = disk_gate.DiskGate.check, list[bool]()

    async def check(self: disk_gate.DiskGate, connection: disk_gate.Connection) -> None:
        if found:
            found.clear()
            raise PlaceInDoubt("as after a crash")
        await old(self, connection)

    monkeypatch.setattr(disk_gate.DiskGate, "check", check)
    return lambda: found.append(True)


def _all_later(worker: Worker, before: object) -> bool:
    assert isinstance(before, dict)
    return all(lease.epoch > before[key].epoch for key, lease in worker.keeper.leases.items())
