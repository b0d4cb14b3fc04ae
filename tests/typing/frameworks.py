"""A transaction of each framework that has types of its own, as in docs/fastapi.md."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any, assert_type

import psycopg_pool
from fastapi import FastAPI
from psycopg import AsyncConnection as PsycopgAsyncConnection
from psycopg import Connection as PsycopgConnection
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, sessionmaker

import late
from late.contrib.fastapi import lifespan, running, transaction
from tests.typing.handlers import app as queue
from tests.typing.handlers import plain

engine = create_async_engine("sqlite+aiosqlite:///trips.db")
sessions = async_sessionmaker(engine, expire_on_commit=False)
api = FastAPI(lifespan=lifespan(queue, worker=True))

Transaction = Annotated[AsyncSession, transaction(sessions.begin)]
InThread = Annotated[Session, transaction(sessionmaker(create_engine("sqlite://")).begin)]
pool = psycopg_pool.ConnectionPool[PsycopgConnection[Any]](open=False)
OfPsycopg = Annotated[PsycopgConnection[Any], transaction(pool.connection)]
async_pool = psycopg_pool.AsyncConnectionPool[PsycopgAsyncConnection[Any]](open=False)
OfPsycopgAsync = Annotated[PsycopgAsyncConnection[Any], transaction(async_pool.connection)]
wrong = transaction(sessions())  # error: arg-type, reportArgumentType
wrong_queue = lifespan("shop:queue")  # error: arg-type, reportArgumentType


@asynccontextmanager
async def of_my_own(_: FastAPI) -> AsyncGenerator[None, None]:
    async with running(queue):
        yield


@api.post("/orders")
async def place(tx: Transaction) -> dict[str, late.TaskId]:
    plain.enqueue(tx, 1)  # error: unused-coroutine, reportUnusedCoroutine
    return {"task": await plain.enqueue(tx, 1)}


@api.post("/in-a-thread")
def place_in_a_thread(tx: InThread) -> late.TaskId:
    return plain.enqueue(tx, 1)


@api.post("/psycopg")
async def place_by_psycopg(tx: OfPsycopgAsync) -> late.TaskId:
    return await plain.enqueue(tx, 1)


def in_a_session(tx: Session) -> None:
    assert_type(plain.enqueue(tx, 1), late.TaskId)


async def in_a_connection(tx: AsyncConnection) -> None:
    assert_type(await plain.enqueue(tx, 1), late.TaskId)
