"""Steps of statements, run through whatever transaction a caller has."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from late.errors import InvalidTask, SchemaMismatch
from late.outbox.adapters import Async, Sync, find
from late.outbox.base import AsyncTransaction, Steps, SyncTransaction, drive, drive_async
from late.outbox.steps import Target

T = TypeVar("T")


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


def _explain(into: Target, error: Exception) -> None:
    if into.dialect.is_schema_error(error):
        raise SchemaMismatch(
            "the tables of late are missing in this database, or of another version:"
            " run `late migrate URL`"
        ) from error
