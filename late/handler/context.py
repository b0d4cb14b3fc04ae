"""The context of a handler: its task, its attempt and its time. It is an optional first argument.

`Context` is for `def`, in a thread or in a child process; `AsyncContext` is for `async def`. They
differ only in the methods that use the database.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, overload

import msgspec

from late import events
from late.errors import ConfigError, DispatchError, SecondBlock, SoftTimeLimit
from late.handler import counts
from late.handler.awaited import Awaited
from late.handler.classify import returned
from late.handler.enqueuer import AnyCall
from late.handler.open_blocks import block, refuse_inside
from late.handler.outcomes import AlreadyDone
from late.model.task import Attempt, TaskId
from late.observability import conflicts

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session

    from late.outbox.base import AsyncTransaction, SyncTransaction
    from late.outbox.idle_connections import IdleConnections
    from late.outbox.inbox import Claim


def tag_of(attempt: Attempt) -> str:
    """Return the tag of an attempt's transactions: its class, a shadow's mark, the task's name."""
    role: conflicts.Role = "background" if attempt.is_background else "foreground"
    return conflicts.tag_of(role, attempt.record.name, shadow=attempt.shadow)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class AttemptOver(DispatchError):
    """A handler asked for more time after its attempt had ended (time-out, stop, fenced)."""


class Ends(Protocol):
    """The place in which an attempt runs, which knows of its end. Any thread may ask."""

    def is_over(self, attempt: Attempt) -> bool: ...
    @property
    def cancel_asked(self) -> Callable[[Attempt], bool]: ...


