"""The parts of an adapter: protocols for the caller's transaction, and statements as values.

The steps of an insert (`insert.py`) are a generator that yields statements and receives their
answers. So they are written once for sync and async drivers.

Source: the generator that yields what it waits for is an idea of `psycopg/generators.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from late.errors import InvalidTask

T = TypeVar("T")

OVER = "late.over"
"""The key in the `info` of a session whose transaction belonged to something that has ended. Such a
session begins another one by itself, which nobody commits."""

TABLES_MISSING = (
    "the tables of late are missing in the database of this connection, or of another version: run "
    "`late migrate URL`; or they are in a schema that its search_path does not have (PostgreSQL)"
)

COMMIT_REFUSED = (
    "this transaction is shared with other tasks, and commits with the record of their ends:"
    " return from the handler instead"
)
ROLLBACK_REFUSED = (
    "this transaction is shared with other tasks: raise out of the handler, or use a savepoint"
    " (`with ctx.begin() as tx:`)"
)


class SyncTransaction(Protocol):
    """A connection, session or transaction whose `commit` is not awaited.

    It is a protocol and not a union of the drivers' classes. So a type checker can distinguish sync
    from async without an installed driver. At run time the exact type is looked up, see
    `late.outbox`.
    """

    def commit(self) -> None: ...


class AwaitedCommit(Protocol):
    """A connection, session or transaction whose `commit` is awaited."""

    def commit(self) -> Awaitable[None]: ...


class AsyncpgConnection(Protocol):
    """A connection of asyncpg. It has no `commit`: its transactions are blocks."""

    def is_in_transaction(self) -> bool: ...


AsyncTransaction: TypeAlias = AwaitedCommit | AsyncpgConnection


class Statement(NamedTuple):
    """One statement in the driver's own parameter style."""

    sql: str
    params: Sequence[Any] | dict[str, Any]
    fetch: bool = False


class Answer(NamedTuple):
    """The result of one statement. It has rows only if the statement has `fetch`."""

    rowcount: int
    rows: Sequence[Sequence[Any]] = ()


Steps: TypeAlias = Generator[Statement, Answer, T]


def refuse_over(info: Mapping[Any, Any]) -> None:
    """Refuse a session that has `OVER` in its `info`.

    Raises:
        InvalidTask: it has.
    """
    if OVER in info:
        raise InvalidTask(
            "the transaction of this request is over, and nobody would commit this task: what runs"
            " after the answer (BackgroundTasks, a streamed body) needs a transaction of its own"
        )
