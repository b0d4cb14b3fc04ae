"""The context, a handler's first argument if it asks for one: its task, its attempt, its time.

`Context` is for `def`, in a thread or in a child process; `AsyncContext` for `async def`. Both say
the same; only what touches the database differs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec

from late import events
from late.errors import ConfigError, DispatchError
from late.handler.enqueuer import AnyCall
from late.handler.outcomes import AlreadyDone
from late.model.task import Attempt, TaskId

if TYPE_CHECKING:
    from late.outbox.base import AsyncTransaction, SyncTransaction
    from late.outbox.inbox import Claim

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class AttemptOver(DispatchError):
    """A handler asked for more time after its attempt was ended (time-out, stop, fenced)."""


class _Attempt:
    """Both contexts: one attempt of one task. Times are UTC, by the database's clock."""

    def __init__(
        self,
        attempt: Attempt,
        *,
        started_at_us: int,
        timeout_s: float,
        attempts_max: int | None,
        url: str,
        beat: Callable[[], None],
    ) -> None:
        self._attempt = attempt
        self._started_at_us = started_at_us
        self._timeout_s = timeout_s
        self._attempts_max = attempts_max
        self._url = url
        self._beat = beat
        self._begun = self._beaten = monotonic()
        self._once_done = False
        """A block of `once` has committed in this attempt."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.task_id} attempt {self.attempt}>"

    @property
    def task_id(self) -> TaskId:
        return self._attempt.record.task_id

    @property
    def name(self) -> str:
        """The task's name, as registered."""
        return self._attempt.record.name

    @property
    def queue(self) -> str:
        return self._attempt.record.queue

    @property
    def group(self) -> str:
        """The consumer group that this attempt belongs to."""
        return self._attempt.group

    @property
    def is_replay(self) -> bool:
        """True if the group was reset since the task was created: it may have run before, and its
        effects may be there already. What was created since the reset is no replay."""
        return self._attempt.is_replay

    @property
    def keeps_result(self) -> bool:
        """True if the return value of the handler is kept as a result."""
        return self._attempt.keeps_result

    @property
    def attempt(self) -> int:
        """1 for the first attempt. Interrupted ones do not count."""
        return self._attempt.number

    @property
    def max_attempts(self) -> int | None:
        """Attempts that the task's policy allows, if it is known here."""
        return self._attempts_max

    @property
    def is_last_attempt(self) -> bool:
        """True if a failure now ends the task; a worker's death may still end it earlier."""
        return self._attempts_max is not None and self.attempt >= self._attempts_max

    @property
    def deaths(self) -> int:
        """The number of processes that went away under this task so far."""
        return self._attempt.deaths

    @property
    def headers(self) -> Mapping[str, str]:
        """The producer's headers; empty if there are none."""
        raw = self._attempt.record.headers
        return msgspec.json.decode(raw, type=dict[str, str]) if raw else {}

    @property
    def enqueued_at(self) -> datetime:
        return _datetime(self._attempt.record.created_at_us)

    @property
    def due_at(self) -> datetime:
        """The due time of this attempt. It started no earlier."""
        return _datetime(self._attempt.due_at_us)

    @property
    def expires_at(self) -> datetime | None:
        """The time from which on the task is worthless, if there is one."""
        us = self._attempt.deadline_us
        return None if us is None else _datetime(us)

    @property
    def timeout_s(self) -> float:
        """Seconds that the attempt may stay silent."""
        return self._timeout_s

    @property
    def deadline(self) -> datetime:
        """The time at which this attempt is ended if it stays silent; `heartbeat()` moves it."""
        alive_s = self._beaten - self._begun
        return _datetime(self._started_at_us) + timedelta(seconds=alive_s + self._timeout_s)

    def heartbeat(self) -> None:
        """Say that the attempt is alive: its time-out counts from now. Costs no I/O worth naming.

        Raises:
            AttemptOver: the attempt was ended; another may be running. Stop working. A child
                process is not told, it is killed.
        """
        self._beat()
        self._beaten = monotonic()

    def _once_more(self) -> None:
        """Refuse a second block in one attempt: it would be taken for done and never run."""
        if self._once_done:
            raise ConfigError(
                f"{self.name}: a task has one block of once(), and this attempt has committed it"
            )

    def _claimed(self, claim: Claim) -> bool:
        if claim.name == "OVER":
            raise AttemptOver(
                f"attempt {self.attempt} of {self.task_id} was ended: its shard has a new owner"
            )
        if claim.name != "TAKEN":
            record = self._attempt.record
            events.default.emit(
                events.ALREADY_DONE,
                group=self.group,
                queue=record.queue,
                name=record.name,
                task=record.task_id,
                attempt=self.attempt,
            )
        return claim.name == "TAKEN"


