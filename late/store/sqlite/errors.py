"""The map from the errors of `sqlite3` to ours."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from late.errors import (
    SchemaMismatch,
    StoreClosed,
    StoreError,
    StoreUnavailable,
    TransactionAborted,
)
from late.schema.held_files import READ_ONLY

BY_CODE: dict[int, type[StoreError]] = {
    # Another connection holds the lock: our transaction was rolled back, a repeat may succeed.
    sqlite3.SQLITE_BUSY: TransactionAborted,
    sqlite3.SQLITE_LOCKED: TransactionAborted,
    sqlite3.SQLITE_SCHEMA: TransactionAborted,
    sqlite3.SQLITE_ABORT: TransactionAborted,
    # A fault of the machine: disk full, input/output, memory. It may go away, and the outcome of a
    # commit that met it is unknown.
    sqlite3.SQLITE_IOERR: StoreUnavailable,
    sqlite3.SQLITE_FULL: StoreUnavailable,
    sqlite3.SQLITE_CANTOPEN: StoreUnavailable,
    sqlite3.SQLITE_PROTOCOL: StoreUnavailable,
    sqlite3.SQLITE_NOMEM: StoreUnavailable,
    sqlite3.SQLITE_INTERRUPT: StoreUnavailable,
    sqlite3.SQLITE_READONLY: StoreUnavailable,
}
"""Errors by primary result code. The others (corrupt file, constraint, misuse) do not go away by
themselves and become a plain `StoreError`."""


def translate(error: Exception) -> StoreError:
    """Return our error for one of `sqlite3`; the caller chains it with `from`."""
    text = str(error)
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        # Errors that the module itself raises have no code.
        if isinstance(error, sqlite3.ProgrammingError) and "closed" in text:
            return StoreClosed("the connection is closed")
        return StoreError(f"sqlite: {text}")
    name = getattr(error, "sqlite_errorname", code)
    if code == sqlite3.SQLITE_ERROR and text.startswith(("no such table", "no such column")):
        return SchemaMismatch(f"{text}: run `late migrate URL`")
    advice = READ_ONLY if code & 0xFF == sqlite3.SQLITE_READONLY else ""
    answer = BY_CODE.get(code & 0xFF, StoreError)(f"sqlite: {text} ({name}){advice}")
    answer.answered = True
    return answer


@contextmanager
def translated() -> Iterator[None]:
    """Raise only our errors. The driver raises `OverflowError` for an integer above 64 bits."""
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning, OverflowError) as error:
        raise translate(error) from error
