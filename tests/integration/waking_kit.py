"""What tests of notices on PostgreSQL share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
import pytest

from late.store.postgres.wake_ups import PostgresWakeUps
from tests.servers import drop_database, migrated_database, postgres_url

INSERT = (
    "insert into late_task (shard_id, task_id, queue, name, payload)"
    " values (0, gen_random_uuid(), 'default', 'note', '{}')"
)


@contextmanager
def database() -> Iterator[str]:
    """A migrated database; its URL is one that psycopg reads, too."""
    admin = postgres_url()
    if admin is None:
        pytest.skip("no PostgreSQL: set LATE_TEST_POSTGRES_URL or install one")
    made = migrated_database(admin)
    yield made.replace("+psycopg", "")
    drop_database(admin, made)


@asynccontextmanager
async def listening(
    made: PostgresWakeUps,
    lapsed: Callable[[], None] = lambda: None,
    changed: Callable[[], None] = lambda: None,
) -> AsyncIterator[asyncio.Queue[None]]:
    heard: asyncio.Queue[None] = asyncio.Queue()
    task = asyncio.create_task(made.run(lambda: heard.put_nowait(None), lapsed, changed))
    try:
        await until(lambda: made.ready or made.unable)
        yield heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(120):
        while True:
            if condition():
                return
            await asyncio.sleep(0.02)


def producer(url: str, **more: Any) -> psycopg.Connection[Any]:
    return psycopg.connect(url, autocommit=True, **more)


async def nothing_heard(heard: asyncio.Queue[None], made: PostgresWakeUps) -> bool:
    """Tell whether nothing came before an answer that the server gave later."""
    await made._call("select 1")
    return heard.empty()
