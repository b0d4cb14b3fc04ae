"""The service's own tables, which it would also have without `late`.

They are in the same database as the tables of `late`, so that one commit covers both. The service
uses only the interface below; `database_sql` does it for SQLite and PostgreSQL through
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
        """Create the tables if they are missing; rows of earlier runs stay."""

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
        """Return an id above every trip of earlier runs on this database."""

    def booked(self, first_id: int) -> dict[int, int]:
        """Return the booking time of each trip from `first_id` on, in microseconds."""

    def effects(self, first_id: int) -> list[Effect]:
        """Return the recorded effects of the trips from `first_id` on."""

    def close(self) -> None: ...


def connect(url: str, *, connections: int) -> Database:
    """Open the database at `url`; only the driver of that database is needed."""
    if url.startswith("spanner"):
        from .database_spanner import SpannerDatabase

        return SpannerDatabase(url)
    from .database_sql import SqlDatabase

    return SqlDatabase(url, connections=connections)


def cents(amount: Decimal) -> int:
    return int(amount * 100)
