"""Steps of statements, run through whatever transaction a caller has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from late.errors import InvalidTask, SchemaMismatch
from late.model.task import NewTask
from late.outbox.adapters.lookup import Async, Sync, find
from late.outbox.base import AsyncTransaction, Steps, SyncTransaction, drive, drive_async
from late.outbox.insert import Target

T = TypeVar("T")


def run(tx: SyncTransaction, make: Callable[[Target], Steps[T]]) -> T:
    """Run the steps that `make` gives for `tx`.

    Raises:
        InvalidTask: `tx` is of no accepted type, or is async.
        SchemaMismatch: the tables are missing or of another version.
    """
    into = _opened(tx)
    try:
        return drive(make(into), into.execute)
    except Exception as error:
        _explain(into, error)
        raise


def write_one(tx: SyncTransaction, rows: Sequence[NewTask]) -> None:
    """Insert the one row of `rows`, which asks for nothing: a statement, and no steps.

    After a wait for the disk each call of Python is a cold one, a microsecond of the caller's
    transaction; the generator, its driver and what is made for them are nine.

    Raises:
        as `run`.
    """
    into = _opened(tx)
    try:
        into.execute(into.dialect.tasks(rows))
    except Exception as error:
        _explain(into, error)
        raise


async def run_async(tx: AsyncTransaction, make: Callable[[Target], Steps[T]]) -> T:
    """`run` for an async transaction. Cancelled, the transaction must be rolled back."""
    opener, asynchronous = find(tx)
    if not asynchronous:
        raise InvalidTask(f"{type(tx).__name__} is not async: there is nothing to await")
    into: Async = await opener(tx)
    try:
        return await drive_async(make(into), into.execute)
    except Exception as error:
        _explain(into, error)
        raise


def _opened(tx: SyncTransaction) -> Sync:
    opener, asynchronous = find(tx)
    if asynchronous:
        raise InvalidTask(f"{type(tx).__name__} is async: its answer must be awaited")
    into: Sync = opener(tx)
    return into


def _explain(into: Target, error: Exception) -> None:
    if into.dialect.is_schema_error(error):
        raise SchemaMismatch(
            "the tables of late are missing in this database, or of another version:"
            " run `late migrate URL`"
        ) from error
