"""A worker in the process of a program, and what a service holds that enqueues.

with worker_thread(queue):  # a desktop tool, a script, a Flask server
    main()
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress

from late.app.app import App
from late.control import Control
from late.errors import StoreUnavailable

__all__ = ["running", "worker_thread"]

START_TURN_S = 0.2

logger = logging.getLogger("late.embedded")


@contextmanager
def worker_thread(queue: App) -> Iterator[None]:
    """Run tasks in a thread of this process, for the block.

    The block begins once the worker has started. At its end the worker stops as `late worker` does
    at SIGTERM: what runs has `LATE_GRACE_S` to end, and what is interrupted starts again later.
    Handlers run as in any worker, `def` ones in threads of their own; it also runs tasks that other
    processes have enqueued.

    Raises:
        SchemaMismatch: the tables of `late` are missing or have another version.
        StoreUnavailable: there is no such file of SQLite.
        LateError: the worker cannot start.
    """
    started: Future[None] = Future()
    loop = asyncio.new_event_loop()

    async def work() -> None:
        async with running(queue, worker=True):
            started.set_result(None)
            await loop.create_future()  # Until it is cancelled.

    life = loop.create_task(work())

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner, suppress(asyncio.CancelledError):
            try:
                runner.get_loop().run_until_complete(life)
            except Exception as error:
                if started.done():
                    raise
                started.set_exception(error)

    thread = threading.Thread(target=run, name="late-worker")
    try:
        thread.start()
        # In turns: Ctrl-C just before a wait without end would not interrupt it.
        while not wait([started], timeout=START_TURN_S).done:
            pass
        started.result()
        yield
    finally:
        # Cancelled and not told: so a start that waits for the database ends too.
        with suppress(RuntimeError):  # The loop is closed where the start has failed.
            loop.call_soon_threadsafe(life.cancel)
        with suppress(RuntimeError):  # Ctrl-C came while the thread was being started.
            thread.join()


@asynccontextmanager
async def running(queue: App, *, worker: bool = False) -> AsyncIterator[None]:
    """Hold what a service that enqueues needs, for the block in its lifespan.

    The schema is checked first, so that a service that was deployed before its `late migrate` does
    not start. A database that does not answer is no reason: it is logged. From then on the service
    refuses tasks of queues that are closed or full, as `App.follow` does.

    Args:
        worker: run the tasks in this process too, on its event loop. That is for development: with
            `late worker` a slow handler cannot hold requests up, and a deploy of the service does
            not interrupt tasks.

    Raises:
        SchemaMismatch: the tables of `late` are missing or have another version.
        StoreUnavailable: there is no such file of SQLite.
        LateError: the worker cannot start.
    """
    await asyncio.to_thread(_check, queue.url)
    guard = queue.follow()
    await asyncio.to_thread(guard.__enter__)
    try:
        async with _working(queue) if worker else nullcontext():
            yield
    finally:
        await asyncio.to_thread(guard.close)


@asynccontextmanager
async def _working(queue: App) -> AsyncIterator[None]:
    from late import events
    from late.observability.logs import log_events
    from late.worker.worker import Worker

    made = Worker(queue)
    quiet = log_events(events.default)  # As `late worker` does: what fails must be seen.
    try:
        await made.start()
        life = asyncio.create_task(made.wait(), name="late-worker")
        try:
            yield
        finally:
            made.ask_to_stop()
            await life
    finally:
        quiet()


def _check(url: str) -> None:
    try:
        with Control(url) as control:
            control.check()
    except StoreUnavailable as error:
        if url.startswith("sqlite"):  # There is no server to wait for: the file is missing.
            raise
        logger.warning("the schema of late could not be checked: %s", error)
