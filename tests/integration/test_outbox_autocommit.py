"""A task needs an open transaction, or a caller who says that it stands alone."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import late
from late import outbox
from late.model.ids import new_id
from late.model.task import NewTask
from late.testing import inline
from tests.integration import outbox_kit as kit
from tests.servers import drop_database, migrated_database, postgres_url

app = late.App("sqlite:///unused.db", strict=False)
wait = kit.Caller.wait
Opener = Callable[[str], AbstractAsyncContextManager[Any]]
AUTOCOMMIT: Any = {"isolation_level": "AUTOCOMMIT"}
REFUSED = "no transaction is open"


@app.task
def greet(name: str) -> None: ...


CALLS: dict[str, Callable[[Any, bool], Any]] = {
    "enqueue": lambda tx, alone: greet.options(autocommit=alone).enqueue(tx, "Ada"),
    "app.enqueue": lambda tx, alone: app.enqueue(tx, greet.options(autocommit=alone).call("Ada")),
    "enqueue_many": lambda tx, alone: app.enqueue_many(
        tx, [greet.options(autocommit=True).call("Ada"), greet.options(autocommit=alone).call("B")]
    ),
    "send": lambda tx, alone: app.send(tx, "greet", {"name": "Ada"}, autocommit=alone),
    "send, unregistered": lambda tx, alone: app.send(tx, "other", autocommit=alone),
    "cancel": lambda tx, alone: app.cancel(tx, new_id(0), autocommit=alone),
    "reschedule": lambda tx, alone: app.reschedule(tx, new_id(0), delay=1, autocommit=alone),
    "redrive": lambda tx, alone: app.redrive(tx, new_id(0), autocommit=alone),
    "outbox.write": lambda tx, alone: outbox.write(
        tx, [NewTask(0, new_id(0), "default", "greet", b"{}")], autocommit=alone
    ),
}
"""Each public call that writes through a transaction."""


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    admin = postgres_url()
    if admin is None:
        pytest.skip("no PostgreSQL: set LATE_TEST_POSTGRES_URL or install one")
    made = migrated_database(admin)
    yield made
    drop_database(admin, made)


@asynccontextmanager
async def sqlite_none(url: str) -> AsyncIterator[Any]:
    with closing(sqlite3.connect(kit.path(url), isolation_level=None)) as tx:
        yield tx


@asynccontextmanager
async def sqlite_autocommit(url: str) -> AsyncIterator[Any]:
    """The attribute of Python 3.12. `isolation_level` says nothing beside it."""
    more: Any = {"autocommit": True}
    with closing(sqlite3.connect(kit.path(url), **more)) as tx:
        yield tx


@asynccontextmanager
async def sqlite_after_a_commit(url: str) -> AsyncIterator[Any]:
    async with outbox.connect_async(url) as tx:
        await tx.commit()
        yield tx


@asynccontextmanager
async def psycopg_sync(url: str) -> AsyncIterator[Any]:
    with closing(psycopg.connect(url, autocommit=True)) as tx:
        yield tx


@asynccontextmanager
async def psycopg_async(url: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as tx:
        yield tx


@asynccontextmanager
async def psycopg_pipeline(url: str) -> AsyncIterator[Any]:
    with closing(psycopg.connect(url, autocommit=True)) as tx, tx.pipeline():
        yield tx


@asynccontextmanager
async def core(url: str) -> AsyncIterator[Any]:
    engine = create_engine(kit.sqlalchemy_url(url))
    with engine.connect() as tx:
        yield tx.execution_options(**AUTOCOMMIT)
    engine.dispose()


@asynccontextmanager
async def session(url: str) -> AsyncIterator[Any]:
    engine = create_engine(kit.sqlalchemy_url(url), **AUTOCOMMIT)
    with Session(engine) as tx, tx.begin():  # It sends no BEGIN.
        yield tx
    engine.dispose()


@asynccontextmanager
async def async_core(url: str) -> AsyncIterator[Any]:
    engine = create_async_engine(kit.async_url(url), **AUTOCOMMIT)
    async with engine.connect() as tx:
        yield tx
    await engine.dispose()


@asynccontextmanager
async def async_session(url: str) -> AsyncIterator[Any]:
    engine = create_async_engine(kit.async_url(url), **AUTOCOMMIT)
    async with AsyncSession(engine) as tx:
        yield tx
    await engine.dispose()


@asynccontextmanager
async def asyncpg_plain(url: str) -> AsyncIterator[Any]:
    tx = await asyncpg.connect(url)
    try:
        yield tx
    finally:
        await tx.close()


@asynccontextmanager
async def asyncpg_pool(url: str) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as tx:
        yield tx


@asynccontextmanager
async def aiosqlite_none(url: str) -> AsyncIterator[Any]:
    async with aiosqlite.connect(kit.path(url), isolation_level=None) as tx:
        yield tx


SQLALCHEMY: dict[str, Opener] = {
    "connection": core,
    "session": session,
    "async-connection": async_core,
    "async-session": async_session,
}
DRIVERS: list[tuple[str, str, Opener]] = [
    ("sqlite", "none", sqlite_none),
    ("sqlite", "after-a-commit", sqlite_after_a_commit),
    ("postgresql", "psycopg", psycopg_sync),
    ("postgresql", "psycopg-async", psycopg_async),
    ("postgresql", "psycopg-pipeline", psycopg_pipeline),
    ("postgresql", "asyncpg", asyncpg_plain),
    ("postgresql", "asyncpg-pool", asyncpg_pool),
    ("sqlite", "aiosqlite", aiosqlite_none),
    *(
        (base, kind, open_)
        for base in ("sqlite", "postgresql")
        for kind, open_ in SQLALCHEMY.items()
    ),
]
if hasattr(sqlite3.Connection, "autocommit"):
    DRIVERS.append(("sqlite", "autocommit", sqlite_autocommit))


@pytest.fixture(params=DRIVERS, ids=lambda one: f"{one[0]}-{one[1]}")
async def opened(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Any, str]]:
    """A connection in autocommit mode, and the URL of its database, whose log is empty."""
    base, _, open_ = request.param
    url = str(request.getfixturevalue("late_db" if base == "sqlite" else "postgres"))
    with closing(kit.raw(url)) as connection:
        connection.execute("delete from late_task")
    async with open_(url) as tx:
        yield tx, url


async def test_no_call_writes_outside_a_transaction(opened: tuple[Any, str]) -> None:
    tx, url = opened
    for name, call in CALLS.items():
        with pytest.raises(late.InvalidTask, match=REFUSED):
            await wait(call(tx, False))
        assert kit.count(url, "late_task") == 0, name


async def test_each_call_writes_by_itself_if_the_caller_says_so(opened: tuple[Any, str]) -> None:
    tx, url = opened
    for call in CALLS.values():
        await wait(call(tx, True))
    assert kit.count(url, "late_task") == len(CALLS) + 1  # `enqueue_many` has two.


async def test_a_refusal_leaves_the_connection_usable(opened: tuple[Any, str]) -> None:
    """The caller may begin with SQL of its own, also in SQLAlchemy's autocommit mode."""
    tx, url = opened
    with pytest.raises(late.InvalidTask, match=REFUSED):
        await wait(greet.enqueue(tx, "Ada"))
    run = getattr(tx, "exec_driver_sql", None)
    if run is None and hasattr(tx, "get_bind"):
        run = (await wait(tx.connection())).exec_driver_sql
    run = run or tx.execute
    for end, count in (("rollback", 0), ("commit", 1)):
        await wait(run("begin"))
        await wait(greet.enqueue(tx, "Ada"))
        await wait(run(end))
        if getattr(tx, "pgconn", None) is not None and tx.pgconn.pipeline_status:
            with tx.pipeline():
                pass  # At its end the server has answered.
        assert kit.count(url, "late_task") == count


