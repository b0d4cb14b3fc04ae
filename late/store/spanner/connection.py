"""Calls to Spanner from a coroutine: threads, deadlines, and one place where errors are mapped.

The client is synchronous and its calls wait for the network, so each runs in a thread of the
store's own pool and the event loop never waits. The thread of a cancelled call finishes it and
drops its result.

**Every call has a deadline**, also where the client has none: it restarts a broken stream for
ever and repeats a commit for an hour. `late.schema.spanner.deadlines` gives every request of the
thread the rest of the call's time.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from google.api_core import exceptions as api

from late.errors import StoreClosed, StoreUnavailable
from late.schema.spanner.deadlines import CALL_TIMEOUT_S, bind, left, start
from late.schema.spanner.errors import translated
from late.store.spanner.client import Role, close_database, open_database, turn

T = TypeVar("T")

THREADS = 16
RETRY_DELAY_S = 0.015
"""The pause after ABORTED, if the server does not name one (the emulator never does)."""


class SpannerClients:
    """The two clients of a store, each opened when it is first needed.

    Args:
        url: as `client.place_of` reads it.
        directed: the replicas that answer reads in the background, that is the tail.
    """

    def __init__(self, url: str, directed: dict[str, Any] | None = None) -> None:
        self._url = url
        self._directed: dict[Role, dict[str, Any] | None] = {"background": directed}
        self._pid = os.getpid()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="late-spanner")
        self._opening = threading.Lock()
        self._databases: dict[Role, Any] = {}
        self._closed = False
        self.losses = 0
        """The number of times that the server has lost our sessions."""

    def require_open(self) -> None:
        """Raise `StoreClosed` after `close`, or in a child process."""
        if self._closed:
            raise StoreClosed(f"{self._url} was closed")
        if os.getpid() != self._pid:
            raise StoreClosed(f"{self._url} was opened before a fork: open it in this process")

    async def call(self, work: Callable[..., T], *args: Any, role: Role = "foreground") -> T:
        """Run `work(database, *args)` in a thread.

        Raises:
            StoreError: the client's error, mapped; `StoreClosed`.
        """
        self.require_open()
        running = self._threads.submit(self._run, work, args, role)
        try:
            # The thread's own deadline comes first; this one is for a client that hangs.
            async with asyncio.timeout(CALL_TIMEOUT_S + 2):
                return await asyncio.wrap_future(running)
        except TimeoutError as error:
            raise StoreUnavailable(f"no answer within {CALL_TIMEOUT_S + 2:.0f} s") from error

    async def write(self, work: Callable[..., T], *args: Any, role: Role = "foreground") -> T:
        """Run `work(transaction, *args)` in a read-write transaction and commit it.

        After ABORTED the whole transaction is repeated with the delay that the server names, until
        the deadline: in one session a repeat keeps its place in the queue for the same locks.
        """
        return await self.call(self._transact, work, args, role=role)

    def _transact(self, database: Any, work: Callable[..., T], args: tuple[Any, ...]) -> T:
        tag = f"{database.late_tag}:{work.__name__}"

        def run() -> T:
            result: T = database.run_in_transaction(
                _tidy,
                work,
                *args,
                timeout_secs=left(),
                default_retry_delay=RETRY_DELAY_S,
                transaction_tag=tag,
            )
            return result

        with turn(self._url):
            try:
                return run()
            except api.AlreadyExists:
                # A row that was not there when `work` looked: it looks again and decides anew.
                return run()

    def _run(self, work: Callable[..., T], args: tuple[Any, ...], role: Role) -> T:
        start()
        with translated():
            database = self._database(role)
            try:
                return work(database, *args)
            except api.NotFound as error:
                if "Session not found" in str(error):
                    self._forget(role, database)
                raise

    def _database(self, role: Role) -> Any:
        with self._opening:
            if self._closed:
                raise StoreClosed(f"{self._url} was closed")
            if role not in self._databases:
                database: Any = open_database(
                    self._url, priority=role, directed=self._directed.get(role)
                )
                bind(database.spanner_api)
                self._databases[role] = database
            return self._databases[role]

    def _forget(self, role: Role, database: Any) -> None:
        """The server has lost its sessions (an emulator that was restarted): make new ones.

        The old client is not closed: other threads may be in a call of it.
        """
        with self._opening:
            if self._databases.get(role) is database:
                del self._databases[role]
                self.losses += 1

    async def close(self) -> None:
        """Close the clients. Calling it twice is fine; calls in flight end with an error."""
        if self._closed:
            return
        self._closed = True
        if os.getpid() != self._pid:
            return
        self._threads.shutdown(wait=False)
        # Not in our own threads: all of them may be waiting for a server that is gone.
        await asyncio.shield(asyncio.to_thread(self._close))

    def _close(self) -> None:
        start(1.0)
        with self._opening:
            databases = list(self._databases.values())
            self._databases.clear()
        for database in databases:
            database.late_channels.unwatch()
        for database in databases:
            try:
                close_database(database)
            except api.GoogleAPIError:
                continue  # the server is gone, and its sessions with it


def _tidy(transaction: Any, work: Callable[..., T], *args: Any) -> T:
    """Call `work`, and give its locks back if Spanner refuses a step of it.

    The client rolls back for other errors only. A repeat of the call would wait for these locks
    until Spanner ends the transaction, 10 s after its last request.
    """
    try:
        return work(transaction, *args)
    except api.Aborted:
        raise
    except api.GoogleAPICallError:
        if transaction._transaction_id is not None:
            with suppress(api.GoogleAPICallError):
                transaction.rollback()
        raise
