"""`late` in a FastAPI service: transactions for endpoints, and what runs beside them.

    Transaction = Annotated[AsyncSession, transaction(sessions.begin)]
    api = FastAPI(lifespan=lifespan(queue))

FastAPI 0.121 or newer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
from typing import Any, TypeAlias

from fastapi import Depends, FastAPI
from fastapi.concurrency import contextmanager_in_threadpool
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from late.app.app import App
from late.contrib.embedded import running
from late.notify.notifier import tell
from late.outbox.base import OVER
from late.outbox.pending_wakeups import noting

__all__ = ["lifespan", "running", "transaction"]

Begin: TypeAlias = Callable[[], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]
"""Begins a transaction, which commits at the end of the block."""


def transaction(begin: Begin) -> Any:
    """Return a dependency for endpoints: a transaction that commits before the answer is sent.

    It is rolled back if the endpoint raises, also an `HTTPException`. After the commit the workers
    are woken for the tasks that were enqueued through it. Name it once, so that all that a request
    needs gets the same transaction: `Transaction = Annotated[AsyncSession, transaction(...)]`. An
    enqueue through its session after that, from `BackgroundTasks`, raises `InvalidTask`.

    Args:
        begin: called for each request, such as `sessionmaker(engine).begin`, `engine.begin`, those
            of SQLAlchemy's async forms, `pool.connection` of psycopg, or `pool.acquire` of asyncpg,
            whose connections get a transaction here. What is not async runs in a thread.
    """

    async def opened() -> AsyncIterator[Any]:
        async with AsyncExitStack() as stack:
            tx = await stack.enter_async_context(_in_loop(begin()))
            if type(tx).__module__.startswith("asyncpg."):
                await stack.enter_async_context(tx.transaction())
            with noting(tx) as shards:
                yield tx
        if isinstance(tx, Session | AsyncSession):  # Others refuse what comes after their end.
            tx.info[OVER] = True
        if shards:
            tell(frozenset(shards))

    # By default FastAPI answers first, and a client is told of what may fail to commit.
    return Depends(opened, scope="function")


def lifespan(
    queue: App, *, worker: bool = False
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Return a lifespan for a service without one of its own; see `running`."""

    def run(_: FastAPI) -> AbstractAsyncContextManager[None]:
        return running(queue, worker=worker)

    return run


def _in_loop(
    block: AbstractContextManager[Any] | AbstractAsyncContextManager[Any],
) -> AbstractAsyncContextManager[Any]:
    """Return `block` as an async context manager. One that is not async runs in threads."""
    if isinstance(block, AbstractAsyncContextManager):
        return block
    return contextmanager_in_threadpool(block)
