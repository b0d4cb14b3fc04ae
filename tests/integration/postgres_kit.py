"""What the tests of the PostgreSQL store share: databases, producers, readers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import psycopg
import pytest

from late.model.ids import new_id
from late.model.task import Cursor, Record, ShardId, TaskId
from late.schema import migrate
from late.store.base import Store
from late.store.postgres.store import PostgresStore
from late.testing.servers.postgres import PostgresServer, find_binaries
from tests import servers

Producer = psycopg.Connection[tuple[object, ...]]
SHARD = ShardId(0)
PATIENCE_S = 120.0
"""Only a broken store reaches it."""


def admin_url() -> str:
    url = servers.postgres_url()
    if url is None:
        pytest.skip("no PostgreSQL: set LATE_TEST_POSTGRES_URL or install a server")
    return url


@contextmanager
def database() -> Iterator[str]:
    """A migrated database of the test's own."""
    admin = admin_url()
    url = servers.migrated_database(admin)
    try:
        yield url
    finally:
        servers.drop_database(admin, url)


def producer(url: str, *, autocommit: bool = True) -> Producer:
    return psycopg.connect(url, autocommit=autocommit)


def use_up(url: str, ids: int) -> None:
    """Use up so many transaction ids: the server begins and commits that many transactions."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            f"do $$ begin for i in 1 .. {ids} loop"
            " perform pg_current_xact_id(); commit; end loop; end $$"
        )


def enqueue(connection: Producer, *, shard: int = 0, payload: bytes = b"{}") -> TaskId:
    """What the outbox does, in the connection's transaction."""
    task_id = new_id(shard)
    connection.execute(
        "insert into late_task (shard_id, task_id, queue, name, payload)"
        " values (%s, %s, 'default', 'count', %s)",
        (shard, task_id, payload),
    )
    return task_id


def enqueue_many(connection: Producer, count: int, *, shard: int = 0) -> list[TaskId]:
    ids = [new_id(shard) for _ in range(count)]
    connection.execute(
        "insert into late_task (shard_id, task_id, queue, name, payload)"
        " select %s, i, 'default', 'count', '{}' from unnest(%s::uuid[]) i",
        (shard, ids),
    )
    return ids


class Reader:
    """Tails shards and remembers everything that came."""

    def __init__(self, store: Store, shards: int = 1, *, limit: int = 1000) -> None:
        self.store = store
        self.limit = limit
        self.cursors: dict[ShardId, Cursor] = {ShardId(n): Cursor("") for n in range(shards)}
        self.records: list[Record] = []

    @property
    def ids(self) -> list[TaskId]:
        return [record.task_id for record in self.records]

    async def step(self) -> int:
        """One read; how many records it brought."""
        pages = await self.store.read(self.cursors, self.limit)
        for page in pages:
            assert len(page.records) <= self.limit
            keys = [(record.position, record.task_id) for record in page.records]
            assert keys == sorted(keys)
            self.cursors[page.shard_id] = page.cursor
            self.records += page.records
        return sum(len(page.records) for page in pages)

    async def until(self, *wanted: TaskId) -> None:
        """Read until all of `wanted` have come."""
        async with asyncio.timeout(PATIENCE_S):
            while not set(wanted) <= set(self.ids):
                if not await self.step():
                    await asyncio.sleep(0.005)


@contextmanager
def opened(*connections: Producer) -> Iterator[None]:
    try:
        yield
    finally:
        for connection in connections:
            connection.close()


async def open_store(url: str, **options: object) -> PostgresStore:
    store = PostgresStore(url, **options)  # type: ignore[arg-type]
    await store.open()
    return store


def settings_of(connection: Producer) -> Mapping[str, str]:
    rows = connection.execute("select name, setting from pg_settings").fetchall()
    return {str(name): str(setting) for name, setting in rows}


ASYNC = {"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB", "bgwriter_delay": "10s"}
"""Nothing reaches the disk by itself for as long as a test runs."""


def binaries() -> None:
    if find_binaries() is None:
        pytest.skip("no PostgreSQL: binaries are needed to start a server of one's own")


def migrated(server: PostgresServer, name: str = "late") -> str:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"create database {name}")
    migrate.upgrade(server.url_of(name))
    return server.url_of(name)


@contextmanager
def server_to_kill() -> Iterator[PostgresServer]:
    """A server of the test's own, whose disk has only what was flushed to it."""
    binaries()
    with servers.own_server(ASYNC) as made:
        yield made