class _Attempt:
    """The base of both contexts: one attempt of one task. Times are UTC by the database's clock."""

    # Neither a dictionary nor arguments by name: one is made for each attempt.
    __slots__ = (
        "_attempt",
        "_attempts_max",
        "_beat",
        "_beaten",
        "_begun",
        "_counts",
        "_idle",
        "_once_done",
        "_slot",
        "_soft_timeout_s",
        "_started_at_us",
        "_timeout_s",
        "_url",
    )

    def __init__(
        self,
        attempt: Attempt,
        started_at_us: int,
        timeout_s: float,
        attempts_max: int | None,
        url: str,
        beat: Callable[[Attempt], None],
        soft_timeout_s: float | None = None,
        slot: Ends | None = None,
        idle: IdleConnections | None = None,
    ) -> None:
        self._attempt = attempt
        self._started_at_us = started_at_us
        self._timeout_s = timeout_s
        self._soft_timeout_s = soft_timeout_s
        self._attempts_max = attempts_max
        self._url = url
        self._idle = idle
        self._beat = beat
        self._slot = slot
        self._begun = self._beaten = monotonic()
        self._counts: dict[str, int] | None = None
        self._once_done = False
        """True if a block of `once` has committed in this attempt."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.task_id} attempt {self.attempt}>"

    @property
    def own(self) -> Attempt:
        """The attempt, for `late` itself."""
        return self._attempt

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
        """True if the group was reset after the task was created.

        Such a task may have run before, and its effects may exist already. A task that was created
        after the reset is not a replay.
        """
        return self._attempt.is_replay

    @property
    def shadow(self) -> bool:
        """True if the group is a shadow, which tries this code on real tasks.

        What is done in `begin`, `once`, `tx` and `session` is rolled back, with the tasks that are
        enqueued there. Nothing else is held back: no call of another service, no mail, no
        transaction that the handler opens by itself. Leave those out if this is true.
        """
        return self._attempt.shadow

    @property
    def keeps_result(self) -> bool:
        """True if the handler's return value is kept as a result."""
        return self._attempt.keeps_result

    @property
    def attempt(self) -> int:
        """1 for the first attempt. Interrupted ones do not count."""
        return self._attempt.number

    @property
    def max_attempts(self) -> int | None:
        """The most attempts that the task's policy allows; None if the policy is not known here."""
        return self._attempts_max

    @property
    def is_last_attempt(self) -> bool:
        """True if a failure now ends the task; a worker's death may still end it earlier."""
        return self._attempts_max is not None and self.attempt >= self._attempts_max

    @property
    def deaths(self) -> int:
        """The number of processes that have died while they ran this task."""
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
        """The due time of this attempt, which did not start earlier."""
        return _datetime(self._attempt.due_at_us)

    @property
    def expires_at(self) -> datetime | None:
        """The time at which the task expires, or None if it does not."""
        us = self._attempt.deadline_us
        return None if us is None else _datetime(us)

    @property
    def timeout_s(self) -> float:
        """Seconds that the attempt may run without a heartbeat."""
        return self._timeout_s

    @property
    def deadline(self) -> datetime:
        """The time at which this attempt is ended unless `heartbeat()` is called before it."""
        alive_s = self._beaten - self._begun
        return _datetime(self._started_at_us) + timedelta(seconds=alive_s + self._timeout_s)

    @property
    def cancel_requested(self) -> bool:
        """True once the worker has read a cancel of this task. It asks no database.

        The attempt is not interrupted: a loop may look at this and return or raise. What returns is
        done, what raises has no other attempt. Where another process runs the handler (`process`, a
        target, a consumer, another worker) it is always False.
        """
        return self._slot is not None and self._slot.cancel_asked(self._attempt)

    @property
    def tx(self) -> Any:
        """The transaction of a handler with `transaction=True`; see `late.handler.shared_context`.

        Raises:
            ConfigError: the task has none. `begin` and `once` open one.
        """
        raise ConfigError(f"{self.name}: ctx.tx is for @app.task(transaction=True)")

    def heartbeat(self) -> None:
        """Report that the attempt is alive: its time-out counts from now. It costs almost no I/O.

        Raises:
            AttemptOver: the attempt has ended, and another may be running: stop working. In a child
                process this is not raised, because the process is killed.
        """
        self._beat(self._attempt)
        self._beaten = monotonic()

    def check(self) -> None:
        """Return if there is time left, for loops that end themselves. It is no heartbeat.

        Raises:
            SoftTimeLimit: the task's `soft_timeout_s` is over, or without one its time-out.
            AttemptOver: the attempt has ended: the worker stops, or the time-out is over.
        """
        if self._slot is not None and self._slot.is_over(self._attempt):
            raise AttemptOver(f"attempt {self.attempt} of {self.task_id} was ended")
        if monotonic() - self._beaten >= (self._soft_timeout_s or self._timeout_s):
            raise SoftTimeLimit

    def count(self, name: str, number: int = 1) -> None:
        """Count something that the business knows, such as an order: `ctx.count("orders")`.

        The sum is in the journal with the end of the task, once, and only if the task is done: what
        a failed attempt has counted is forgotten. `late close --counted orders` divides the cost by
        it. A shadow counts nothing. Call it in the handler's own thread.

        Args:
            number: how many; 0 or more.

        Raises:
            ConfigError: a wrong name or number, or too many names.
        """
        counts.check(self.name, name, number)
        if number and not self.shadow:
            if self._counts is None:
                self._counts = {}
            self._counts[name] = self._counts.get(name, 0) + number

    def counted(self, value: object) -> object:
        """Return what the handler returned, with what it has counted if it is done. For `late`."""
        if self._counts is None:
            return value
        verdict = returned(value)
        if verdict.kind != "done":
            return verdict
        return msgspec.structs.replace(verdict, counts=tuple(sorted(self._counts.items())))

    @property
    def _tag(self) -> str:
        """The tag of transactions that are opened for this attempt."""
        return tag_of(self._attempt)

    def _once_more(self) -> None:
        """Refuse a second block in one attempt: it would count as done and never run."""
        if self._once_done:
            raise SecondBlock(
                f"{self.name}: a task has one block of once(), and this attempt has committed it:"
                " put both into one block, or make two tasks"
            )

    def _may_claim(self, tx: object) -> bool:
        """Return False for the effects of a shadow that nobody would roll back."""
        if not self.shadow:
            return True
        from late.outbox.shadow import is_held

        return is_held(tx)

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

    __slots__ = ()

    @property
    def session(self) -> Session:
        """A SQLAlchemy session in `tx`; see there."""
        raise ConfigError(f"{self.name}: ctx.session is for @app.task(transaction=True)")

    @contextmanager
    def begin(self) -> Iterator[Any]:
        """Open a new transaction in the business database, usable as `tx` of an enqueue.

        It commits at the end of the block, and rolls back if the block raises. If the handler has a
        transaction already, enqueue through that one: this takes another connection.
        """
        with block(self._attempt), self._opened()(self._url, self._idle, tag=self._tag) as tx:
            yield tx

    def _opened(self) -> Callable[..., AbstractContextManager[Any]]:
        """Return what opens a transaction for this attempt."""
        if self.shadow:
            from late.outbox import shadow

            return shadow.begin
        from late.outbox.connections import begin

        return begin

    @contextmanager
    def once(self) -> Iterator[Any]:
        """Open a transaction of the business database whose effects happen exactly once.

        It is like `begin`, and commits one more row with the writes of the block: the record that
        this task has done them (in this consumer group). If that record exists already, the block
        is not entered: `AlreadyDone` leaves the handler, and the task is done. So put code that
        must also run on a repeat before the block, and no important code after it.

        A task has one such block. A repeat that runs at the same time waits here for the first run.

        Raises:
            AlreadyDone: another run has committed the effects. It is a signal and not an error.
            AttemptOver: this attempt has ended, or its shard has another owner.
            ConfigError: it is the second block in the same attempt.
        """
        self._once_more()
        self.heartbeat()
        opened = self._opened()(self._url, self._idle, self._claim_or_leave, self._tag)
        with block(self._attempt), opened as tx:
            yield tx
            self.heartbeat()  # Raises if the attempt has ended: it must not commit then.
        self._once_done = True

    def claim(self, tx: SyncTransaction) -> bool:
        """Claim the effects for a transaction of the handler, such as a Session.

        Call it as the first statement of that transaction.

        Returns:
            True if the effects are to be done in `tx`. False if another run of the task has
            committed them, or if `tx` would commit in a shadow: return without doing them.

        Raises:
            AttemptOver: this attempt has ended, or its shard has another owner: roll back.
            InvalidTask: `tx` does not have an accepted type, or is in autocommit mode.
        """
        from late.outbox.inbox import claim

        self.heartbeat()
        return self._may_claim(tx) and self._claimed(claim(tx, self._attempt))

    def _claim_or_leave(self, tx: SyncTransaction) -> None:
        from late.outbox.inbox import claim

        if not self._claimed(claim(tx, self._attempt)):
            raise AlreadyDone()

    def enqueue(self, call: AnyCall) -> TaskId:
        """Enqueue one in a new transaction, not inside of `begin()` or `once()` (`InvalidTask`)."""
        return self.enqueue_many([call])[0]

    def enqueue_many(self, calls: Sequence[AnyCall]) -> list[TaskId]:
        """Enqueue all of `calls` or none, as `enqueue` does, and return their ids in order."""
        refuse_inside(self._attempt)
        if not calls:
            return []
        with self.begin() as tx:
            ids: list[TaskId] = calls[0].app.enqueue_many(tx, calls)
            return ids


