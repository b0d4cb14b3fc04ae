"""The service's own tables: what it would have without `late`.

They live in the same database as `late`'s, which is the whole point: one commit covers both. The
service knows only what is below; `database_sql` does it for SQLite and PostgreSQL through
SQLAlchemy, `database_spanner` for Cloud Spanner through Google's client.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Effect:
    """One row of the service's log; times by the database's clock."""

    trip_id: int
    step: str
    task_id: str
    cents: int | None
    at_us: int


class Database(Protocol):
    """One database of the service; safe to use from any thread.

    `tx` is the transaction of whichever driver it is. `late` takes it as it is.
    """

    store: str

    def create(self) -> None:
        """Make the tables if they are not there; rows of earlier runs stay."""

    def transaction(self, body: Callable[[Any], T]) -> T:
        """Run `body(tx)` and commit; an exception rolls back and is passed on.

        A database may abort a transaction in favour of another one: then `body` is run again. So
        it does nothing but write through `tx`, which enqueues with it.
        """

    def book(self, tx: Any, trip_id: int, zone: str, payment: str, total: Decimal) -> None:
        """Write a trip."""

    def once(
        self,
        trip_id: int,
        step: str,
        task_id: str,
        amount: Decimal | None = None,
        *,
        also: Callable[[Any], object] | None = None,
    ) -> None:
        """Record the effect of a step and run `also(tx)`, in one transaction.

        Neither is done if an earlier run of the task has done both.
        """

    def next_id(self) -> int:
        """An id above every trip of earlier runs on this database."""

    def booked(self, first_id: int) -> dict[int, int]:
        """When each trip from `first_id` on was booked, in microseconds."""

    def effects(self, first_id: int) -> list[Effect]:
        """What was recorded of the trips from `first_id` on."""

    def close(self) -> None: ...


def connect(url: str, *, connections: int) -> Database:
    """The database at `url`; each driver is needed for its own database only."""
    if url.startswith("spanner"):
        from .database_spanner import SpannerDatabase

        return SpannerDatabase(url)
    from .database_sql import SqlDatabase

    return SqlDatabase(url, connections=connections)


def cents(amount: Decimal) -> int:
    return int(amount * 100)