async def test_a_driver_that_begins_by_itself_is_accepted(late_db: str, postgres: str) -> None:
    path = kit.path(late_db)
    levels: list[Any] = ["", "DEFERRED", "IMMEDIATE", "EXCLUSIVE"]
    for level in levels:
        with closing(sqlite3.connect(path, isolation_level=level)) as tx:
            greet.enqueue(tx, "Ada")
            assert tx.in_transaction
            tx.rollback()
    with closing(psycopg.connect(postgres)) as connection:
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        greet.enqueue(connection, "Ada")
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
        connection.rollback()


async def test_a_block_in_autocommit_mode_is_a_transaction(postgres: str) -> None:
    before = kit.count(postgres, "late_task")
    with closing(psycopg.connect(postgres, autocommit=True)) as tx, tx.transaction():
        greet.enqueue(tx, "Ada")
        app.cancel(tx, new_id(0))
    async with await psycopg.AsyncConnection.connect(postgres, autocommit=True) as other:
        async with other.transaction():
            await greet.enqueue(other, "Ada")
        with pytest.raises(late.InvalidTask, match=REFUSED):
            await greet.enqueue(other, "Ada")
    assert kit.count(postgres, "late_task") == before + 3


async def test_inline_mode_refuses_what_it_knows(opened: tuple[Any, str]) -> None:
    tx, _ = opened
    with inline(app) as box:
        for name, call in CALLS.items():
            if name == "outbox.write":
                continue
            if hasattr(tx, "get_bind"):  # A session of a unit test may have no database.
                await wait(call(tx, False))
                continue
            with pytest.raises(late.InvalidTask, match=REFUSED):
                await wait(call(tx, False))
            assert box.pending == []
            await wait(call(tx, True))
            box.pending.clear()
    with inline(app) as box:
        greet.enqueue(None, "Ada")  # type: ignore[call-overload]
    assert len(box.pending) == 1
