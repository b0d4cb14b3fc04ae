"""Calls to Spanner from a coroutine: threads, deadlines, and one place where errors are mapped.

The client is synchronous and its calls take as long as a network does, so each runs in a thread
of the store's own pool and the event loop never waits. A cancelled call is finished by its thread
and its result dropped.

**Every call has a deadline**, also where the client has none: it restarts a broken stream for
ever and repeats a commit for an hour. `_Bounded` puts what is left of the call's time on every
request of its thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from google.api_core import exceptions as api
from google.api_core.retry import Retry, if_exception_type

from late.errors import StoreClosed, StoreUnavailable
from late.schema.spanner_errors import translated
from late.store.spanner_client import Role, close_database, open_database, turn

T = TypeVar("T")

CALL_TIMEOUT_S = 10.0
"""Until a call gives up. Whoever waits for it has a lease that lives for seconds."""
THREADS = 16
RETRY_DELAY_S = 0.015
"""After ABORTED, where the server does not say how long to wait (the emulator never does)."""
_UNAVAILABLE_PAUSE_S = 0.05

_deadline: contextvars.ContextVar[float] = contextvars.ContextVar("late_spanner_deadline")


class Link:
    """The two clients of a store, each opened when it is first needed.

    Args:
        url: as `spanner_client.place_of` reads it.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._pid = os.getpid()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="late-spanner")
        self._opening = threading.Lock()
        self._databases: dict[Role, Any] = {}
        self._closed = False

    async def call(self, work: Callable[..., T], *args: Any, role: Role = "foreground") -> T:
        """Run `work(database, *args)` in a thread.

        Raises:
            StoreError: the client's error, mapped; `StoreClosed`.
        """
        if self._closed:
            raise StoreClosed(f"{self._url} was closed")
        if os.getpid() != self._pid:
            raise StoreClosed(f"{self._url} was opened before a fork: open it in this process")
        running = self._threads.submit(self._run, work, args, role)
        try:
            # The thread's own deadline comes first; this one is for a client that hangs.
            async with asyncio.timeout(CALL_TIMEOUT_S + 2):
                return await asyncio.wrap_future(running)
        except TimeoutError as error:
            raise StoreUnavailable(f"no answer within {CALL_TIMEOUT_S + 2:.0f} s") from error

    async def write(self, work: Callable[..., T], *args: Any) -> T:
        """Run `work(transaction, *args)` in a read-write transaction and commit it.

        ABORTED is repeated as a whole after the server's own delay, until the deadline: within
        one session a repeat keeps its place among those that wait for the same locks.
        """
        return await self.call(self._transact, work, args)

    def _transact(self, database: Any, work: Callable[..., T], args: tuple[Any, ...]) -> T:
        with turn(self._url):
            result: T = database.run_in_transaction(
                work, *args, timeout_secs=_left(), default_retry_delay=RETRY_DELAY_S
            )
            return result

    def _run(self, work: Callable[..., T], args: tuple[Any, ...], role: Role) -> T:
        _deadline.set(time.monotonic() + CALL_TIMEOUT_S)
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
                database: Any = open_database(self._url, priority=role)
                _bound(database.spanner_api)
                self._databases[role] = database
            return self._databases[role]

    def _forget(self, role: Role, database: Any) -> None:
        """The server has lost its sessions (an emulator that was restarted): make new ones.

        The old client is not closed: other threads may be in a call of it.
        """
        with self._opening:
            if self._databases.get(role) is database:
                del self._databases[role]

    async def close(self) -> None:
        """Close the clients. Calling it twice is fine; calls in flight end with an error."""
        if self._closed:
            return
        self._closed = True
        if os.getpid() != self._pid:
            return
        closing = self._threads.submit(self._close)
        self._threads.shutdown(wait=False)
        await asyncio.shield(asyncio.wrap_future(closing))

    def _close(self) -> None:
        _deadline.set(time.monotonic() + 1.0)
        with self._opening:
            databases = list(self._databases.values())
            self._databases.clear()
        for database in databases:
            try:
                close_database(database)
            except api.GoogleAPIError:
                continue  # the server is gone, and its sessions with it


def _left() -> float:
    """Seconds that this thread's call has left; much, where nobody has set a deadline."""
    return max(0.001, _deadline.get(time.monotonic() + CALL_TIMEOUT_S) - time.monotonic())


_STREAMS = ("streaming_read", "execute_streaming_sql")
_UNARY = (
    "begin_transaction", "commit", "rollback", "create_session", "batch_create_sessions",
    "delete_session", "execute_sql", "execute_batch_dml",
)  # fmt: skip


def _bound(spanner_api: Any) -> None:
    """Give every request of this client what is left of its call's time."""
    for name in _UNARY:
        setattr(spanner_api, name, partial(_unary, getattr(spanner_api, name)))
    for name in _STREAMS:
        setattr(spanner_api, name, _Stream(getattr(spanner_api, name)))


def _unary(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    left = _left()
    # Repeating a commit is safe: the same transaction id commits once.
    kwargs["retry"] = Retry(
        if_exception_type(api.ServiceUnavailable),
        initial=_UNAVAILABLE_PAUSE_S,
        maximum=1.0,
        timeout=left,
    )
    kwargs["timeout"] = left
    return method(*args, **kwargs)


class _Stream:
    """A stream that ends with the call: the client itself restarts it without a pause or an end."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        self._last = threading.local()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        request = kwargs.get("request")
        if request is not None and getattr(self._last, "request", None) is request:
            time.sleep(_UNAVAILABLE_PAUSE_S)
        self._last.request = request
        left = _left()
        if left <= 0.001:
            raise api.DeadlineExceeded("Spanner is unavailable")
        kwargs["timeout"] = left
        kwargs["retry"] = None
        return self._method(*args, **kwargs)
