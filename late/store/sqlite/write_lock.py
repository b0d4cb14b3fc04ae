"""The write lock of a SQLite file: our transactions take it and give it back.

There are few statements here. After each one the driver takes the interpreter's lock again, three
times for a row that is fetched, and while the event loop is busy each time takes as long as a
statement.
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
    """Repeat a call every millisecond while another connection has the lock that it needs. The
    connection itself must not wait, and the call must be repeatable.

    SQLite's own waiting sleeps longer and longer, up to 100 ms, and the lock goes to the first
    connection that asks at the right moment: beside one producer that never pauses a settlement
    waited up to 3 s, and a worker whose heartbeat waits that long counts as dead. With a try every
    millisecond it took at most 0.1 s, and the producer lost a fifth of its rate. Our transactions
    are few beside the producers'.

    Raises:
        sqlite3.OperationalError: SQLITE_BUSY if the lock was not free for 5 s.
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
    """Run one write transaction, rolled back on any error.

    Args:
        durable: the commit waits for the disk. Without it the commit still survives the death of
            the process, and reaches the disk with the next durable one. That is enough for writes
            that a power failure may undo (a prune that is repeated, the heartbeat of a worker on
            the same machine).

    `BEGIN IMMEDIATE`: a deferred transaction that reads and then writes fails at once with
    SQLITE_BUSY_SNAPSHOT, whatever the busy timeout is. Once it has begun, no lock is missing.

    Raises:
        sqlite3.OperationalError: SQLITE_BUSY if the lock is not free: see `patiently`.
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
    """Read the database's clock, in microseconds since the Unix epoch: once, at the beginning of a
    transaction, so that all of its rows have the same time."""
    return int(connection.execute(sql.NOW).fetchone()[0])