class Context(_Attempt):
    """The context of `def` handlers."""

    @contextmanager
    def begin(self) -> Iterator[Any]:
        """A transaction of its own in the business database, usable as `tx` of an enqueue.

        Commits at the end of the block, rolls back if it raises. It opens a connection each time:
        where the handler has a transaction already, enqueue through that.
        """
        from late.outbox import connect

        with connect(self._url) as tx:
            yield tx

    @contextmanager
    def once(self) -> Iterator[Any]:
        """A transaction of the business database whose effects happen exactly once.

        As `begin`, and with the writes of the block commits the record that this task has done
        them (in this consumer group). Where that record is there already, the block is not
        entered: `AlreadyDone` leaves the handler and the task is done. So whatever must also
        happen on a repeat comes before the block, and nothing that matters comes after it.

        One block per task. A repeat that runs at the same time waits here for the first one.

        Raises:
            AlreadyDone: another run has committed the effects. A signal, not an error.
            AttemptOver: this attempt was ended, or its shard has another owner.
            ConfigError: a second block in the same attempt.
        """
        from late.outbox.inbox import claim

        self._once_more()
        self.heartbeat()
        with self.begin() as tx:
            if not self._claimed(claim(tx, self._attempt)):
                raise AlreadyDone()
            yield tx
            self.heartbeat()  # What was ended meanwhile must not commit.
        self._once_done = True

    def claim(self, tx: SyncTransaction) -> bool:
        """The same in a transaction of the handler's own, such as a Session: the first statement.

        True: the effects are to be done in `tx`. False: they have been committed by another run
        of the task; return without doing them.

        Raises:
            AttemptOver: this attempt was ended, or its shard has another owner: roll back.
            InvalidTask: `tx` is of no accepted type, or in autocommit mode.
        """
        from late.outbox.inbox import claim

        self.heartbeat()
        return self._claimed(claim(tx, self._attempt))

    def enqueue(self, call: AnyCall) -> TaskId:
        """Enqueue one `task.call(...)` in a transaction of its own."""
        return self.enqueue_many([call])[0]

    def enqueue_many(self, calls: Sequence[AnyCall]) -> list[TaskId]:
        """Enqueue all of `calls` or none, in one transaction."""
        if not calls:
            return []
        with self.begin() as tx:
            ids: list[TaskId] = calls[0].app.enqueue_many(tx, calls)
            return ids


class AsyncContext(_Attempt):
    """The context of `async def` handlers."""

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        """A transaction of its own in the business database, usable as `tx` of an enqueue.

        Commits at the end of the block, rolls back if it raises or is cancelled. It opens a
        connection each time: where the handler has a transaction already, enqueue through that.
        """
        from late.outbox import connect_async

        async with connect_async(self._url) as tx:
            yield tx

    @asynccontextmanager
    async def once(self) -> AsyncIterator[Any]:
        """Open a transaction whose effects happen exactly once; see `Context.once`."""
        from late.outbox.inbox import claim_async

        self._once_more()
        self.heartbeat()
        async with self.begin() as tx:
            if not self._claimed(await claim_async(tx, self._attempt)):
                raise AlreadyDone()
            yield tx
            self.heartbeat()  # What was ended meanwhile must not commit.
        self._once_done = True

    async def claim(self, tx: AsyncTransaction) -> bool:
        """Claim the effects for the handler's own `tx`; see `Context.claim`."""
        from late.outbox.inbox import claim_async

        self.heartbeat()
        return self._claimed(await claim_async(tx, self._attempt))

    async def enqueue(self, call: AnyCall) -> TaskId:
        """Enqueue one `task.call(...)` in a transaction of its own."""
        return (await self.enqueue_many([call]))[0]

    async def enqueue_many(self, calls: Sequence[AnyCall]) -> list[TaskId]:
        """Enqueue all of `calls` or none, in one transaction."""
        if not calls:
            return []
        async with self.begin() as tx:
            ids: list[TaskId] = await calls[0].app.enqueue_many(tx, calls)
            return ids


def _datetime(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)
