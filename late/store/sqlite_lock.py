"""The write lock of a SQLite file: how our own transactions get it, and how they give it back."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager

from late.store import sqlite_sql as sql

BUSY_TIMEOUT_S = 5.0
LOCK_PAUSE_S = 0.001


@contextmanager
def transaction(connection: sqlite3.Connection, *, durable: bool = True) -> Iterator[int]:
    """One write transaction; yields the database's clock at its head. Rolled back on any error.

    Args:
        durable: whether the commit waits for the disk. One that does not survives the death of
            the process all the same, and reaches the disk with the next durable one: enough for
            what a power failure may well take back (a prune that is repeated, the heartbeat of a
            worker on the same dead machine).

    `BEGIN IMMEDIATE`: a deferred transaction that reads and then writes fails at once with
    SQLITE_BUSY_SNAPSHOT, whatever the busy timeout.

    Raises:
        sqlite3.OperationalError: SQLITE_BUSY when the lock was not to be had for 5 s.
    """
    if not durable:
        connection.execute("pragma synchronous = normal")
    try:
        with _locked(connection) as now_us:
            yield now_us
    finally:
        if not durable:
            connection.execute("pragma synchronous = full")


@contextmanager
def _locked(connection: sqlite3.Connection) -> Iterator[int]:
    _lock(connection)
    try:
        (now_us,) = connection.execute(sql.NOW).fetchone()
        yield now_us
        connection.execute("commit")
    except BaseException:
        # A full disk or an input/output error may have ended the transaction already.
        if connection.in_transaction:
            connection.execute("rollback")
        raise


def _lock(connection: sqlite3.Connection) -> None:
    """Wait for the write lock by asking every millisecond.

    SQLite's own waiting sleeps longer and longer, up to 100 ms, and the lock goes to whoever asks
    at the right instant: beside one producer that never pauses a settlement waited up to 3 s, and
    a heartbeat that waits so long is a death. Asked for every millisecond it came within 0.1 s,
    and the producer lost a fifth of its rate. Ours are few transactions beside theirs.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    connection.execute("pragma busy_timeout = 0")
    try:
        while True:
            try:
                connection.execute("begin immediate")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                    raise
            time.sleep(LOCK_PAUSE_S)
    finally:
        connection.execute(f"pragma busy_timeout = {round(BUSY_TIMEOUT_S * 1000)}")
