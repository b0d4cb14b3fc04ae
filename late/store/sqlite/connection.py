"""The one thread that owns the connection of a SQLite store.

It runs calls, which are closures, one after the other; the event loop never touches the driver. A
cancelled call that still waits never runs; one that runs is finished and its result dropped, so
that no transaction stays open.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from late.errors import StoreClosed
from late.store.sqlite.errors import translated
from late.store.sqlite.write_lock import patiently

T = TypeVar("T")


class ConnectionThread:
    """Safe to call concurrently, from one event loop after another, but not across a fork.

    Every call may be repeated from its beginning while another process holds the write lock: see
    `write_lock.patiently`.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="late-sqlite")
        self._pid = os.getpid()
        self._closed = False
        self._connection: sqlite3.Connection | None = None

    async def open(self, connect: Callable[[], sqlite3.Connection]) -> None:
        """Make the connection with `connect`, if there is none yet."""

        def opened() -> None:
            if self._connection is None:
                self._connection = patiently(connect)

        await self.run(opened)

    async def run(self, call: Callable[[], T]) -> T:
        """Run `call` in the thread.

        Raises:
            StoreClosed: after `close`, or in a process that was forked from this one.
        """
        self._check()

        def run() -> T:
            with translated():
                return call()

        return await asyncio.wrap_future(self._thread.submit(run))

    async def on_connection(self, call: Callable[[sqlite3.Connection], T]) -> T:
        """Run `call` with the connection in the thread.

        Raises:
            StoreClosed: as `run`, or before `open`.
        """
        return await self.run(lambda: self._patiently(call))

    async def in_parts(self, part: Callable[[sqlite3.Connection], bool]) -> None:
        """Run `part` as `on_connection` does, again and again until it returns False; other calls
        have their turn in between. The thread goes on by itself: through a busy event loop each
        part would take twice as long."""
        self._check()
        ended: Future[None] = Future()
        self._submit(partial(self._step, part, ended))
        await asyncio.wrap_future(ended)

    def _step(self, part: Callable[[sqlite3.Connection], bool], ended: Future[None]) -> None:
        # A method, because a closure that submits itself is a cycle that keeps all that was read.
        if ended.cancelled():
            return
        try:
            with translated():
                more = self._patiently(part)
            if more:
                self._submit(partial(self._step, part, ended))
                return
        except BaseException as error:  # as an executor does, for the caller that waits
            if ended.set_running_or_notify_cancel():
                ended.set_exception(error)
        else:
            if ended.set_running_or_notify_cancel():
                ended.set_result(None)

    async def close(self) -> None:
        """Close the connection after the calls before it. Twice, or before `open`, is fine."""
        if self._closed:
            return
        self._closed = True
        if os.getpid() == self._pid:
            closing = self._thread.submit(self._close)
            self._thread.shutdown(wait=False)
            # Shielded: a cancelled close still closes.
            await asyncio.shield(asyncio.wrap_future(closing))

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _patiently(self, call: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._connection
        if connection is None and self._closed:
            raise StoreClosed(f"{self._url} was closed")
        if connection is None:
            raise StoreClosed(f"{self._url} is not open: call `await store.open()` first")
        return patiently(lambda: call(connection))

    def _check(self) -> None:
        if self._closed:
            raise StoreClosed(f"{self._url} was closed")
        if os.getpid() != self._pid:
            raise StoreClosed(f"{self._url} was opened before a fork: open it in this process")

    def _submit(self, step: Callable[[], None]) -> None:
        try:
            self._thread.submit(step)
        except RuntimeError as error:  # shut down between two parts
            raise StoreClosed(f"{self._url} was closed") from error
