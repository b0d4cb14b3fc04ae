"""A transaction of each framework that has types of its own, as in docs/fastapi.md."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, assert_type

from fastapi import Depends, FastAPI
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session

import late
from tests.typing.handlers import plain

engine = create_async_engine("sqlite+aiosqlite:///trips.db")
sessions = async_sessionmaker(engine, expire_on_commit=False)
api = FastAPI()


async def transaction() -> AsyncIterator[AsyncSession]:
    async with sessions.begin() as tx:
        yield tx


Transaction = Annotated[AsyncSession, Depends(transaction, scope="function")]


@api.post("/orders")
async def place(tx: Transaction) -> dict[str, late.TaskId]:
    plain.enqueue(tx, 1)  # error: unused-coroutine, reportUnusedCoroutine
    return {"task": await plain.enqueue(tx, 1)}


def in_a_session(tx: Session) -> None:
    assert_type(plain.enqueue(tx, 1), late.TaskId)


async def in_a_connection(tx: AsyncConnection) -> None:
    assert_type(await plain.enqueue(tx, 1), late.TaskId)
