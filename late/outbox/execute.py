"""Run the steps of an insert, or of a claim, through the caller's transaction.

A plain task, or one with only an ordering key, is one statement and needs no steps. That saves the
caller's transaction some time: after a wait for the disk the caches are cold, and each call in
Python takes a microsecond. A generator and its driver are nine calls.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from late.errors import InvalidTask, SchemaMismatch
from late.model.task import NewTask, TaskId
from late.outbox.adapters.lookup import Async, Opener, Sync, find
from late.outbox.admission import Asked, at_once
from late.outbox.base import (
    TABLES_MISSING,
    Answer,
    AsyncTransaction,
    Statement,
    Steps,
    SyncTransaction,
)
from late.outbox.insert import Again, Target, insert, miscounted
from late.outbox.pending_wakeups import note

T = TypeVar("T")

NO_TRANSACTION = (
    "no transaction is open and the connection is in autocommit mode, so the task would commit by"
    " itself, whatever becomes of your own writes: begin a transaction before (Django:"
    " `transaction.atomic()`; psycopg, asyncpg: `connection.transaction()`; sqlite3:"
    " `execute('begin')`;"
    ' SQLAlchemy: leave out isolation_level="AUTOCOMMIT"), or say `autocommit=True` for a task'
    " that stands alone"
)


def write(
    tx: Any,
    rows: Sequence[NewTask],
    again: Again | None = None,
    asked: Asked | None = None,
    *,
    autocommit: bool = False,
) -> list[TaskId] | Awaitable[list[TaskId]]:
    """Write checked `rows` through `tx`, which is sync or async.

    Args:
        again: makes new rows if the lane was resized. With None the rows keep their shards.
        asked: what must be open for these rows. With None they are always written.
        autocommit: let the rows commit by themselves if no transaction is open.

    Returns:
        Their ids in order, or an awaitable of them if `tx` is async. After a cancellation an async
        transaction must be rolled back.

    Raises:
        InvalidTask: the type of `tx` is not accepted; or it is in autocommit mode with no open
            transaction, and `autocommit` is False or there are unique keys.
        KeyConflict: a task with another body holds a unique key; nothing was written.
        QueueFull: something of `asked` takes no tasks; nothing was written.
        SchemaMismatch: the tables are missing or have another version.
    """
    opener, asynchronous = find(tx)
    if asynchronous:
        return _write_async(tx, opener, rows, again, asked, autocommit)
    into: Sync = opener(tx)
    if not autocommit and into.autocommit:
        raise InvalidTask(NO_TRANSACTION)
    dialect = into.dialect
    try:
        row = rows[0] if len(rows) == 1 else None
        fence = None if row is None or again is None else row.fence
        names = at_once(asked, dialect)
        if (
            row is not None
            and row.unique_key is None
            and (fence is None or dialect.fences)
            and names is not None
        ):
            answer = into.execute(dialect.tasks(rows, fence, names))
            if answer.rowcount == 1 or (fence is None and not names):
                task_ids = [row.task_id]
            elif answer.rowcount:
                raise miscounted(1, answer)
            else:  # The queue is full, or the lane was resized, so nothing was written.
                task_ids = drive(insert(rows, into, again, asked), into.execute)
        else:
            task_ids = drive(insert(rows, into, again, asked), into.execute)
    except Exception as error:
        _explain(into, error)
        raise
    note(tx, task_ids)
    return task_ids


async def _write_async(
    tx: AsyncTransaction,
    opener: Opener,
    rows: Sequence[NewTask],
    again: Again | None,
    asked: Asked | None,
    autocommit: bool,
) -> list[TaskId]:
    def steps(into: Target) -> Steps[list[TaskId]]:
        return insert(rows, into, again, asked)

    return await _noted(tx, opener, steps, autocommit)


def write_by(
    tx: Any, steps: Callable[[Target], Steps[list[TaskId]]], *, autocommit: bool
) -> list[TaskId] | Awaitable[list[TaskId]]:
    """Write rows that `steps` make from what they read in `tx`; see `write`."""
    opener, asynchronous = find(tx)
    if asynchronous:
        return _noted(tx, opener, steps, autocommit)
    if not autocommit and opener(tx).autocommit:
        raise InvalidTask(NO_TRANSACTION)
    task_ids = run(tx, steps)
    note(tx, task_ids)
    return task_ids


async def _noted(
    tx: AsyncTransaction,
    opener: Opener,
    make: Callable[[Target], Steps[list[TaskId]]],
    autocommit: bool,
) -> list[TaskId]:
    def steps(into: Target) -> Steps[list[TaskId]]:
        if not autocommit and into.autocommit:
            raise InvalidTask(NO_TRANSACTION)
        return make(into)

    task_ids = await _run_async(tx, opener, steps)
    note(tx, task_ids)
    return task_ids


def check(tx: SyncTransaction) -> None:
    """Refuse a sync `tx` as `write` does, if what is written through it would commit by itself.

    Raises:
        InvalidTask: `tx` is in autocommit mode, and no transaction is open.
    """
    opener, _ = find(tx)
    if opener(tx).autocommit:
        raise InvalidTask(NO_TRANSACTION)


async def check_async(tx: AsyncTransaction) -> None:
    """Refuse an async `tx`; see `check`."""
    opener, _ = find(tx)
    if (await opener(tx)).autocommit:
        raise InvalidTask(NO_TRANSACTION)


def run(tx: SyncTransaction, make: Callable[[Target], Steps[T]]) -> T:
    """Run the steps that `make` returns for `tx`.

    Raises:
        InvalidTask: the type of `tx` is not accepted, or it is async.
        SchemaMismatch: the tables are missing or have another version.
    """
    opener, asynchronous = find(tx)
    if asynchronous:
        raise InvalidTask(f"{type(tx).__name__} is async: its answer must be awaited")
    into: Sync = opener(tx)
    try:
        return drive(make(into), into.execute)
    except Exception as error:
        _explain(into, error)
        raise


async def run_async(tx: AsyncTransaction, make: Callable[[Target], Steps[T]]) -> T:
    """Run the steps that `make` returns for an async `tx`. After a cancellation roll it back.

    Raises:
        InvalidTask: the type of `tx` is not accepted, or it is not async.
        SchemaMismatch: the tables are missing or have another version.
    """
    opener, asynchronous = find(tx)
    if not asynchronous:
        raise InvalidTask(f"{type(tx).__name__} is not async: there is nothing to await")
    return await _run_async(tx, opener, make)


async def _run_async(tx: AsyncTransaction, opener: Opener, make: Callable[[Target], Steps[T]]) -> T:
    into: Async = await opener(tx)
    steps = make(into)
    try:
        statement = next(steps)
        while True:
            try:
                answer = await into.execute(statement)
            except Exception as error:
                statement = steps.throw(error)
            else:
                statement = steps.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result
    except Exception as error:
        _explain(into, error)
        raise


def drive(steps: Steps[T], execute: Callable[[Statement], Answer]) -> T:
    """Run `steps` to their end, and return their result.

    The steps get the errors of the driver. What they do not take stays unchanged.
    """
    try:
        statement = next(steps)
        while True:
            try:
                answer = execute(statement)
            except Exception as error:
                statement = steps.throw(error)
            else:
                statement = steps.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


def _explain(into: Target, error: Exception) -> None:
    if into.dialect.is_schema_error(error):
        raise SchemaMismatch(TABLES_MISSING) from error
