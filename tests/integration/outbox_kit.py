"""Callers of every kind that the outbox accepts, made alike: a transaction, a way to run SQL in
it, commit and rollback. The tests are written once, against `Caller`."""

from __future__ import annotations

import inspect
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiosqlite
import asyncpg
import psycopg
from sqlalchemy import create_engine, event
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlmodel import Session as ModelSession
from sqlmodel.ext.asyncio.session import AsyncSession as AsyncModelSession

from late.outbox import connect_async

BUSINESS = "create table trip (id integer primary key)"


@dataclass
class Caller:
    """Somebody's open transaction."""

    tx: Any
    sql: Callable[[str], Any]
    end: Callable[[str], Any]
    begin_sql: str | None = None
    """For drivers that do not begin by themselves."""

    async def begin(self) -> None:
        """Begin again after a commit, where the caller has to."""
        if self.begin_sql:
            await self.execute(self.begin_sql)

    async def execute(self, statement: str) -> None:
        await self.wait(self.sql(statement))

    async def commit(self) -> None:
        await self.wait(self.end("commit"))

    async def rollback(self) -> None:
        await self.wait(self.end("rollback"))

    @staticmethod
    async def wait(value: Any) -> Any:
        """The value, awaited where the driver is async: the tests are the same for both."""
        return await value if inspect.isawaitable(value) else value


Opener = Callable[[str], AbstractAsyncContextManager[Caller]]


def raw(url: str) -> Any:
    """A connection of somebody else's, in autocommit mode: what is committed."""
    if url.startswith("sqlite"):
        return sqlite3.connect(path(url), isolation_level=None)
    return psycopg.connect(url, autocommit=True)


