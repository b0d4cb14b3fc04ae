"""Run the steps of an insert, or of a claim, through the transaction that a caller has.

A plain task, and one with an ordering key alone, is one statement and needs no steps. After a wait
for the disk each call of Python is a cold one, a microsecond of the caller's transaction; a
generator and what drives it are nine.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from late.errors import InvalidTask, SchemaMismatch
from late.model.task import NewTask, TaskId
from late.outbox.adapters.lookup import Async, Opener, Sync, find
from late.outbox.base import Answer, AsyncTransaction, Statement, Steps, SyncTransaction
from late.outbox.insert import Again, Target, insert, miscounted
from late.outbox.pending_wakeups import note

T = TypeVar("T")


def write(
    tx: Any, rows: Sequence[NewTask], again: Again | None = None
) -> list[TaskId] | Awaitable[list[TaskId]]:
    """Write checked `rows` through `tx`, sync or async.

    Args:
        again: makes the rows anew where the lane was resized; None leaves them where they are.

    Returns:
        Their ids in order; an awaitable of them where `tx` is async. Cancelled, an async
        transaction must be rolled back.

    Raises:
        InvalidTask: `tx` is of no accepted type; unique keys outside a transaction.
        KeyConflict: a unique key is taken by a task with another body; nothing was written.
        SchemaMismatch: the tables are missing or of another version.
    """
    opener, asynchronous = find(tx)
    if asynchronous:
        return _write_async(tx, opener, rows, again)
    into: Sync = opener(tx)
    dialect = into.dialect
    try:
        row = rows[0] if len(rows) == 1 else None
        layout = None if row is None or again is None else row.layout
        if row is not None and row.unique_key is None and (layout is None or dialect.fences):
            answer = into.execute(dialect.tasks(rows, layout))
            if layout is None or answer.rowcount == 1:
                task_ids = [row.task_id]
            elif answer.rowcount:
                raise miscounted(1, answer)
            else:  # the lane was resized: nothing was written
                task_ids = drive(insert(rows, into, again), into.execute)
        else:
            task_ids = drive(insert(rows, into, again), into.execute)
    except Exception as error:
        _explain(into, error)
        raise
    note(tx, task_ids)
    return task_ids


async def _write_async(
    tx: AsyncTransaction, opener: Opener, rows: Sequence[NewTask], again: Again | None
) -> list[TaskId]:
    task_ids = await _run_async(tx, opener, partial(insert, rows, again=again))
    note(tx, task_ids)
    return task_ids


def run(tx: SyncTransaction, make: Callable[[Target], Steps[T]]) -> T:
    """Run the steps that `make` gives for `tx`.

    Raises:
        InvalidTask: `tx` is of no accepted type, or is async.
        SchemaMismatch: the tables are missing or of another version.
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
    """Run the steps that `make` gives for an async `tx`. Cancelled, it must be rolled back.

    Raises:
        InvalidTask: `tx` is of no accepted type, or is not async.
        SchemaMismatch: the tables are missing or of another version.
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
            statement = steps.send(await into.execute(statement))
    except StopIteration as end:
        result: T = end.value
        return result
    except Exception as error:
        _explain(into, error)
        raise


def drive(steps: Steps[T], execute: Callable[[Statement], Answer]) -> T:
    """Run `steps` to their end; an error of the driver leaves through here unchanged."""
    try:
        statement = next(steps)
        while True:
            statement = steps.send(execute(statement))
    except StopIteration as end:
        result: T = end.value
        return result


def _explain(into: Target, error: Exception) -> None:
    if into.dialect.is_schema_error(error):
        raise SchemaMismatch(
            "the tables of late are missing in this database, or of another version:"
            " run `late migrate URL`"
        ) from error
