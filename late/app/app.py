"""`App`: the object a service creates. It registers tasks and enqueues them; it opens nothing."""

from __future__ import annotations

import itertools
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack, overload

import msgspec

from late import outbox
from late.app.commands import Commanding
from late.app.options import TaskOptions, settings
from late.app.registry import Registry
from late.app.results import Handle
from late.app.task import Call, Prepared, Task
from late.errors import (
    BatchTooLarge,
    InvalidName,
    InvalidPayload,
    InvalidTask,
    PayloadTooLarge,
    QueueFull,
    UnknownTask,
)
from late.model import validation as validate
from late.model.ids import new_id, new_ids, shard_of
from late.model.lanes import Lane
from late.model.targets import Target
from late.model.task import DEFAULT_GROUP, SHARDS_MAX, NewTask, Options, TaskId
from late.observability import tracing
from late.outbox.base import AsyncTransaction, SyncTransaction
from late.payload import codec as codecs
from late.payload import encoding as payloads
from late.payload.command import PREFIX

__all__ = ["App", "Call", "Prepared", "Task", "TaskOptions"]

if TYPE_CHECKING:
    from late.app.backpressure import Following

log = logging.getLogger("late.app")

BACKLOG_STALE_S = 5.0
"""A published depth older than this says nothing."""


