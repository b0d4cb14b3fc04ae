"""`late.contrib.fastapi`: transactions of endpoints in every driver, and what runs beside them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import asyncpg
import httpx
import psycopg_pool
import pytest
from fastapi import BackgroundTasks, FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

import late
from late.contrib import fastapi as contrib
from late.contrib.fastapi import lifespan, running, transaction
from late.control import Control
from late.errors import InvalidTask, QueueFull, SchemaMismatch, StoreUnavailable
from late.model.ids import shard_of
from late.schema.engine import make_engine, reading
from late.testing import drain
from tests.servers import drop_database, migrated_database, postgres_url
from tests.support.sqlite import database


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    return database(tmp_path / "shop.db")


@pytest.fixture
def postgres() -> Iterator[str]:
    admin = postgres_url()
    if admin is None:
        pytest.skip("no PostgreSQL: set LATE_TEST_POSTGRES_URL or install one")
    url = migrated_database(admin)
    yield url
    drop_database(admin, url)


def stored(url: str) -> list[str]:
    """The ids of the tasks that others see."""
    engine = make_engine(url)
    with reading(engine) as connection:
        rows = connection.execute(text("select task_id from late_task"))
        found = [str(each) for each in rows.scalars()]
    engine.dispose()
    return found


async def ask(api: FastAPI, *paths: str) -> list[httpx.Response]:
    """Post to each path, one after the other, within one life of the service."""
    transport = httpx.ASGITransport(app=api, raise_app_exceptions=False)
    async with (
        api.router.lifespan_context(api),
        httpx.AsyncClient(transport=transport, base_url="http://shop") as client,
    ):
        return [await client.post(path) for path in paths]


@asynccontextmanager
async def of_async_sessions(url: str) -> AsyncIterator[Any]:
    engine = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))
    try:
        yield async_sessionmaker(engine).begin
    finally:
        await engine.dispose()


@asynccontextmanager
async def of_async_engine(url: str) -> AsyncIterator[Any]:
    engine = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))
    yield engine.begin
    await engine.dispose()


@asynccontextmanager
async def of_sessions(url: str) -> AsyncIterator[Any]:
    engine = create_engine(url)
    yield sessionmaker(engine).begin
    engine.dispose()


@asynccontextmanager
async def of_psycopg(url: str) -> AsyncIterator[Any]:
    with psycopg_pool.ConnectionPool(url, min_size=1) as pool:
        yield pool.connection


@asynccontextmanager
async def of_async_psycopg(url: str) -> AsyncIterator[Any]:
    async with psycopg_pool.AsyncConnectionPool(url, min_size=1) as pool:
        yield pool.connection


@asynccontextmanager
async def of_asyncpg(url: str) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(url, min_size=1) as pool:
        yield pool.acquire


@pytest.mark.parametrize(
    ("store", "opened"),
    [
        ("sqlite", of_async_sessions),
        ("sqlite", of_async_engine),
        ("sqlite", of_sessions),
        ("postgres", of_psycopg),
        ("postgres", of_async_psycopg),
        ("postgres", of_asyncpg),
    ],
)
async def test_a_task_commits_before_the_answer_and_is_told_of_then(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    store: str,
    opened: Callable[[str], Any],
) -> None:
    url = request.getfixturevalue(store)
    queue = late.App(url)
    told: list[tuple[frozenset[int], int]] = []
    monkeypatch.setattr(
        contrib, "tell", lambda shards: told.append((shards, len(stored(queue.url))))
    )

    @queue.task
    async def pay(order: int) -> None: ...

    async with opened(url) as begin:
        in_loop = "async" in opened.__name__
        api = service(begin, pay, in_loop=in_loop)
        placed, refused, nothing = await ask(api, "/orders", "/refused", "/nothing")
    assert (placed.status_code, refused.status_code, nothing.status_code) == (200, 409, 200)
    assert stored(url) == [placed.json()]
    assert told == [({shard_of(placed.json())}, 1)]


def service(begin: Any, pay: Any, *, in_loop: bool) -> FastAPI:
    """An API whose endpoints are `async def`, or `def` for transactions that are not async."""
    api = FastAPI()
    tx_of_request = Annotated[Any, transaction(begin)]

    async def place(tx: tx_of_request) -> str:  # type: ignore[valid-type]
        return str(await pay.enqueue(tx, 1))

    async def refuse(tx: tx_of_request) -> str:  # type: ignore[valid-type]
        await pay.enqueue(tx, 1)
        raise HTTPException(409)

    def place_here(tx: tx_of_request) -> str:  # type: ignore[valid-type]
        return str(pay.enqueue(tx, 1))

    def refuse_here(tx: tx_of_request) -> str:  # type: ignore[valid-type]
        pay.enqueue(tx, 1)
        raise HTTPException(409)

    def nothing(tx: tx_of_request) -> None: ...  # type: ignore[valid-type]

    for path, made in (
        ("/orders", place if in_loop else place_here),
        ("/refused", refuse if in_loop else refuse_here),
        ("/nothing", nothing),
    ):
        made.__annotations__["tx"] = tx_of_request
        api.post(path)(made)
    return api


async def test_a_commit_that_fails_is_an_error_and_tells_nobody(
    sqlite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = late.App(sqlite)
    told: list[object] = []
    monkeypatch.setattr(contrib, "tell", told.append)

    @queue.task
    async def pay(order: int) -> None: ...

    @asynccontextmanager
    async def begin() -> AsyncIterator[AsyncSession]:
        async with of_async_sessions(sqlite) as sessions, sessions() as tx:
            yield tx
            raise RuntimeError("no commit")

    (answer,) = await ask(service(begin, pay, in_loop=True), "/orders")
    assert answer.status_code == 500
    assert (stored(sqlite), told) == ([], [])


@pytest.mark.parametrize(("exists", "error"), [(True, SchemaMismatch), (False, StoreUnavailable)])
async def test_a_service_without_the_tables_does_not_start(
    tmp_path: Path, exists: bool, error: type[Exception]
) -> None:
    file = tmp_path / "shop.db"
    if exists:
        file.touch()
    with pytest.raises(error, match="late migrate"):
        await ask(FastAPI(lifespan=lifespan(late.App(f"sqlite:///{file}"))))


async def test_a_database_that_does_not_answer_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    queue = late.App("postgresql://nobody:hidden@127.0.0.1:1/none?connect_timeout=1")
    assert await ask(FastAPI(lifespan=lifespan(queue))) == []
    assert "the schema of late could not be checked" in caplog.text
    assert "hidden" not in caplog.text


async def test_closed_queues_are_refused_while_the_service_runs(sqlite: str) -> None:
    queue = late.App(sqlite)

    @queue.task(queue="payments")
    def pay(order: int) -> None: ...

    with Control(sqlite) as control:
        control.queues.change("queue", "payments", {"closed": True})
    engine = create_engine(sqlite)
    async with running(queue):
        with Session(engine) as tx, pytest.raises(QueueFull, match="closed"):
            pay.enqueue(tx, 1)
    engine.dispose()


async def test_a_worker_in_the_process_runs_tasks_and_stops_with_the_service(sqlite: str) -> None:
    queue = late.App(sqlite)
    began, ended = asyncio.Event(), asyncio.Event()

    @queue.task
    async def pay(order: int) -> None:
        began.set()
        # It goes on while the service stops.
        for _ in range(1_000):
            await asyncio.sleep(0)
        ended.set()

    engine = create_engine(sqlite)
    async with asyncio.timeout(120):
        async with running(queue, worker=True):
            with Session(engine) as tx, tx.begin():
                pay.enqueue(tx, 1)
            await began.wait()
        assert ended.is_set()
    engine.dispose()
    assert not [each for each in asyncio.all_tasks() if each.get_name().startswith("late-")]
    with Control(sqlite) as control:
        assert control.status.read().workers == ()


async def test_the_errors_of_handlers_are_in_the_log(
    sqlite: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = late.App(sqlite)

    @queue.task(retry=late.Retry(max_attempts=1))
    async def pay(order: int) -> None:
        raise RuntimeError(f"no card for {order}")

    engine = create_engine(sqlite)
    async with asyncio.timeout(120):
        async with running(queue, worker=True):
            with Session(engine) as tx, tx.begin():
                pay.enqueue(tx, 7)
            while "event=dead_letter" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert caplog.text.count("event=attempt_failed") == 1
    assert "no card for 7" in caplog.text
    caplog.clear()
    with Session(engine) as tx, tx.begin():
        pay.enqueue(tx, 8)
    assert await asyncio.to_thread(drain, queue) == {"dead": 1}
    assert caplog.text.count("event=dead_letter") == 1, "of this worker alone"
    engine.dispose()


async def test_an_enqueue_after_the_answer_is_refused(sqlite: str) -> None:
    """The session would begin anew by itself, and nobody would commit."""
    queue, refused = late.App(sqlite), list[str]()

    @queue.task
    def pay(order: int) -> None: ...

    api, engine = FastAPI(), create_engine(sqlite)
    async with of_async_sessions(sqlite) as begin:
        awaited, plain = transaction(begin), transaction(sessionmaker(engine).begin)

        @api.post("/background")
        async def in_background(tasks: BackgroundTasks, tx: Any = awaited) -> None:
            await pay.enqueue(tx, 1)

            async def later() -> None:
                with pytest.raises(InvalidTask, match="transaction of this request is over"):
                    await pay.enqueue(tx, 2)
                refused.append("background")

            tasks.add_task(later)

        @api.post("/streamed")
        def in_stream(tx: Any = plain) -> StreamingResponse:
            def body() -> Iterator[str]:
                with pytest.raises(InvalidTask, match="transaction of this request is over"):
                    pay.enqueue(tx, 3)
                refused.append("streamed")
                yield "done"

            return StreamingResponse(body())

        answers = await ask(api, "/background", "/streamed")
    engine.dispose()
    assert [each.status_code for each in answers] == [200, 200]
    assert refused == ["background", "streamed"]
    assert len(stored(sqlite)) == 1
