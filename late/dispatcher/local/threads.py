"""Threads for sync handlers.

Not `concurrent.futures`: its threads are joined when the interpreter ends, so that one stuck
handler would keep a stopped worker alive for ever; and each of its results wakes the event loop
through a system call of its own, here one wakes it for all that ended meanwhile.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

logger = logging.getLogger("late.dispatcher")

_Job = tuple["asyncio.Future[Any]", Callable[[], Any]]


class Threads:
    """Daemon threads, started when needed, at most as many as run at the same time.

    The caller bounds how many that are: a job is never queued behind another one.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._ended: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._started = 0
        self._running = 0
        self._waking = False
        self._refused = False
        """The last thread could not be started, which was logged."""
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, call: Callable[[], Any]) -> Any:
        """Return or raise what `call()` does in a thread, in a copy of the current context.

        Cancellation returns at once; the thread goes on and its result is dropped.

        Raises:
            RuntimeError: no thread can be started; `call` has not been called.
        """
        loop = self._loop = asyncio.get_running_loop()
        if self._running >= self._started:
            self._start()
        self._running += 1
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()
        self._jobs.put((future, lambda: context.run(call)))
        value, error = await future
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        """Let idle threads end; busy ones end after their job, or with the process."""
        for _ in range(self._started):
            self._jobs.put(None)
        self._started = 0

    def _start(self) -> None:
        name = f"late-handler-{self._started + 1}"
        try:
            threading.Thread(target=self._work, name=name, daemon=True).start()
        except RuntimeError as error:
            if not self._refused:
                self._refused = True
                logger.warning("no thread for a `def` handler can be started (%s)", error)
            raise
        self._refused = False
        self._started += 1

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, call = job
            value, error = None, None
            try:
                value = call()
            except BaseException as raised:  # SystemExit in a handler fails it, no more.
                error = raised
            self._ended.append((future, value, error))
            del job, future, call, value, error  # Nothing of the last job outlives it here.
            self._wake()

    def _wake(self) -> None:
        # The flag is cleared before the results are taken: one that is appended after the
        # clearing wakes the loop again, one before it is taken with this wake-up.
        if self._waking or self._loop is None:
            return
        self._waking = True
        try:
            self._loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:
            return  # The loop is closed: nobody waits for the result any more.

    def _deliver(self) -> None:
        self._waking = False
        ended = self._ended
        while ended:
            future, value, error = ended.popleft()
            self._running -= 1
            if not future.done():
                future.set_result((value, error))
