"""`late` in a FastAPI service: transactions for endpoints, and what runs beside them.

    Transaction = Annotated[AsyncSession, transaction(sessions.begin)]
    api = FastAPI(lifespan=lifespan(queue))

FastAPI 0.121 or newer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)
from typing import Any, TypeAlias

from fastapi import Depends, FastAPI
from fastapi.concurrency import contextmanager_in_threadpool

from late.app.app import App
from late.control import Control
from late.errors import StoreUnavailable
from late.notify.notifier import tell
from late.outbox.pending_wakeups import noting

__all__ = ["lifespan", "running", "transaction"]

Begin: TypeAlias = Callable[[], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]
"""Begins a transaction, which commits at the end of the block."""

logger = logging.getLogger("late.fastapi")


def transaction(begin: Begin) -> Any:
    """Return a dependency for endpoints: a transaction that commits before the answer is sent.

    It is rolled back if the endpoint raises, also an `HTTPException`. After the commit the workers
    are woken for the tasks that were enqueued through it. Name it once, so that all that a request
    needs gets the same transaction: `Transaction = Annotated[AsyncSession, transaction(...)]`.

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


@asynccontextmanager
async def running(queue: App, *, worker: bool = False) -> AsyncIterator[None]:
    """Hold what a service that enqueues needs, for the block in its lifespan.

    The schema is checked first, so that a service that was deployed before its `late migrate` does
    not start. A database that does not answer is no reason: it is logged. From then on the service
    refuses tasks of queues that are closed or full, as `App.follow` does.

    Args:
        worker: run the tasks in this process too, on its event loop. That is for development: with
            `late worker` a slow handler cannot hold requests up, and a deploy of the service does
            not interrupt tasks.

    Raises:
        SchemaMismatch: the tables of `late` are missing or have another version.
        StoreUnavailable: there is no such file of SQLite.
        LateError: the worker cannot start.
    """
    await asyncio.to_thread(_check, queue.url)
    guard = queue.follow()
    await asyncio.to_thread(guard.__enter__)
    try:
        async with _working(queue) if worker else nullcontext():
            yield
    finally:
        await asyncio.to_thread(guard.close)


@asynccontextmanager
async def _working(queue: App) -> AsyncIterator[None]:
    from late import events
    from late.observability.logs import log_events
    from late.worker.worker import Worker

    made = Worker(queue)
    quiet = log_events(events.default)  # As `late worker` does: what fails must be seen.
    try:
        await made.start()
        life = asyncio.create_task(made.wait(), name="late-worker")
        try:
            yield
        finally:
            made.ask_to_stop()
            await life
    finally:
        quiet()


def _check(url: str) -> None:
    try:
        with Control(url) as control:
            control.check()
    except StoreUnavailable as error:
        if url.startswith("sqlite"):  # There is no server to wait for: the file is missing.
            raise
        logger.warning("the schema of late could not be checked: %s", error)


def _in_loop(
    block: AbstractContextManager[Any] | AbstractAsyncContextManager[Any],
) -> AbstractAsyncContextManager[Any]:
    """Return `block` as an async context manager. One that is not async runs in threads."""
    if isinstance(block, AbstractAsyncContextManager):
        return block
    return contextmanager_in_threadpool(block)
