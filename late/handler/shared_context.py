"""The context of a handler with `transaction=True`: it has the transaction that it shares."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from late.handler.context import AsyncContext, Context
from late.handler.enqueuer import AnyCall
from late.model.task import TaskId

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session

    from late.outbox.base import AsyncTransaction, SyncTransaction
    from late.outbox.shared import SharedTransaction

_FIELDS = tuple(name for name in AsyncContext.__mro__[1].__slots__)  # type: ignore[attr-defined]


class SharedContext(Context):
    """The context of `def` handlers in a shared transaction."""

    __slots__ = ("_shared", "_tx")

    def __init__(self, attempt: AsyncContext | Context, shared: SharedTransaction) -> None:
        """Make it for the same attempt as another context."""
        for field in _FIELDS:
            setattr(self, field, getattr(attempt, field))
        self._shared = shared
        self._tx = shared.connection

    @property
    def tx(self) -> Any:
        """The transaction: what is done in it happens exactly once."""
        return self._tx

    @property
    def session(self) -> Session:
        """A SQLAlchemy session in the same transaction, flushed when the handler has returned."""
        found: Session = self._shared.session()
        return found

    @contextmanager
    def begin(self) -> Iterator[Any]:
        """Give the shared transaction, with a savepoint: if the block raises, what it did is taken
        back. It commits with the task."""
        with self._tx.transaction():
            yield self._tx

    @contextmanager
    def once(self) -> Iterator[Any]:
        """Do the same as `begin`: in this transaction all happens exactly once."""
        self.heartbeat()
        with self.begin() as tx:
            yield tx

    def claim(self, tx: SyncTransaction) -> bool:
        """Return True for the shared transaction; of another one, claim as ever."""
        return self._shared.is_own(tx) or super().claim(tx)

    def enqueue_many(self, calls: Sequence[AnyCall]) -> list[TaskId]:
        """Enqueue all of `calls` or none in the shared transaction, and return their ids."""
        if not calls:
            return []
        ids: list[TaskId] = calls[0].app.enqueue_many(self._tx, calls)
        return ids


class SharedAsyncContext(AsyncContext):
    """The context of `async def` handlers in a shared transaction; see `SharedContext`."""

    __slots__ = ("_shared", "_tx")

    def __init__(self, attempt: AsyncContext, shared: SharedTransaction) -> None:
        for field in _FIELDS:
            setattr(self, field, getattr(attempt, field))
        self._shared = shared
        self._tx = shared.connection

    @property
    def tx(self) -> Any:
        """The transaction: what is done in it happens exactly once."""
        return self._tx

    @property
    def session(self) -> AsyncSession:
        """A SQLAlchemy session in the same transaction, flushed when the handler has returned."""
        found: AsyncSession = self._shared.session()
        return found

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        """Give the shared transaction with a savepoint; see `SharedContext.begin`."""
        async with self._tx.transaction():
            yield self._tx

    @asynccontextmanager
    async def once(self) -> AsyncIterator[Any]:
        """Do the same as `begin`: in this transaction all happens exactly once."""
        self.heartbeat()
        async with self.begin() as tx:
            yield tx

    async def _claim(self, tx: AsyncTransaction) -> bool:
        """Return True for the shared transaction; of another one, claim as ever."""
        return self._shared.is_own(tx) or await super()._claim(tx)

    async def enqueue_many(self, calls: Sequence[AnyCall]) -> list[TaskId]:
        """Enqueue all of `calls` or none in the shared transaction, and return their ids."""
        if not calls:
            return []
        ids: list[TaskId] = await calls[0].app.enqueue_many(self._tx, calls)
        return ids
