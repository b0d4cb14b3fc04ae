"""The adapter for a `Transaction` of google-cloud-spanner.

A `Transaction` gets its tasks as a mutation, which the client keeps until the commit: N tasks add
no round trip. If Spanner aborts the transaction, `run_in_transaction` runs the caller's function
again with a new transaction, and so also the enqueue. Only unique keys need statements, because
they must be read: `late_unique` has no commit timestamp, so it can be read and written in one
transaction.

SQLAlchemy uses DML with PENDING_COMMIT_TIMESTAMP() and never a mutation (`statements.py`). After
ABORTED its driver repeats the statements of the transaction but not the mutations, so the
transaction would commit without its tasks.

One transaction must use only one of the two: after DML on the log, Spanner refuses a mutation on
it. The log cannot be read in a transaction that has written to it by DML.
"""

from __future__ import annotations

import inspect
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from google.api_core import exceptions as api
from google.cloud.spanner_v1 import COMMIT_TIMESTAMP, TransactionOptions, param_types
from google.cloud.spanner_v1.transaction import Transaction

from late.errors import BatchTooLarge, InvalidTask, SchemaMismatch
from late.model.task import Fence, NewTask
from late.outbox.adapters.spanner_session import AsyncSpanner
from late.outbox.base import TABLES_MISSING, Answer, Statement
from late.outbox.statements import GoogleSql

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
TASKS_MAX = 5_000
"""The most tasks of one transaction. Spanner takes 80,000 mutations. A task is 8, one per column,
and 12 with a unique key, so at least a quarter is left for the caller's own rows."""
BYTES_MAX = 64 * 1024 * 1024
"""The most bytes of payload of one transaction. Spanner takes 100 MiB, and the caller has rows of
its own."""
_CARRIED = "_late_carried"
_BUFFER = "mutation"
_array: Any = param_types.Array  # The client has few types.
_STRINGS = _array(param_types.STRING)


class _Mutations(GoogleSql):
    """The statements for keys, and tasks as rows to buffer."""

    tasks_max = 1_000_000  # The number of tasks per call is bounded before.

    def tasks(
        self, rows: Sequence[NewTask], fence: Fence | None = None, names: Sequence[str] = ()
    ) -> Statement:
        return Statement(
            _BUFFER,
            [
                (
                    r.shard_id,
                    COMMIT_TIMESTAMP,
                    r.task_id,
                    r.queue,
                    r.name,
                    b64encode(r.payload),  # Text, as in the wire format of BYTES.
                    r.headers,
                    r.options,
                )
                for r in rows
            ],
        )


def _open(tx: Any) -> Any:
    """Return a transaction of the client that has not ended: of one that has, it would keep the
    rows for nothing.

    Raises:
        InvalidTask: it has ended.
    """
    committed = getattr(tx, "committed", None) is not None  # A snapshot, for reads, has neither.
    if committed or getattr(tx, "rolled_back", False):
        ended = "committed" if committed else "rolled back"
        raise InvalidTask(f"the transaction was {ended} before: enqueue within it")
    return tx


class _Buffering:
    """A transaction of the client, to which tasks are mutations."""

    __slots__ = ("_tx",)
    dialect = _Mutations()
    autocommit = False

    def __init__(self, tx: Any) -> None:
        """Raise `InvalidTask` for one that has ended."""
        self._tx = _open(tx)

    @property
    def snapshot(self) -> bool:
        return _snapshot(self._tx)


class _Transaction(_Buffering):
    __slots__ = ()

    def execute(self, statement: Statement) -> Answer:
        if statement.sql == _BUFFER:
            return _buffer(self._tx, statement.params)
        assert isinstance(statement.params, dict)
        types = dict.fromkeys(statement.params, _STRINGS)
        if statement.fetch:
            rows = list(self._tx.execute_sql(statement.sql, statement.params, types))
            return Answer(len(rows), rows)
        return Answer(self._tx.execute_update(statement.sql, statement.params, types))


