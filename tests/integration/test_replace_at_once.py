"""Many transactions that replace the task of one key at the same time, on PostgreSQL."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

import late
from late.errors import TransactionAborted
from late.testing import drain
from tests.integration.postgres_kit import database
from tests.integration.shared_kit import enqueue

AT_ONCE = 20
HOLD_S = 0.02
FORMS: list[dict[str, Any]] = [{}, {"delay": 600}, {"delay": 600, "max_wait": 6000}]


@pytest.fixture
def url() -> Iterator[str]:
    with database() as made:
        yield made


@pytest.fixture
def app(url: str) -> late.App:
    return late.App(url)


@pytest.fixture
def index(app: late.App) -> late.Task[Any, Any]:
    @app.task
    async def index(n: int) -> None: ...

    return index


@pytest.mark.parametrize("options", FORMS, ids=["plain", "delay", "max_wait"])
def test_all_go_one_after_the_other_with_psycopg(
    url: str, app: late.App, index: late.Task[Any, Any], options: dict[str, Any]
) -> None:
    replacing = index.options(unique_key="k", on_conflict="replace", **options)
    together = threading.Barrier(AT_ONCE)

    def one(n: int) -> None:
        with psycopg.connect(url) as tx:
            together.wait(60)
            replacing.enqueue(tx, n)
            tx.execute("select pg_sleep(%s)", [HOLD_S])

    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(one, range(AT_ONCE)))
    assert drain(app, timeout_s=60)["cancelled"] == AT_ONCE - 1


@pytest.mark.parametrize("options", FORMS, ids=["plain", "delay", "max_wait"])
async def test_all_go_one_after_the_other_with_asyncpg(
    url: str, app: late.App, index: late.Task[Any, Any], options: dict[str, Any]
) -> None:
    replacing = index.options(unique_key="k", on_conflict="replace", **options)
    engine = create_async_engine(
        url.replace("postgresql://", "postgresql+asyncpg://"), pool_size=AT_ONCE
    )

    async def one(n: int) -> None:
        async with engine.begin() as tx:
            await replacing.enqueue(tx, n)
            await asyncio.sleep(HOLD_S)

    await asyncio.gather(*[one(n) for n in range(AT_ONCE)])
    await engine.dispose()
    found = await asyncio.to_thread(drain, app, timeout_s=60)
    assert found["cancelled"] == AT_ONCE - 1


def test_an_abort_of_late_costs_a_shared_transaction_no_attempt(app: late.App) -> None:
    attempts: list[int] = []

    @app.task(transaction=True, retry=late.Retry(max_attempts=1))
    def page(ctx: late.Context) -> None:
        attempts.append(ctx.attempt)
        if len(attempts) == 1:
            raise TransactionAborted("unique key 'k' kept changing hands")

    enqueue(app, [page.call()])
    assert drain(app) == {"done": 1}
    assert attempts == [1, 1]
