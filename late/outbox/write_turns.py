"""Connections of one process that write to a SQLite file one after the other.

SQLite lets one connection write at a time. One that waits for that sleeps longer and longer, up to
100 ms, so of sixteen handlers that want to write most slept while the file was free. Here one
connection of the process at a time asks the file, and the next one is woken when it has ended.

Other connections, of other processes or of the caller, know nothing of this. So whoever waits asks
the file itself now and then: the one before may be through with it and go on with something else.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from pathlib import Path
from time import monotonic, sleep

BUSY_TIMEOUT_S = 5.0
HANDLER_TIMEOUT_S = 30.0
"""So long an import of the service may hold the lock, and no handler fails for it. A failure costs
an attempt, because the cause may be the handler's own transaction, which would never end."""
ASK_S = 0.1
"""A connection that waits for another one of the process asks the file after each such time."""
RUN_S = 0.020
"""After so long the connections of the process leave the file to others, for `PAUSE_S`: these look
every millisecond, or more rarely."""
PAUSE_S = 0.002


class _Mutex:
    """Held by the one connection of the process that writes, or is about to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._run_began = self._ended = 0.0
        self.thread = 0
        """The identity of the thread that holds it."""

    def acquire(self, timeout_s: float) -> bool:
        if not self._lock.acquire(timeout=timeout_s):
            return False
        now = monotonic()
        if now - self._ended > PAUSE_S:
            self._run_began = now
        elif now - self._run_began > RUN_S:
            sleep(PAUSE_S)
            self._run_began = monotonic()
        self.thread = threading.get_ident()
        return True

    def release(self) -> None:
        self.thread, self._ended = 0, monotonic()
        self._lock.release()


_mutexes: dict[Path, _Mutex] = {}
os.register_at_fork(after_in_child=_mutexes.clear)  # Its threads that hold them are not there.


class TurnConnection(sqlite3.Connection):
    """A connection whose first transaction is one of the turns. One thread at a time uses it."""

    _mutex: _Mutex | None = None

    def begin(self, path: Path, wait_s: float) -> None:
        """Begin a transaction that may write to the file at `path`.

        Args:
            wait_s: the connection's own time-out too.

        Raises:
            sqlite3.OperationalError: the file was not free for `wait_s`, or this thread has such a
                transaction open already.
        """
        # The schema is read here, beside the transaction of another one.
        self.execute("select 1 from sqlite_master limit 0")
        mutex = _mutexes.setdefault(path, _Mutex())
        if mutex.acquire(0):
            self._mutex = mutex
            self.execute("begin immediate")
            return
        waits_for_itself = mutex.thread == threading.get_ident()
        until = monotonic() + (0.0 if waits_for_itself else wait_s)
        self.execute("pragma busy_timeout = 0")
        while not mutex.acquire(ASK_S):
            try:
                self.execute("begin immediate")
                break
            except sqlite3.OperationalError:
                if monotonic() >= until:
                    raise
        else:
            self._mutex = mutex
            self._wait_for_file(until - monotonic())
            self.execute("begin immediate")
        self._wait_for_file(wait_s)

    def commit(self) -> None:
        super().commit()
        self._end_turn()

    def rollback(self) -> None:
        super().rollback()
        self._end_turn()

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._end_turn()

    def _wait_for_file(self, for_s: float) -> None:
        self.execute(f"pragma busy_timeout = {max(0, round(for_s * 1000))}")

    def _end_turn(self) -> None:
        mutex, self._mutex = self._mutex, None
        if mutex is not None:
            mutex.release()
