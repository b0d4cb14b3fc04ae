"""Enqueue tasks for callers outside: one transaction of our own per request."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec

from late.api import errors
from late.api.schemas import Accepted, Put
from late.app import backpressure
from late.app.app import App
from late.app.task import Call
from late.app.write import asked_by
from late.concurrency import in_thread
from late.control import Control
from late.control.lanes.layout import layout
from late.errors import InvalidSchedule, InvalidTask, KeyConflict, LateError, UnknownTask
from late.model import validation as validate
from late.model.lanes import Lane
from late.model.task import NewTask
from late.notify.notifier import wake
from late.outbox import insert
from late.outbox.insert import no_lane
from late.schema.engine import make_engine, write
from late.worker.background import BackgroundJob

logger = logging.getLogger("late.api")

THREADS = 2
"""The engine keeps as many connections."""
FOLLOW_EVERY_S = backpressure.EVERY_S


def key_of_queue(queue: str, key: str) -> str:
    """Return the name under which `key` of `queue` is stored: `trip-7.` and a hash of both.

    It is a name as others are, because a worker ends a task whose ordering key is none. Nobody can
    choose a key in another queue that becomes the same one.
    """
    return f"{key[:64]}.{hashlib.sha256(f'{queue}/{key}'.encode()).hexdigest()[:32]}"


def of_queue(call: Call) -> Call:
    """Return `call` with keys that belong to its queue.

    So whoever may use one queue neither holds nor frees a key that tasks of another queue have.
    """
    settings = call.settings
    keys = {
        field: key_of_queue(call.queue, key)
        for field in ("ordering_key", "unique_key")
        if (key := getattr(settings.options, field)) is not None
    }
    if not keys:
        return call
    options = msgspec.structs.replace(settings.options, **keys)
    encoded = msgspec.json.encode(options).decode()
    settings = msgspec.structs.replace(
        settings,
        options=options,
        options_json=encoded,
        place_key=options.ordering_key or settings.place_key,
    )
    return msgspec.structs.replace(call, settings=settings)


def _by_own_keys(text: str, puts: Sequence[Put], calls: Sequence[Call]) -> str:
    """Return a message with the keys that the caller gave, in place of those of its queue."""
    for put, call in zip(puts, calls, strict=False):
        stored = call.settings.options.unique_key
        if put.unique_key and stored:
            text = text.replace(repr(stored), repr(put.unique_key))
    return text


class Producer:
    """Checks requests by an app's tasks and writes them.

    Args:
        routed: queues whose tasks need not be registered here, because others execute them.
    """

    def __init__(self, app: App, *, routed: Collection[str] = ()) -> None:
        self._app = app
        self._routed = frozenset(routed)
        # An app for the same database, for names of tasks that `app` does not know.
        self._nameless = App(
            app.url,
            shards=app.shards,
            group=app.group,
            codec=app.codec,
            strict=False,
            max_backlog=app.max_backlog,
        )
        self._engine = make_engine(app.url)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="late-enqueue")

    async def put(self, puts: Sequence[Put], *, shared_keys: bool = True) -> list[Accepted]:
        """Enqueue all or none. They are checked before any SQL.

        Args:
            shared_keys: unique and ordering keys are those of the whole deployment. If not, each
                belongs to its queue, see `of_queue`.

        Raises:
            InvalidTask, QueueFull, UnknownTask, StoreError: nothing was enqueued. After a
                `StoreUnavailable` that is not certain.
        """
        calls: list[Call] = []
        try:
            for put in puts:
                call = self._call(put)
                calls.append(call if shared_keys else of_queue(call))
        except (InvalidTask, UnknownTask) as error:
            raise errors.of_one(error, len(calls), len(puts)) from None
        if self._nameless.unknown_lanes(calls):
            await asyncio.get_running_loop().run_in_executor(self._threads, self._find_lanes, calls)
        # One app prepares all rows. `enqueue_many` would refuse the calls of the other app.
        rows = self._nameless.prepare(calls)
        asked = asked_by(self._nameless, calls)
        loop = asyncio.get_running_loop()

        def again(lane: Lane) -> list[NewTask]:
            rows[:] = self._nameless.placed(calls, lane)
            return rows

        try:
            ids = await loop.run_in_executor(
                self._threads, write, self._engine, lambda tx: insert(tx, rows, again, asked)
            )
        except KeyConflict as error:
            raise KeyConflict(
                _by_own_keys(str(error), () if shared_keys else puts, calls)
            ) from None
        wake(*ids)
        return [
            Accepted(task_id, created=task_id == row.task_id)
            for task_id, row in zip(ids, rows, strict=True)
        ]

    def _find_lanes(self, calls: Sequence[Call]) -> None:
        """Read the lanes.

        Raises:
            InvalidTask: one that `calls` name does not exist.
        """
        lanes = layout(self._engine).lanes
        for lane in lanes:
            self._nameless.adopt(lane)
        if unknown := self._nameless.unknown_lanes(calls):
            raise no_lane(min(unknown), [lane.name for lane in lanes])

    def queue_of(self, put: Put) -> str:
        """The queue that the task goes to."""
        if put.queue is not None:
            return put.queue
        task = self._app.tasks.get(put.name)
        return "default" if task is None else task.queue

    def observe(self, queue: str, depth: int) -> None:
        """Note the depth of a queue; see `App.observe_backlog`."""
        self._nameless.observe_backlog(queue, depth)

    async def look(self, control: Control) -> None:
        """Learn which queues are closed or full, as `App.follow` does."""
        try:
            await in_thread(backpressure.look, self._nameless, control)
        except LateError as error:
            logger.warning("the knobs of queues could not be read: %s", error)

    def job(self, control: Control) -> BackgroundJob:
        """Make the job that looks again and again."""
        return BackgroundJob(name="knobs", run=partial(self.look, control), period_s=FOLLOW_EVERY_S)

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._engine.dispose()

    def _call(self, put: Put) -> Call:
        app = self._app
        known = put.name in app.tasks
        queue = validate.queue(self.queue_of(put))
        validate.name(put.name, "task name")
        if not known and app.strict and queue not in self._routed:
            raise UnknownTask(f"no task {put.name[:128]!r} is known here")
        if put.expires_s is not None and put.expires_at is not None:
            raise InvalidSchedule("give expires_s or expires_at, not both")
        asked: dict[str, Any] = {
            "delay": put.delay_s,
            "at": put.at,
            "expires": put.expires_s if put.expires_at is None else put.expires_at,
            "priority": put.priority,
            "lane": put.lane,
            "ordering_key": put.ordering_key,
            "unique_key": put.unique_key,
            "unique_for": put.unique_for_s,
            "on_conflict": put.on_conflict,
            "max_wait": put.max_wait_s,
            "headers": put.headers,
        }
        given: Any = {key: value for key, value in asked.items() if value is not None}
        chosen = app if known else self._nameless
        return chosen.call(put.name, put.payload, queue=put.queue, **given)
