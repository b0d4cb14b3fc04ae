"""Open the transactions that handlers share (`@app.task(transaction=True)`), where a store can.

The protocols are what the dispatcher sees of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from late.errors import ConfigError
from late.outbox import connections
from late.store.base import Fate, Settlement

_REFUSED = {
    "spanner": "it has no savepoints, so each task would need a transaction and a row of the"
    " journal of its own, which costs more than a row of the inbox",
    "cockroachdb": "a conflict there ends the whole transaction, which no savepoint takes back",
}


class SharedTransaction(Protocol):
    """One transaction for several handlers; see `adapters/psycopg_shared.py`."""

    @property
    def connection(self) -> Any: ...
    @property
    def error(self) -> BaseException | None: ...
    def hold(self) -> None: ...
    def session(self) -> Any: ...
    def is_own(self, tx: object) -> bool: ...
    def flush(self) -> None: ...
    async def flush_async(self) -> None: ...
    def end_session(self) -> None: ...
    async def end_session_async(self) -> None: ...
    def is_of_database(self, error: BaseException) -> bool: ...
    def is_transient(self, error: BaseException) -> bool: ...
    def next(self) -> None: ...
    async def next_async(self) -> None: ...
    def last(self) -> None: ...
    def undo(self) -> bool: ...
    async def undo_async(self) -> bool: ...
    def commit(self, settlements: Sequence[Settlement]) -> tuple[Fate, BaseException | None]: ...
    def roll_back(self) -> None: ...
    def close(self, *, committed: bool = False) -> None: ...
    def break_off(self) -> None: ...
    def cancel(self) -> None: ...


class SharedTransactions(Protocol):
    """Makes shared transactions."""

    @property
    def one_writer(self) -> bool:
        """True if nothing else of the database can be written while one is open."""
        ...

    def begin(self, is_async: bool, /) -> SharedTransaction:
        """Begin one, for `async def` handlers or for others. It blocks."""
        ...

    def close(self) -> None: ...


def open_shared(url: str, *, task: str, most: int = 1) -> SharedTransactions:
    """Return what makes shared transactions in the database at `url`. It connects later.

    Args:
        task: the name of a task that asks for it, for messages.
        most: the number of connections to keep.

    Raises:
        ConfigError: the store cannot do that, or its driver is not installed.
    """
    check(url, task)
    found: SharedTransactions = connections.shared(url, most)
    return found


def check(url: str, task: str) -> None:
    """Raise a `ConfigError` if handlers cannot share a transaction in the database at `url`."""
    scheme = url.partition(":")[0].partition("+")[0]
    if (why := _REFUSED.get(scheme)) is not None:
        raise ConfigError(
            f"task {task!r} has transaction=True, which works on PostgreSQL and SQLite and not on"
            f" {scheme}: {why}; use ctx.once() there"
        )
