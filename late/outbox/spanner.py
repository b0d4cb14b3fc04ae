"""Spanner: a `Transaction` of google-cloud-spanner, and the statements for SQLAlchemy.

A `Transaction` gets its tasks as a mutation, which the client keeps until the commit: N tasks add
no round trip. When Spanner aborts, `run_in_transaction` runs the caller's function again with a new
transaction, and so the enqueue too. Only unique keys cost a statement, because they must be looked
at: `late_unique` has no commit timestamp, so it can be read and written in one transaction.

SQLAlchemy gets DML with PENDING_COMMIT_TIMESTAMP() and never a mutation: on ABORTED its driver
replays the statements of the transaction and forgets the mutations, so that tasks would be lost
from transactions that commit.

One transaction uses one of the two: after DML on the log, Spanner refuses a mutation on it. The
log cannot be read in a transaction that has written to it by DML.
"""

from __future__ import annotations

import asyncio
import functools
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from google.cloud.spanner_v1 import COMMIT_TIMESTAMP, param_types
from google.cloud.spanner_v1.database_sessions_manager import TransactionType
from google.cloud.spanner_v1.transaction import Transaction

from late.outbox.base import Answer, Statement
from late.outbox.dialects import GoogleSql
from late.store.spanner_client import open_database, turn
from late.task import NewTask

T = TypeVar("T")

COLUMNS = (
    "shard_id",
    "created_at",
    "task_id",
    "queue",
    "name",
    "payload",
    "headers",
    "options",
)
_BUFFER = "mutation"
_array: Any = param_types.Array  # the client is typed in parts only
_STRINGS = _array(param_types.STRING)


class _Mutations(GoogleSql):
    """Keys as the statements are; tasks as rows to buffer."""

    tasks_max = 1_000_000  # the number of tasks per call is bounded before

    def tasks(self, rows: Sequence[NewTask]) -> Statement:
        return Statement(
            _BUFFER,
            [
                (
                    r.shard_id,
                    COMMIT_TIMESTAMP,
                    r.task_id,
                    r.queue,
                    r.name,
                    b64encode(r.payload),  # the wire format of BYTES is a text
                    r.headers,
                    r.options,
                )
                for r in rows
            ],
        )


class _Transaction:
    __slots__ = ("_tx",)
    dialect = _Mutations()
    autocommit = False

    def __init__(self, tx: Any) -> None:
        self._tx = tx

    def execute(self, statement: Statement) -> Answer:
        if statement.sql == _BUFFER:
            self._tx.insert("late_task", COLUMNS, statement.params)
            return Answer(len(statement.params))
        assert isinstance(statement.params, dict)
        types = dict.fromkeys(statement.params, _STRINGS)
        if statement.fetch:
            rows = list(self._tx.execute_sql(statement.sql, statement.params, types))
            return Answer(len(rows), rows)
        return Answer(self._tx.execute_update(statement.sql, statement.params, types))


def transaction(tx: Transaction) -> _Transaction:
    """The adapter of a google-cloud-spanner `Transaction`."""
    return _Transaction(tx)


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
        except BaseException:
            self._thread.shutdown(wait=False)
            raise

    async def end(self, error: BaseException | None) -> None:
        """Commit, or roll back if there was an error, and let the thread go."""

        def end() -> None:
            self._scope.__exit__(type(error) if error else None, error, None)

        try:
            await self.run(end)
        finally:
            self._thread.shutdown(wait=False)


class _AsyncTransaction:
    __slots__ = ("_tx",)
    dialect = _Transaction.dialect
    autocommit = False

    def __init__(self, tx: AsyncSpanner) -> None:
        self._tx = tx

    async def execute(self, statement: Statement) -> Answer:
        return await self._tx.run(lambda: _Transaction(self._tx.raw).execute(statement))


async def async_transaction(tx: AsyncSpanner) -> _AsyncTransaction:
    """The adapter of an `AsyncSpanner`."""
    return _AsyncTransaction(tx)


@functools.cache
def _database(url: str) -> Any:
    """One client per process and database: a channel pool is too dear for every transaction."""
    return open_database(url, priority="foreground")


@contextmanager
def connect(url: str) -> Iterator[Any]:
    """A `Transaction` of our own; committed at the end, rolled back if the block raises.

    ABORTED leaves the block as the client's `Aborted`: whoever runs the block runs it again.
    """
    with turn(url):
        yield from _transaction_of(_database(url))


def _transaction_of(database: Any) -> Iterator[Any]:
    session = database.sessions_manager.get_session(TransactionType.READ_WRITE)
    tx = session.transaction()
    tx.transaction_tag = database.late_tag
    try:
        yield tx
        if not tx.rolled_back and tx.committed is None:
            tx.commit()
    except BaseException:
        # Without an id nothing has reached the server: there is nothing to roll back.
        if tx.committed is None and not tx.rolled_back and tx._transaction_id is not None:
            tx.rollback()
        raise
    finally:
        database.sessions_manager.put_session(session)


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