def repeatable_read(level: Any, database: Any) -> bool:
    """Tell whether a transaction of this isolation level reads a past snapshot and locks nothing.

    Args:
        level: the transaction's `isolation_level`; if it has none, that of the client's `database`
            applies.
    """
    if not level:
        level = database.default_transaction_options.default_read_write_transaction_options
        level = level.isolation_level
    found = TransactionOptions(isolation_level=level).isolation_level
    return bool(found == TransactionOptions.IsolationLevel.REPEATABLE_READ)


def _snapshot(tx: Any) -> bool:
    return repeatable_read(tx.isolation_level, tx._session._database)


def _buffer(tx: Any, rows: Any) -> Answer:
    """Put rows on the transaction. They are sent with its commit.

    Raises:
        BatchTooLarge: together with the tasks that the transaction has already, Spanner would
            refuse the commit.
    """
    count, size = getattr(tx, _CARRIED, (0, 0))
    if not count:
        # Missing tables are noticed in the commit: nothing asks the server for them before.
        tx.commit = _explained(tx.commit)
    count, size = count + len(rows), size + sum(len(row[5]) * 3 // 4 for row in rows)
    if count > TASKS_MAX or size > BYTES_MAX:
        raise BatchTooLarge(
            f"{count} tasks with {size} bytes in one transaction: on Spanner the limits are"
            f" {TASKS_MAX} and {BYTES_MAX}"
        )
    setattr(tx, _CARRIED, (count, size))
    tx.insert("late_task", COLUMNS, rows)
    return Answer(len(rows))


def _explained(commit: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the `commit` of a transaction, so that it raises `SchemaMismatch` for missing tables."""

    @contextmanager
    def explaining() -> Iterator[None]:
        try:
            yield
        except api.NotFound as error:
            if "late_" in str(error) and "not found" in str(error):
                raise SchemaMismatch(TABLES_MISSING) from error
            raise

    if inspect.iscoroutinefunction(commit):

        async def commit_async(*args: Any, **kwargs: Any) -> Any:
            with explaining():
                return await commit(*args, **kwargs)

        return commit_async

    def commit_sync(*args: Any, **kwargs: Any) -> Any:
        with explaining():
            return commit(*args, **kwargs)

    return commit_sync


def transaction(tx: Transaction) -> _Transaction:
    """Return the adapter of a google-cloud-spanner `Transaction`."""
    return _Transaction(tx)


class _ClientsAsync(_Buffering):
    """The adapter of a `Transaction` of the client's own asyncio part (`AsyncClient`)."""

    __slots__ = ()

    async def execute(self, statement: Statement) -> Answer:
        if statement.sql == _BUFFER:
            return _buffer(self._tx, statement.params)
        assert isinstance(statement.params, dict)
        types = dict.fromkeys(statement.params, _STRINGS)
        if statement.fetch:
            found = await self._tx.execute_sql(statement.sql, statement.params, types)
            rows = [row async for row in found]
            return Answer(len(rows), rows)
        return Answer(await self._tx.execute_update(statement.sql, statement.params, types))


async def clients_async_transaction(tx: Any) -> _ClientsAsync:
    """Return the adapter of a `Transaction` of `AsyncClient`."""
    return _ClientsAsync(tx)


class _AsyncTransaction:
    __slots__ = ("_tx",)
    dialect = _Transaction.dialect
    autocommit = False

    def __init__(self, tx: AsyncSpanner) -> None:
        self._tx = tx

    @property
    def snapshot(self) -> bool:
        return _snapshot(self._tx.raw)

    async def execute(self, statement: Statement) -> Answer:
        return await self._tx.run(lambda: _Transaction(self._tx.raw).execute(statement))


async def async_transaction(tx: AsyncSpanner) -> _AsyncTransaction:
    """Return the adapter of an `AsyncSpanner`."""
    return _AsyncTransaction(tx)
