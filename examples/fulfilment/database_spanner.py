"""The service's tables on Cloud Spanner, through Google's own client.

Everything is written as mutations, which the client keeps until the commit: a trip and its tasks
are one round trip, and no lock is held for longer. Times are commit timestamps.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeVar

from google.api_core.exceptions import AlreadyExists
from google.cloud import spanner
from google.cloud.spanner_v1.transaction import Transaction

from late.store.spanner.client import place_of

from .database import Effect, cents

T = TypeVar("T")

# A service with more traffic would not number its trips: neighbours in the key are neighbours on
# the servers, and all the newest rows would be on one of them.
TABLES = (
    """CREATE TABLE IF NOT EXISTS fulfilment_trip (
  id INT64 NOT NULL,
  zone STRING(MAX) NOT NULL,
  payment STRING(MAX) NOT NULL,
  total_cents INT64 NOT NULL,
  booked_at TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true)
) PRIMARY KEY (id)""",
    # The key makes an effect happen once, however often its task runs.
    """CREATE TABLE IF NOT EXISTS fulfilment_log (
  trip_id INT64 NOT NULL,
  step STRING(MAX) NOT NULL,
  task_id STRING(MAX) NOT NULL,
  cents INT64,
  done_at TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true)
) PRIMARY KEY (trip_id, step)""",
)
TRIP = ("id", "zone", "payment", "total_cents", "booked_at")
LOG = ("trip_id", "step", "task_id", "cents", "done_at")
DDL_TIMEOUT_S = 300.0
RETRY_S = 0.02
"""The wait after ABORTED if Spanner names none; the client's own default is seconds."""


class SpannerDatabase:
    """A `Database` on a client of its own, which finds the emulator and credentials by itself."""

    store = "spanner"

    def __init__(self, url: str) -> None:
        place = place_of(url)
        client: Any = spanner.Client(project=place.project, disable_builtin_metrics=True)
        self._database: Any = client.instance(place.instance).database(place.database)

    def create(self) -> None:
        self._database.update_ddl(TABLES).result(DDL_TIMEOUT_S)

    def transaction(self, body: Callable[[Transaction], T]) -> T:
        # Spanner may abort a transaction at any time: the client then runs the whole body again.
        done: T = self._database.run_in_transaction(body, default_retry_delay=RETRY_S)
        return done

    def book(self, tx: Transaction, trip_id: int, zone: str, payment: str, total: Decimal) -> None:
        row = (trip_id, zone, payment, cents(total), spanner.COMMIT_TIMESTAMP)
        tx.insert("fulfilment_trip", TRIP, [row])

    def once(
        self,
        trip_id: int,
        step: str,
        task_id: str,
        amount: Decimal | None = None,
        *,
        also: Callable[[Transaction], object] | None = None,
    ) -> None:
        paid = None if amount is None else cents(amount)

        def body(tx: Transaction) -> None:
            tx.insert(
                "fulfilment_log", LOG, [(trip_id, step, task_id, paid, spanner.COMMIT_TIMESTAMP)]
            )
            if also is not None:
                also(tx)

        # If the row exists, all of it is refused: an earlier run has done this step.
        with suppress(AlreadyExists):
            self.transaction(body)

    def next_id(self) -> int:
        with self._database.snapshot() as snapshot:
            ((highest,),) = snapshot.execute_sql("SELECT MAX(id) FROM fulfilment_trip")
            return (highest or 0) + 1

    def booked(self, first_id: int) -> dict[int, int]:
        rows = self._rows("fulfilment_trip", ("id", "booked_at"), first_id)
        return {trip_id: _us(at) for trip_id, at in rows}

    def effects(self, first_id: int) -> list[Effect]:
        return [
            Effect(*row[:4], _us(row[4])) for row in self._rows("fulfilment_log", LOG, first_id)
        ]

    def close(self) -> None:
        self._database.spanner_api.transport.close()

    def _rows(self, table: str, columns: tuple[str, ...], first_id: int) -> list[list[Any]]:
        keys = spanner.KeySet(ranges=[spanner.KeyRange(start_closed=[first_id], end_closed=[])])
        with self._database.snapshot() as snapshot:
            return list(snapshot.read(table, columns, keys))


def _us(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
