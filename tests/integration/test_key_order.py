"""Tasks of one ordering key on PostgreSQL, where the log is read in the order of transaction ids.

A transaction has its id since its first write. So what it enqueues later may come, in that order,
before what others had enqueued and committed.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

import late
from late.config import WorkerConfig
from late.control import Control
from late.store.postgres.store import PostgresStore
from late.worker.worker import Worker
from tests.integration.postgres_kit import PATIENCE_S, database
from tests.support.leases import LONG_LEASES

KEYS = 40
Connection = psycopg.Connection[Any]


@pytest.fixture
def url() -> Iterator[str]:
    with database() as made:
        with psycopg.connect(dsn(made)) as connection:
            connection.execute("create table business (what text)")
        yield made


def dsn(url: str) -> str:
    return url.replace("+psycopg", "")


class Producers:
    """Enqueue tasks (key, n) in pairs: the first is committed before the second is inserted."""

    def __init__(self, url: str, *, sql: bool = False, isolation: str = "read committed") -> None:
        self.app = late.App(url, shards=1)
        self.url, self.sql, self.isolation = url, sql, isolation
        self.ran: dict[str, list[int]] = defaultdict(list)

        @self.app.task
        def note(key: str, n: int) -> None:
            self.ran[key].append(n)

        self.task = note

    def enqueue(self, connection: Connection, key: str, n: int) -> None:
        if self.sql:
            args = late_json(key, n)
            connection.execute(
                "select late_enqueue('note', %s::jsonb, ordering_key => %s)", (args, key)
            )
        else:
            self.task.options(ordering_key=key).enqueue(connection, key, n)

    def pair(self, keys: list[str], fillers: int = 0) -> None:
        """The later tasks of `keys` are enqueued by a transaction that began to write first."""
        with psycopg.connect(dsn(self.url)) as a, psycopg.connect(dsn(self.url)) as b:
            a.execute(f"set transaction isolation level {self.isolation}")
            a.execute("insert into business values ('first')")
            for key in keys:
                self.enqueue(b, key, 1)
                for _ in range(fillers):
                    self.task.enqueue(b, "filler", 0)
                b.commit()
            for key in keys:
                self.enqueue(a, key, 2)

    def count(self) -> int:
        return sum(len(found) for found in self.ran.values())

    def out_of_order(self) -> list[str]:
        return [key for key, found in self.ran.items() if found != sorted(found)]


def late_json(key: str, n: int) -> str:
    return f'{{"key": "{key}", "n": {n}}}'


@asynccontextmanager
async def working(app: late.App, **settings: Any) -> AsyncIterator[Worker]:
    worker = Worker(
        app, settings=WorkerConfig(poll_max_s=0.02, grace_s=5.0, **LONG_LEASES | settings)
    )
    await worker.start()
    try:
        yield worker
    finally:
        await worker.stop()


async def ended(producers: Producers, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while producers.count() < count:  # noqa: ASYNC110 (it is counted in threads)
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("sql", "isolation"),
    [(False, "read committed"), (True, "read committed"), (False, "repeatable read")],
)
@pytest.mark.parametrize("page_size", [1, 7, 1_000])
async def test_a_worker_that_starts_later(
    url: str, page_size: int, sql: bool, isolation: str
) -> None:
    """All is one window, of many pages: the first ones hold the later tasks only."""
    producers = Producers(url, sql=sql, isolation=isolation)
    keys = [f"k{n}" for n in range(KEYS)]
    await asyncio.to_thread(producers.pair, keys, 1)
    async with working(producers.app, page_size=page_size):
        await ended(producers, 3 * KEYS)
    assert producers.out_of_order() == []


async def test_a_window_that_is_smaller_than_what_waits(url: str) -> None:
    """What has to wait for a later page leaves the window, so that the page can be read."""
    producers = Producers(url)
    keys = [f"k{n}" for n in range(KEYS)]
    await asyncio.to_thread(producers.pair, keys)
    async with working(producers.app, page_size=2, window=8):
        await ended(producers, 2 * KEYS)
    assert producers.out_of_order() == []


async def test_a_worker_that_polls_meanwhile(url: str) -> None:
    producers = Producers(url)
    async with working(producers.app, page_size=7):
        for n in range(KEYS):
            await asyncio.to_thread(producers.pair, [f"k{n}"])
        await ended(producers, 2 * KEYS)
    assert producers.out_of_order() == []


async def test_another_owner_in_between(url: str) -> None:
    """The first one stops at a place inside of the window."""
    producers = Producers(url)
    keys = [f"k{n}" for n in range(KEYS)]
    await asyncio.to_thread(producers.pair, keys, 1)
    for size in range(1, 4):
        async with working(producers.app, page_size=size, concurrency=1):
            await ended(producers, KEYS * (size - 1) // 2 + 3)
    async with working(producers.app, page_size=7):
        await ended(producers, 3 * KEYS)
    assert producers.out_of_order() == []


async def test_a_group_that_reads_all_again(url: str) -> None:
    producers = Producers(url)
    keys = [f"k{n}" for n in range(KEYS)]
    with Control(url) as control:
        control.groups.create("slow", start="beginning")
        await asyncio.to_thread(producers.pair, keys, 1)
        async with working(producers.app, page_size=7):
            await ended(producers, 3 * KEYS)
        producers.ran.clear()
        control.groups.reset("default", "beginning")
        async with working(producers.app, page_size=7):
            await ended(producers, 3 * KEYS)
    assert producers.out_of_order() == []


async def test_a_transaction_that_writes_nothing_before(url: str) -> None:
    """Its id is taken by the insert: what had committed is below it, and no option says so."""
    producers = Producers(url)
    with psycopg.connect(dsn(url)) as connection:
        producers.enqueue(connection, "k", 1)
        options = connection.execute("select options from late_task").fetchone()
    assert options == ('{"ordering_key":"k"}',)


@pytest.mark.parametrize("sql", [False, True])
@pytest.mark.parametrize("page_size", [1, 1_000])
async def test_two_tasks_of_one_transaction(url: str, sql: bool, page_size: int) -> None:
    """They have one transaction id, and may have been made in one millisecond."""
    producers = Producers(url, sql=sql)
    with psycopg.connect(dsn(url)) as connection:
        for key in range(KEYS):
            producers.enqueue(connection, f"k{key}", 1)
            producers.enqueue(connection, f"k{key}", 2)
    async with working(producers.app, page_size=page_size):
        await ended(producers, 2 * KEYS)
    assert producers.out_of_order() == []


async def test_a_rebase_keeps_the_order(url: str) -> None:
    """It gives the rows of many transactions one id: pages are then in the order of the ids."""
    producers = Producers(url)
    with psycopg.connect(dsn(url)) as connection:
        producers.enqueue(connection, "k", 1)
        connection.commit()
        # A producer whose clock is behind: its id is the lowest.
        connection.execute("insert into business values ('first')")
        producers.enqueue(connection, "k", 2)
        connection.execute(
            "update late_task set task_id = '00000000-0000-7000-8000-000000000000'"
            " where convert_from(payload, 'UTF8')::jsonb ->> 'n' = '2'"
        )
        connection.commit()
    async with working(producers.app):
        pass  # the database is known from now on
    with psycopg.connect(dsn(url)) as connection:
        connection.execute("update late_meta set value = 'elsewhere' where key = 'identity'")
    store = PostgresStore(url)
    await store.rebase()
    await store.close()
    async with working(producers.app, page_size=1):
        await ended(producers, 2)
    assert producers.out_of_order() == []
