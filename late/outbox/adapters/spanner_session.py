"""Spanner transactions of our own, for handlers (`ctx.begin()`): opened, ended, never leaked."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar

from google.api_core import exceptions as api
from google.cloud.spanner_v1.database_sessions_manager import TransactionType

from late.schema.spanner import deadlines as spanner_bounds
from late.store.spanner.client import open_database, turn

T = TypeVar("T")


class AsyncSpanner:
    """A `Transaction` in a thread of its own, so that a call does not stop the event loop."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="late-spanner")
        self._scope: Any = None
        self.raw: Any = None
        """The client's `Transaction`: mutations may be put on it directly, for they only wait."""

    async def execute_sql(self, sql: str, *args: Any, **kwargs: Any) -> list[Any]:
        """`Transaction.execute_sql`, with all rows."""
        return await self.run(lambda: list(self.raw.execute_sql(sql, *args, **kwargs)))

    async def execute_update(self, sql: str, *args: Any, **kwargs: Any) -> int:
        """`Transaction.execute_update`: how many rows the statement changed."""
        return await self.run(lambda: int(self.raw.execute_update(sql, *args, **kwargs)))

    async def commit(self) -> None:
        """Commit now; the end of the block then has nothing left to do."""
        await self.run(lambda: self.raw.commit())

    async def rollback(self) -> None:
        await self.run(lambda: self.raw.rollback())

    async def run(self, call: Callable[[], T]) -> T:
        """Run `call` in the transaction's thread. Cancelled, the call still ends there first."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def begin(self) -> None:
        def begin() -> None:
            self._scope = connect(self._url)
            self.raw = self._scope.__enter__()

        try:
            await self.run(begin)
        except BaseException as error:
            # Cancelled, the thread may still be at it: what it opens is ended behind it.
            self._thread.submit(self._leave, error)
            self._thread.shutdown(wait=False)
            raise

    async def end(self, error: BaseException | None) -> None:
        """Commit, or roll back if there was an error, and let the thread go."""

        try:
            await self.run(lambda: self._leave(error))
        finally:
            self._thread.shutdown(wait=False)

    def _leave(self, error: BaseException | None) -> None:
        if self.raw is not None:
            self._scope.__exit__(type(error) if error else None, error, None)


@functools.cache
def _database(url: str, _process: int) -> Any:
    """One client per process and database: a channel pool is too dear for every transaction.

    A child that was forked makes its own: the threads of the parent's connections stay behind.
    """
    database = open_database(url, priority="foreground")
    # Google's client would wait for an hour for a server that is gone. Each request has its own
    # time: what the caller's thread was given for a report or a migration is long over.
    spanner_bounds.bind(database.spanner_api, each_s=spanner_bounds.CALL_TIMEOUT_S)
    return database


@contextmanager
def connect(url: str) -> Iterator[Any]:
    """A `Transaction` of our own; committed at the end, rolled back if the block raises.

    ABORTED leaves the block as the client's `Aborted`: whoever runs the block runs it again.
    Spanner aborts one that has read and then rests for 10 s.
    """
    with turn(url):
        yield from _transaction_of(_database(url, os.getpid()))


def _transaction_of(database: Any) -> Iterator[Any]:
    session = database.sessions_manager.get_session(TransactionType.READ_WRITE)
    try:
        tx = session.transaction()
        tx.transaction_tag = database.late_tag
        try:
            yield tx
            # A block that did nothing has begun nothing.
            if _open(tx) and (tx._transaction_id is not None or tx._mutations):
                tx.commit()
        except BaseException:
            # Without an id nothing has reached the server. What went wrong is what the caller must
            # hear of, also where the server is gone and cannot be told: it gives up by itself.
            if _open(tx) and tx._transaction_id is not None:
                with suppress(api.GoogleAPICallError):
                    tx.rollback()
            raise
    finally:
        database.sessions_manager.put_session(session)


def _open(tx: Any) -> bool:
    return tx.committed is None and not tx.rolled_back


@asynccontextmanager
async def connect_async(url: str) -> AsyncIterator[AsyncSpanner]:
    """`connect` for `async with`. Cancelled, the transaction is rolled back."""
    tx = AsyncSpanner(url)
    await tx.begin()
    try:
        yield tx
    except BaseException as error:
        await tx.end(error)
        raise
    await tx.end(None)
