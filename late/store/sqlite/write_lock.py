"""The write lock of a SQLite file: how our own transactions get it, and how they give it back.

Statements are few here. After each one the driver takes the interpreter's lock back, three times
for a row that is fetched, and beside a busy event loop each time takes as long as a statement.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from late.store.sqlite import statements as sql

T = TypeVar("T")

BUSY_TIMEOUT_S = 5.0
LOCK_PAUSE_S = 0.001


def patiently(call: Callable[[], T]) -> T:
    """Make a call again every millisecond while another connection has the lock that it wants, on
    a connection that does not wait for itself. The call must be one that can be repeated.

    SQLite's own waiting sleeps longer and longer, up to 100 ms, and the lock goes to whoever asks
    at the right instant: beside one producer that never pauses a settlement waited up to 3 s, and
    a heartbeat that waits so long is a death. Asked for every millisecond it came within 0.1 s,
    and the producer lost a fifth of its rate. Ours are few transactions beside theirs.

    Raises:
        sqlite3.OperationalError: SQLITE_BUSY when the lock was not to be had for 5 s.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            return call()
        except sqlite3.OperationalError as error:
            # The primary code: a snapshot that grew old while it waited is one of its kinds.
            busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() >= deadline:
                raise
        time.sleep(LOCK_PAUSE_S)


@contextmanager
def transaction(connection: sqlite3.Connection, *, durable: bool = True) -> Iterator[None]:
    """One write transaction, rolled back on any error.

    Args:
        durable: whether the commit waits for the disk. One that does not survives the death of
            the process all the same, and reaches the disk with the next durable one: enough for
            what a power failure may well take back (a prune that is repeated, the heartbeat of a
            worker on the same dead machine).

    `BEGIN IMMEDIATE`: a deferred transaction that reads and then writes fails at once with
    SQLITE_BUSY_SNAPSHOT, whatever the busy timeout. Once it is begun, nothing is busy any more.

    Raises:
        sqlite3.OperationalError: SQLITE_BUSY, when the lock is not to be had: see `patiently`.
    """
    if not durable:
        connection.execute("pragma synchronous = normal")
    try:
        connection.execute("begin immediate")
        try:
            yield
            connection.execute("commit")
        except BaseException:
            # A full disk or an input/output error may have ended the transaction already.
            if connection.in_transaction:
                connection.execute("rollback")
            raise
    finally:
        if not durable:
            connection.execute("pragma synchronous = full")


def clock(connection: sqlite3.Connection) -> int:
    """The database's clock, microseconds since the Unix epoch. Read once, at the head of a
    transaction, so that everything written by one transaction bears one time."""
    return int(connection.execute(sql.NOW).fetchone()[0])
