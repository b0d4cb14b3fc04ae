"""Open and end Spanner transactions for handlers (`ctx.begin()`)."""

from __future__ import annotations

import asyncio
import functools
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar

from google.api_core import exceptions as api
from google.cloud.spanner_v1.database_sessions_manager import TransactionType

from late.observability import conflicts
from late.outbox.base import Steps
from late.outbox.execute import drive
from late.outbox.insert import Target
from late.schema.spanner import deadlines
from late.store.spanner.client import open_database, turn

T = TypeVar("T")

PAUSES_S = (0.01, 0.03, 0.1, 0.3, 1.0)
"""Pauses, with jitter, before the first statement of a transaction is tried again after an abort.
"""


class AsyncSpanner:
    """A `Transaction` in its own thread, so that a call does not block the event loop."""

    def __init__(self, url: str, tag: str = "") -> None:
        self._url = url
        self._tag = tag
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="late-spanner")
        self._scope: Any = None
        self.raw: Any = None
        """The client's `Transaction`. Mutations may be put on it directly, as that is no I/O."""

    async def execute_sql(self, sql: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Run `Transaction.execute_sql`, and return all rows."""
        return await self.run(lambda: list(self.raw.execute_sql(sql, *args, **kwargs)))

    async def execute_update(self, sql: str, *args: Any, **kwargs: Any) -> int:
        """Run `Transaction.execute_update`, and return the number of rows that it changed."""
        return await self.run(lambda: int(self.raw.execute_update(sql, *args, **kwargs)))

    async def commit(self) -> None:
        """Commit now. The end of the block then does nothing."""
        await self.run(lambda: self.raw.commit())

    async def rollback(self) -> None:
        await self.run(lambda: self.raw.rollback())

    async def run(self, call: Callable[[], T]) -> T:
        """Run `call` in the transaction's thread. A cancellation does not stop it there."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def begin(self) -> None:
        def begin() -> None:
            self._scope = connect(self._url, self._tag)
            self.raw = self._scope.__enter__()

        try:
            await self.run(begin)
        except BaseException as error:
            # After a cancellation the thread may still open a transaction. It is ended after that.
            self._thread.submit(self._leave, error)
            self._thread.shutdown(wait=False)
            raise

    async def end(self, error: BaseException | None) -> None:
        """Commit, or roll back if there was an error, and end the thread."""

        try:
            await self.run(lambda: self._leave(error))
        finally:
            self._thread.shutdown(wait=False)

    def _leave(self, error: BaseException | None) -> None:
        if self.raw is not None:
            self._scope.__exit__(type(error) if error else None, error, None)


@functools.cache
def _database(url: str, _process: int) -> Any:
    """Return the client of this process for a database.

    A client per transaction would be too expensive, because of its pool of channels. A forked child
    makes its own: it does not have the threads of the parent's connections.
    """
    database = open_database(url, priority="foreground")
    # Google's client would wait for an hour for a server that is gone. Each request has its own
    # time limit: a limit that the caller's thread had for a report or a migration is over by then.
    deadlines.bind(database.spanner_api, each_s=deadlines.CALL_TIMEOUT_S)
    return database


@contextmanager
def connect(url: str, tag: str = "") -> Iterator[Any]:
    """Open a `Transaction`. It is committed at the end, and rolled back if the block raises.

    It has the tag `tag`, which also decides its priority; without one, that of the context.

    ABORTED is raised as the client's `Aborted`: the caller has to run the block again. Spanner
    aborts a transaction that has read and is then idle for 10 s.
    """
    with turn(url):
        yield from _transaction_of(_database(url, os.getpid()), tag)


@contextmanager
def begin(url: str, first: Callable[[Any], object] | None, tag: str = "") -> Iterator[Any]:
    """Do the same as `connect`, and run `first` before the block.

    If Spanner aborts what `first` does, it is tried again in a new transaction: nothing of the
    block has run, so no attempt of a task need be spent on it.
    """
    for pause_s in (*PAUSES_S, None):
        with ExitStack() as stack:
            tx = stack.enter_context(connect(url, tag))
            try:
                if first is not None:
                    first(tx)
            except api.Aborted as error:
                if pause_s is None:
                    raise
                stack.pop_all().__exit__(type(error), error, error.__traceback__)
            else:
                yield tx
                return
        time.sleep(pause_s * random.uniform(0.5, 1.5))


@asynccontextmanager
async def begin_async(
    url: str, first: Callable[[Any], Awaitable[object]] | None, tag: str = ""
) -> AsyncIterator[Any]:
    """Do the same as `begin`; see `connect_async`."""
    for pause_s in (*PAUSES_S, None):
        async with AsyncExitStack() as stack:
            tx = await stack.enter_async_context(connect_async(url, tag))
            try:
                if first is not None:
                    await first(tx)
            except api.Aborted as error:
                if pause_s is None:
                    raise
                await stack.pop_all().__aexit__(type(error), error, error.__traceback__)
            else:
                yield tx
                return
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))


def read(url: str, make: Callable[[Target], Steps[T]]) -> T:
    """Run steps that only read, in a snapshot, which takes no lock."""
    from late.outbox.adapters.spanner import transaction  # which imports this module

    with turn(url), _database(url, os.getpid()).snapshot(multi_use=True) as snapshot:
        into = transaction(snapshot)
        return drive(make(into), into.execute)


def _transaction_of(database: Any, tag: str) -> Iterator[Any]:
    session = database.sessions_manager.get_session(TransactionType.READ_WRITE)
    try:
        tx = session.transaction()
        tx.transaction_tag = tag or conflicts.current() or database.late_tag
        try:
            yield tx
            # A block without statements or mutations has not begun a transaction.
            if _open(tx) and (tx._transaction_id is not None or tx._mutations):
                tx.commit()
        except BaseException:
            # Without an id nothing has reached the server. The caller must see the first error. If
            # the server cannot be reached, it rolls back by itself.
            if _open(tx) and tx._transaction_id is not None:
                with suppress(api.GoogleAPICallError):
                    tx.rollback()
            raise
    finally:
        database.sessions_manager.put_session(session)


def _open(tx: Any) -> bool:
    return tx.committed is None and not tx.rolled_back


@asynccontextmanager
async def connect_async(url: str, tag: str = "") -> AsyncIterator[AsyncSpanner]:
    """Open an async transaction; see `connect`. A cancellation rolls it back."""
    tx = AsyncSpanner(url, tag or conflicts.current())
    await tx.begin()
    try:
        yield tx
    except BaseException as error:
        await tx.end(error)
        raise
    await tx.end(None)
