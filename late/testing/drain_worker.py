"""Run the enqueued tasks with a real worker until nothing is left to do."""

from __future__ import annotations

import asyncio
import threading
import time

import msgspec
from sqlalchemy import Engine, func, select

from late import events
from late.app.app import App
from late.concurrency import drained
from late.config import WorkerConfig
from late.control import Control
from late.control.status import status
from late.errors import TransactionAborted
from late.model.task import Usage
from late.observability.logs import log_events
from late.payload.command import PREFIX
from late.schema.engine import make_engine, reading
from late.schema.tables import settlement, timer
from late.worker.worker import Worker

_usage = msgspec.json.Decoder(list[Usage]).decode
_ENDS = ("done", "dead", "expired", "discarded", "cancelled")
_POLL_S = 0.01

TIMEOUT_S = 30.0
"""The longest wait of `drain` unless it is told."""


class NotDrained(AssertionError):
    """There was still work to do at the time-out."""


def drain(app: App, *, timeout_s: float | None = None, wait_s: float = 0.0) -> dict[str, int]:
    """Work on `app.url` in this process until no task is waiting, running, held back or due.

    A task may be held back by its ordering key or by a resize of its lane. The worker is the real
    one, with leases, retries and settlements, on the database of the URL. Plain and async tests may
    call it: it has its own thread and event loop.

    Args:
        timeout_s: the longest time; 30 s by default.
        wait_s: also wait for tasks that are due within this time; later tasks stay parked.

    Returns:
        The number of tasks that ended, by outcome: `{"done": 3, "dead": 1}`. Commands are not
        counted.

    Raises:
        NotDrained: the time was over. Tasks are left as a killed worker leaves them.
        LateError: the worker could not start.
    """
    longest_s = TIMEOUT_S if timeout_s is None else timeout_s
    result: list[dict[str, int]] = []
    failure: list[BaseException] = []

    def work() -> None:
        drained.set(True)  # Of this thread, and so of all that it starts.
        try:
            result.append(asyncio.run(_drain(app, longest_s, wait_s)))
        except BaseException as error:
            failure.append(error)

    # It runs in a thread, because the test may have a running loop.
    thread = threading.Thread(target=work, name="late-drain")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]


async def _drain(app: App, timeout_s: float, wait_s: float) -> dict[str, int]:
    worker = Worker(app, settings=WorkerConfig(poll_max_s=0.05, settle_delay_s=0.001, grace_s=5.0))
    deadline = time.monotonic() + timeout_s
    engine = make_engine(app.url)
    quiet = log_events(events.default)  # A test whose handler raises shows what it was.
    try:
        with Control(app.url) as control:
            until_us = control.now() + round(wait_s * 1_000_000)
            await worker.start()
            try:
                # What this worker knows of spares the database some twenty statements.
                while _at_work(worker) or await asyncio.to_thread(
                    busy, engine, app.group, until_us
                ):
                    if time.monotonic() > deadline:
                        raise NotDrained(f"tasks are left after {timeout_s:g} s in {app!r}")
                    await asyncio.sleep(_POLL_S)
            finally:
                await worker.stop()
        return _ended(engine, worker.id)
    finally:
        quiet()
        engine.dispose()


def _at_work(worker: Worker) -> bool:
    """Tell whether the worker has a task that runs, may start or is not settled."""
    scheduler = worker.scheduler
    return bool(worker.dispatcher.running or scheduler.ready or scheduler.unrecorded)


def busy(engine: Engine, group: str, until_us: int = 0) -> bool:
    """Tell whether a task of `group` waits, runs, is held back by its key, or is due by `until_us`.

    All is read in one snapshot of the database. Two reads could both miss a task that moves from
    the log to the timers, or that enqueues another one and ends. CockroachDB may refuse such a
    snapshot beside writes: somebody works then, so it counts as busy.
    """
    try:
        with reading(engine) as connection:
            found = status.seen(connection)
            mine = [q for q in found.queues if q.group == group]
            if any(q.depth.n or q.in_flight.n or q.held.n for q in mine):
                return True
            overdue = select(func.count()).where(
                timer.c.consumer_group == group, timer.c.due_at_us <= max(until_us, found.now_us)
            )
            return bool(connection.execute(overdue).scalar_one())
    except TransactionAborted:
        return True


def _ended(engine: Engine, worker_id: str) -> dict[str, int]:
    mine = select(settlement.c.usage).where(
        settlement.c.owner == worker_id, settlement.c.usage.is_not(None)
    )
    ended: dict[str, int] = {}
    with reading(engine) as connection:
        for text in connection.execute(mine).scalars():
            for usage in _usage(text):
                if usage.outcome in _ENDS and not usage.name.startswith(PREFIX):
                    ended[usage.outcome] = ended.get(usage.outcome, 0) + usage.count
    return ended