class App(Registry, Commanding):
    """Tasks, and where they go. Thread-safe; creating one connects to nothing.

    Args:
        url: the business database, as SQLAlchemy writes it: `sqlite:///file.db`,
            `postgresql://...` or `postgresql+psycopg://...`.
        shards: active shards that new tasks are spread over, 1..4096: those of the lane, until it
            is first resized while it works (`late shards --resize`); from then on the database
            says.
        group: the consumer group that this app's workers work for.
        codec: how arguments are encoded: `"json"`, `"msgpack"` or a codec such as
            `late.codec.Signed`; a task may have one of its own.
        strict: refuse to `send` tasks that this app has not registered.
        max_backlog: deepest published backlog of a queue that still takes tasks; a number for
            every queue or a mapping by queue; None for no bound. See `observe_backlog`.
        targets: services that execute tasks: `late.GrpcTarget`, `late.HttpTarget`. Only workers
            need them, and a file named by `LATE_TARGETS` may add to them or change them.
        history: write down each step of every task, as `task(history=True)` does for one.

    Raises:
        ConfigError: a setting is wrong. The message never repeats the URL's password.
    """

    def __init__(
        self,
        url: str,
        *,
        shards: int = 8,
        group: str = DEFAULT_GROUP,
        codec: codecs.Codec | payloads.Format = "json",
        strict: bool = True,
        max_backlog: int | Mapping[str, int] | None = None,
        targets: Iterable[Target] = (),
        history: bool = False,
    ) -> None:
        super().__init__(
            url, shards=shards, group=group, codec=codec, targets=targets, history=history
        )
        self.strict = strict
        self.max_backlog = max_backlog
        self._depths: dict[str, tuple[int, float, int | None]] = {}
        # Round robin from a random start: `next` on a count is atomic, needs no lock and spreads
        # a batch evenly. Forked processes go on from the same number, which does no harm.
        self._turns = itertools.count(random.randrange(SHARDS_MAX))
        self._warned: set[str] = set()
        self.capture: Callable[[list[Call], list[NewTask]], list[TaskId]] | None = None
        """Set by `late.testing.inline`: takes the tasks instead of the database."""

    def __repr__(self) -> str:
        return f"<App {len(self._tasks)} tasks, group={self.group}>"

    @overload
    def enqueue(self, tx: SyncTransaction, call: Call, /) -> TaskId: ...
    @overload
    def enqueue(self, tx: AsyncTransaction, call: Call, /) -> Awaitable[TaskId]: ...
    def enqueue(self, tx: Any, call: Call, /) -> Any:
        """Insert one `task.call(...)` through the caller's transaction; as `Task.enqueue`."""
        if self._depths:
            self._admit({call.queue: 1})
        rows = [self.row(call)]
        written = self._write(tx, [call], rows)
        return written[0] if isinstance(written, list) else _first(written)

    @overload
    def enqueue_many(self, tx: SyncTransaction, calls: Iterable[Call], /) -> list[TaskId]: ...
    @overload
    def enqueue_many(
        self, tx: AsyncTransaction, calls: Iterable[Call], /
    ) -> Awaitable[list[TaskId]]: ...
    def enqueue_many(self, tx: Any, calls: Iterable[Call], /) -> Any:
        """Insert many calls, of one task or several, in one statement.

        Returns:
            Their ids in order; an awaitable of them where `tx` is async. No calls, no statement.

        Raises:
            BatchTooLarge: above 1,000 tasks or 8 MiB of payload.
            As `Task.enqueue` otherwise; nothing is written then.
        """
        batch = list(itertools.islice(calls, validate.BATCH_TASKS_MAX + 1))
        for call in batch:
            if not isinstance(call, Call) or call.app is not self:
                raise InvalidTask(f"not a call of this app's tasks: {validate.shown(call)}")
        return self._write(tx, batch, self.prepare(batch))

    def prepare(self, calls: Sequence[Call]) -> list[NewTask]:
        """The rows of one batch with the checks of `enqueue_many`, for who writes them itself."""
        if len(calls) > validate.BATCH_TASKS_MAX:
            raise BatchTooLarge(f"more than {validate.BATCH_TASKS_MAX} tasks in one call")
        size = sum([len(call.payload) for call in calls])
        if size > validate.BATCH_BYTES_MAX:
            limit = validate.BATCH_BYTES_MAX
            raise BatchTooLarge(f"{size} bytes of payload in one call, the limit is {limit}")
        if self._depths:
            self._admit(Counter(call.queue for call in calls))
        return self._rows(calls)

    @overload
    def send(
        self,
        tx: SyncTransaction,
        name: str,
        args: Mapping[str, object] | None = ...,
        /,
        *,
        queue: str | None = ...,
        **asked: Unpack[TaskOptions],
    ) -> TaskId: ...
    @overload
    def send(
        self,
        tx: AsyncTransaction,
        name: str,
        args: Mapping[str, object] | None = ...,
        /,
        *,
        queue: str | None = ...,
        **asked: Unpack[TaskOptions],
    ) -> Awaitable[TaskId]: ...
    def send(
        self,
        tx: Any,
        name: str,
        args: Mapping[str, object] | None = None,
        /,
        *,
        queue: str | None = None,
        **asked: Unpack[TaskOptions],
    ) -> Any:
        """Insert a task by name, for producers that do not import its handler.

        Args:
            args: arguments by name; checked against the signature where the task is registered.
            queue: of an unregistered task (`default`); a registered one has its own.

        Raises:
            UnknownTask: not registered, and the app is `strict`.
            As `Task.enqueue` otherwise.
        """
        return self.enqueue(tx, self.call(name, args, queue=queue, **asked))

    def call(
        self,
        name: str,
        args: Mapping[str, object] | None = None,
        /,
        *,
        queue: str | None = None,
        **asked: Unpack[TaskOptions],
    ) -> Call:
        """The call that `send` would insert, for `enqueue_many`; raises as `send` does."""
        validate.name(name, "task name")
        if name.startswith(PREFIX):
            raise InvalidName(f"task {name!r}: names that begin with {PREFIX!r} are reserved")
        args = {} if args is None else args
        if not isinstance(args, Mapping) or not all(isinstance(key, str) for key in args):
            raise InvalidPayload(f"arguments must be a mapping by name, got {validate.shown(args)}")
        task = self._tasks.get(name)
        if task is not None:
            if queue is not None and queue != task.queue:
                raise InvalidTask(f"task {name!r} is in queue {task.queue!r}, not {queue!r:.80}")
            checked = settings(asked, task.base)
            values, payload = task.encode((), args)
            return Call(self, name, task.queue, task.codec, values, payload, checked, task)
        if self.strict:
            raise UnknownTask(f"no task {name!r} is registered; strict=False sends it anyway")
        queue = validate.queue("default" if queue is None else queue)
        stored_as = None if self.codec.name == "json" else self.codec.name
        checked = settings(asked, Options(codec=stored_as))
        values = dict(args)
        payload = payloads.pack(values, self.codec.format)
        return Call(self, name, queue, self.codec, values, payload, checked)

    def handle(self, task_id: str, *, group: str | None = None) -> Handle:
        """One task from the outside: its state, and its result where that is kept.

        Args:
            group: as this consumer group sees it; the app's own when None.

        Raises:
            InvalidName: not a task id, not a group's name.
        """
        validate.name(self.group if group is None else group, "group")
        shard_of(task_id)
        return Handle(self.url, TaskId(task_id), group or self.group)

    def follow(self) -> Following:
        """Obey `late queue set NAME closed=on` and `max_backlog=N` from now on: enqueue raises
        `QueueFull` before any SQL. A context manager around the life of the producer; a thread
        looks every two seconds.
        """
        from late.app.backpressure import Following

        return Following(self)

    def observe_backlog(self, queue: str, depth: int, *, bound: int | None = None) -> None:
        """Publish how many tasks wait in `queue`, for `max_backlog` or the `bound` given here.

        For whoever watches the depth; `follow` does it by the knobs. A value is trusted for five
        seconds: where nobody publishes, nothing is refused. Thread-safe.
        """
        self._depths[queue] = (depth, time.monotonic(), bound)

    def placed(self, calls: Sequence[Call], lane: Lane) -> list[NewTask]:
        """The rows of `calls` for the lane as the database has it now, which this app adopts
        unless it knows a later one: from another database, or from before a restore."""
        self.adopt(lane)
        given = lane if lane.version else Lane(shards=self.shards)  # as in `adopt`
        return self._rows(calls, given)

    def row(self, call: Call, lane: Lane | None = None) -> NewTask:
        """The row of one call, with an id of its own; for the app's lane if none is given.

        Raises:
            PayloadTooLarge: with its seal it is above 1 MiB.
        """
        lane = lane or self.lane
        shard_id = self._shard(call, lane)
        headers = tracing.captured(call.settings.headers_json)
        return self._row(call, shard_id, new_id(shard_id), lane, headers)

    def _rows(self, calls: Sequence[Call], lane: Lane | None = None) -> list[NewTask]:
        """`row` of each; what is alike is made once: ids in one go, headers by settings."""
        lane = lane or self.lane  # asked once: another thread may adopt another one meanwhile
        shards = self._spread(calls, lane)
        rows: list[NewTask] = []
        shared, headers, plain = None, None, False
        for call, shard_id, task_id in zip(calls, shards, new_ids(shards), strict=True):
            if call.settings is not shared:
                shared = call.settings
                headers = tracing.captured(shared.headers_json)
                plain = shared.options.ordering_key is None and shared.options.unique_key is None
            if plain:
                payload, options = call.payload, shared.options_json
                if call.codec is not codecs.JSON or len(payload) > payloads.PAYLOAD_BYTES_WARN:
                    payload = self._sealed(call, task_id)
                rows.append(
                    NewTask(shard_id, task_id, call.queue, call.name, payload, headers, options)
                )
            else:
                rows.append(self._row(call, shard_id, task_id, lane, headers))
        return rows

    def _spread(self, calls: Sequence[Call], lane: Lane) -> list[int]:
        """The shard of each call of a batch. Those without a key take turns as if they were alone,
        but sorted: neighbours in the log's pages are then of one shard, for the insert and for
        its reader."""
        keys = [call.settings.options.ordering_key for call in calls]
        turns = itertools.islice(self._turns, keys.count(None))
        free = sorted([lane.first_shard + turn % lane.shards for turn in turns])
        if len(free) == len(keys):
            return free
        next_free = iter(free)
        return [next(next_free) if key is None else lane.shard_of(key) for key in keys]

    def _shard(self, call: Call, lane: Lane) -> int:
        key = call.settings.options.ordering_key
        if key is None:
            return lane.first_shard + next(self._turns) % lane.shards
        return lane.shard_of(key)

    def _row(
        self, call: Call, shard_id: int, task_id: TaskId, lane: Lane, headers: str | None
    ) -> NewTask:
        checked = call.settings
        options, options_json = checked.options, checked.options_json
        placed, unique_key = options.ordering_key is not None, options.unique_key
        if placed and lane.version:
            options = msgspec.structs.replace(options, layout=lane.version)
            options_json = msgspec.json.encode(options).decode()
        return NewTask(
            shard_id,
            task_id,
            call.queue,
            call.name,
            self._sealed(call, task_id),
            headers,
            options_json,
            unique_key,
            None if unique_key is None else _digest(call),
            checked.unique_for_us,
            checked.on_conflict,
            lane.version if placed else None,
        )

    def _sealed(self, call: Call, task_id: TaskId) -> bytes:
        payload = call.payload
        if call.codec is not codecs.JSON:
            subject = codecs.Subject(task_id, call.name, call.queue)
            payload = call.codec.seal(payload, subject)
        if len(payload) > payloads.PAYLOAD_BYTES_WARN:
            self._check_size(call.name, len(payload))
        return payload

    def _check_size(self, name: str, size: int) -> None:
        if size > payloads.PAYLOAD_BYTES_MAX:
            limit = payloads.PAYLOAD_BYTES_MAX
            raise PayloadTooLarge(f"{name}: payload of {size} bytes, the limit is {limit}")
        if name not in self._warned:
            self._warned.add(name)
            # A log line and no `warnings.warn`: with warnings as errors that would be an
            # exception in the middle of the caller's transaction.
            log.warning(
                "task %s has a payload of %d bytes: store large data elsewhere and send its key",
                name,
                size,
            )

    def _admit(self, wanted: Mapping[str, int]) -> None:
        if not self._depths:
            return
        for queue in wanted:
            bound = self.max_backlog
            limit = bound.get(queue) if isinstance(bound, Mapping) else bound
            depth, seen_at, by_knob = self._depths.get(queue, (0, 0.0, None))
            if by_knob is not None:
                limit = by_knob if limit is None else min(limit, by_knob)
            if limit is None or depth < limit or time.monotonic() - seen_at > BACKLOG_STALE_S:
                continue
            if limit == 0:
                raise QueueFull(f"queue {queue!r} is closed: it takes no new tasks")
            raise QueueFull(f"queue {queue!r} holds {depth} tasks, its bound is {limit}")

    def _write(
        self, tx: Any, calls: list[Call], rows: list[NewTask]
    ) -> list[TaskId] | Awaitable[list[TaskId]]:
        if self.capture is not None:
            asynchronous = tx is not None and outbox.is_async(tx)
            ids = self.capture(calls, rows)
            return _ready(ids) if asynchronous else ids
        return outbox.write(tx, rows, partial(self.placed, calls))


def _digest(call: Call) -> str:
    return payloads.digest(call.name, call.values, getattr(call.codec, "digest_key", b""))


async def _first(ids: Awaitable[list[TaskId]]) -> TaskId:
    return (await ids)[0]


async def _ready(ids: list[TaskId]) -> list[TaskId]:
    return ids