def path(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def rows(url: str, sql: str = "select task_id, name from late_task order by task_id") -> list[Any]:
    with closing(raw(url)) as connection:
        found = connection.execute(sql).fetchall()
        return [tuple(str(v) if hasattr(v, "hex") else v for v in row) for row in found]


def count(url: str, table: str) -> int:
    number: int = rows(url, f"select count(*) from {table}")[0][0]
    return number


# One opener per kind. Each begins as its driver does and is left open for the test to end.


@asynccontextmanager
async def sqlite_default(url: str) -> AsyncIterator[Caller]:
    with closing(sqlite3.connect(path(url), timeout=0.2)) as tx:
        yield Caller(tx, tx.execute, lambda how: getattr(tx, how)())


@asynccontextmanager
async def sqlite_explicit(url: str) -> AsyncIterator[Caller]:
    with closing(sqlite3.connect(path(url), isolation_level=None)) as tx:
        tx.execute("begin immediate")
        yield Caller(tx, tx.execute, lambda how: getattr(tx, how)(), "begin immediate")


@asynccontextmanager
async def sqlite_async(url: str) -> AsyncIterator[Caller]:
    async with connect_async(url) as tx:
        yield Caller(tx, tx.execute, lambda how: getattr(tx, how)(), "begin immediate")


def sqlalchemy_url(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://")


def _recipe(engine: Any) -> None:
    """SQLAlchemy's own for savepoints on SQLite: the driver in autocommit mode, BEGIN by event."""

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")


@asynccontextmanager
async def core(url: str) -> AsyncIterator[Caller]:
    engine = create_engine(sqlalchemy_url(url))
    with engine.connect() as tx:
        yield Caller(tx, tx.exec_driver_sql, lambda how: getattr(tx, how)())
    engine.dispose()


@asynccontextmanager
async def session(url: str, kind: type[Session] = Session) -> AsyncIterator[Caller]:
    engine = create_engine(sqlalchemy_url(url))
    if url.startswith("sqlite"):
        _recipe(engine)
    with kind(engine) as tx:
        yield Caller(
            tx,
            lambda sql: tx.connection().exec_driver_sql(sql),
            lambda how: getattr(tx, how)(),
        )
    engine.dispose()


def async_url(url: str) -> str:
    return sqlalchemy_url(url).replace("sqlite://", "sqlite+aiosqlite://")


@asynccontextmanager
async def async_core(url: str) -> AsyncIterator[Caller]:
    engine = create_async_engine(async_url(url))
    async with engine.connect() as tx:
        yield Caller(tx, tx.exec_driver_sql, lambda how: getattr(tx, how)())
    await engine.dispose()


@asynccontextmanager
async def async_session(
    url: str, kind: type[AsyncSession] = AsyncSession, driver: str = "+psycopg"
) -> AsyncIterator[Caller]:
    engine = create_async_engine(async_url(url).replace("+psycopg", driver))

    async def sql(statement: str) -> None:
        await (await tx.connection()).exec_driver_sql(statement)

    async with kind(engine) as tx:
        yield Caller(tx, sql, lambda how: getattr(tx, how)())
    await engine.dispose()


@asynccontextmanager
async def psycopg_sync(url: str) -> AsyncIterator[Caller]:
    # Factories of the caller's that must not reach us: dict rows, parameters bound by the client.
    tx = psycopg.connect(
        url, cursor_factory=psycopg.ClientCursor, row_factory=psycopg.rows.dict_row
    )
    with closing(tx):
        yield Caller(tx, tx.execute, lambda how: getattr(tx, how)())


@asynccontextmanager
async def psycopg_async(url: str) -> AsyncIterator[Caller]:
    tx = await psycopg.AsyncConnection.connect(url)
    try:
        yield Caller(tx, tx.execute, lambda how: getattr(tx, how)())
    finally:
        await tx.close()


@asynccontextmanager
async def psycopg_pipeline(url: str) -> AsyncIterator[Caller]:
    with closing(psycopg.connect(url)) as tx, tx.pipeline():
        yield Caller(tx, tx.execute, lambda how: getattr(tx, how)())


@asynccontextmanager
async def psycopg_async_pipeline(url: str) -> AsyncIterator[Caller]:
    async with psycopg_async(url) as caller, caller.tx.pipeline():
        yield caller


def model_session(url: str) -> AbstractAsyncContextManager[Caller]:
    return session(url, ModelSession)


def async_model_session(url: str) -> AbstractAsyncContextManager[Caller]:
    # With asyncpg below, where the other sessions have psycopg.
    return async_session(url, AsyncModelSession, "+asyncpg")


@asynccontextmanager
async def aiosqlite_default(url: str) -> AsyncIterator[Caller]:
    async with aiosqlite.connect(path(url), timeout=0.2) as tx:
        tx.row_factory = lambda _, row: {"row": row}  # The caller's, which must not reach us.
        yield Caller(tx, tx.execute, lambda how: getattr(tx, how)())


@asynccontextmanager
async def asyncpg_plain(url: str) -> AsyncIterator[Caller]:
    tx = await asyncpg.connect(url)
    try:
        await tx.execute("begin")
        yield Caller(tx, tx.execute, tx.execute, "begin")
    finally:
        await tx.close()


@asynccontextmanager
async def asyncpg_pool(url: str) -> AsyncIterator[Caller]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as tx:
        transaction = tx.transaction()
        await transaction.start()
        ended: list[str] = []

        async def end(how: str) -> None:
            ended.append(how)
            await (tx.execute(how) if len(ended) > 1 else getattr(transaction, how)())

        yield Caller(tx, tx.execute, end, "begin")


SQLITE: dict[str, Opener] = {
    "sqlite3": sqlite_default,
    "sqlite3-begin": sqlite_explicit,
    "sqlite-async": sqlite_async,
    "sqlite-connection": core,
    "sqlite-session": session,
    "sqlite-async-connection": async_core,
    "sqlite-async-session": async_session,
    "sqlite-model-session": model_session,
    "sqlite-async-model-session": async_model_session,
    "aiosqlite": aiosqlite_default,
}
POSTGRES: dict[str, Opener] = {
    "psycopg": psycopg_sync,
    "psycopg-async": psycopg_async,
    "psycopg-pipeline": psycopg_pipeline,
    "psycopg-async-pipeline": psycopg_async_pipeline,
    "postgres-connection": core,
    "postgres-session": session,
    "postgres-async-connection": async_core,
    "postgres-async-session": async_session,
    "postgres-model-session": model_session,
    "postgres-async-model-session": async_model_session,
    "asyncpg": asyncpg_plain,
    "asyncpg-pool": asyncpg_pool,
}

__all__ = [
    "BUSINESS",
    "POSTGRES",
    "SQLITE",
    "Caller",
    "Opener",
    "count",
    "raw",
    "rows",
]