class AsyncContext(_Attempt):
    """The context of `async def` handlers."""

    __slots__ = ()

    @property
    def session(self) -> AsyncSession:
        """A SQLAlchemy session in `tx`; see there."""
        raise ConfigError(f"{self.name}: ctx.session is for @app.task(transaction=True)")

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        """Open a new transaction in the business database, usable as `tx` of an enqueue.

        It commits at the end of the block, and rolls back if the block raises or is cancelled. If
        the handler has a transaction already, enqueue through that: this takes another connection.
        """
        with block(self._attempt):
            async with self._opened()(self._url, self._idle, tag=self._tag) as tx:
                yield tx

    def _opened(self) -> Callable[..., AbstractAsyncContextManager[Any]]:
        """Return what opens a transaction for this attempt."""
        if self.shadow:
            from late.outbox import shadow

            return shadow.begin_async
        from late.outbox.connections import begin_async

        return begin_async

    @asynccontextmanager
    async def once(self) -> AsyncIterator[Any]:
        """Open a transaction whose effects happen exactly once; see `Context.once`."""
        self._once_more()
        self.heartbeat()
        with block(self._attempt):
            opened = self._opened()
            async with opened(self._url, self._idle, self._claim_or_leave, self._tag) as tx:
                yield tx
                self.heartbeat()  # Raises if the attempt has ended: it must not commit then.
        self._once_done = True

    @overload
    def claim(self, tx: AsyncTransaction) -> Awaitable[bool]: ...
    @overload
    def claim(self, tx: SyncTransaction) -> bool: ...
    def claim(self, tx: Any) -> Any:
        """Claim the effects for a transaction of the handler; see `Context.claim`.

        The answer of an async transaction is awaited. That of a sync one, in a function that
        `asyncio.to_thread` or Django's `sync_to_async` runs, is there at once.
        """
        from late.outbox.adapters.lookup import find

        self.heartbeat()
        if find(tx)[1]:
            return Awaited(self._claim(tx))
        from late.outbox.inbox import claim, refuse_on_loop

        refuse_on_loop(tx)
        return self._may_claim(tx) and self._claimed(claim(tx, self._attempt))

    async def _claim(self, tx: AsyncTransaction) -> bool:
        from late.outbox.inbox import claim_async

        return self._may_claim(tx) and self._claimed(await claim_async(tx, self._attempt))

    async def _claim_or_leave(self, tx: AsyncTransaction) -> None:
        from late.outbox.inbox import claim_async

        if not self._claimed(await claim_async(tx, self._attempt)):
            raise AlreadyDone()

    async def enqueue(self, call: AnyCall) -> TaskId:
        """Enqueue one in a new transaction, not inside of `begin()` or `once()` (`InvalidTask`)."""
        return (await self.enqueue_many([call]))[0]

    async def enqueue_many(self, calls: Sequence[AnyCall]) -> list[TaskId]:
        """Enqueue all of `calls` or none, as `enqueue` does, and return their ids in order."""
        refuse_inside(self._attempt)
        if not calls:
            return []
        async with self.begin() as tx:
            ids: list[TaskId] = await calls[0].app.enqueue_many(tx, calls)
            return ids


def _datetime(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)
