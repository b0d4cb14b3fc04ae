"""The start of a process whose database may still be away, or whose resources take their time."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from late import events
from late.app.lifespan import Lifespan
from late.errors import StoreError
from late.model.backoff import Backoff
from late.worker.watch.health import Health

PAUSE_MAX_S = 2.0
"""The longest pause between two tries."""


async def reach_database(
    reach: Callable[[], Awaitable[None]],
    wait_s: float,
    stop_asked: asyncio.Event,
    health: Health | None = None,
) -> None:
    """Call `reach`; if the database does not answer, try again until it does, for `wait_s`.

    Args:
        reach: the first call of a process to its database, such as `Store.open`.
        health: what answers the health check meanwhile.

    Raises:
        StoreError: it did not answer in time, or until a stop was asked for; or the error is not
            transient, so that waiting would not help.
    """
    give_up_at = time.monotonic() + wait_s
    try:
        return await reach()
    except StoreError as error:
        if not error.transient or wait_s == 0:
            raise
        events.default.emit(events.DATABASE_AWAITED, for_s=wait_s, error=str(error))
    backoff = Backoff(random.Random(), cap_s=PAUSE_MAX_S)
    async with _answering(health):
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff.next_s()):
                    await stop_asked.wait()
            try:
                return await reach()
            except StoreError as error:
                over = stop_asked.is_set() or time.monotonic() >= give_up_at
                if over or not error.transient:
                    raise


async def open_resources(
    closing: contextlib.AsyncExitStack,
    span: Lifespan,
    stop_asked: asyncio.Event,
    health: Health | None,
) -> None:
    """Open what the handlers share, before the worker takes a lease: nobody waits for it then.
    `closing` gets what closes it.

    Raises:
        LifespanFailed: the function of `app.lifespan` failed, or a stop was asked for.
    """
    async with _answering(health if span.is_set else None):
        await span.open(stop_asked)
    closing.push_async_callback(span.close)


@contextlib.asynccontextmanager
async def _answering(health: Health | None) -> AsyncIterator[None]:
    """Answer the health check here: the heartbeat's thread, which does so later, needs the
    database. A worker that waits is live, for a restart would not help, and not ready."""
    answers = None if health is None else asyncio.create_task(health.run())
    try:
        yield
    finally:
        if answers is not None:
            answers.cancel()
            await asyncio.wait([answers])
