"""The parts of an adapter: the caller's transaction by shape, and statements as values.

The steps of an insert (`insert.py`) are a generator that yields statements and is sent answers, so
that they are written once for sync and async drivers, as psycopg does with its protocol.

Source: the generator that yields what it waits for is `psycopg/generators.py`'s idea.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

T = TypeVar("T")


class SyncTransaction(Protocol):
    """A connection, session or transaction whose `commit` returns nothing to wait for.

    Shapes and not the drivers' classes: a type checker tells sync from async by them without
    any driver being installed. At run time the exact type is looked up, see `late.outbox`.
    """

    def commit(self) -> None: ...


class AsyncTransaction(Protocol):
    """The same with an awaitable `commit`."""

    def commit(self) -> Awaitable[None]: ...


class Statement(NamedTuple):
    """One statement in the driver's own parameter style."""

    sql: str
    params: Sequence[Any] | dict[str, Any]
    fetch: bool = False


class Answer(NamedTuple):
    """The result of one statement: rows only where the statement asked for them."""

    rowcount: int
    rows: Sequence[Sequence[Any]] = ()


Steps: TypeAlias = Generator[Statement, Answer, T]
