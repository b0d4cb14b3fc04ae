"""The service: writes each trip and its tasks in one transaction, and takes some of them back."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import Any

from .app import app, assign_driver, charge, inspect_route, remind
from .database import Database
from .trips import Trip

REMIND_AFTER = timedelta(days=1)
REQUESTS = 4
"""Requests that the service handles at the same time."""


class Declined(Exception):
    """The rider's bank declined after everything had been written: the transaction rolls back."""


@dataclass(frozen=True, slots=True)
class Promise:
    """The promise to a committed trip."""

    trip_id: int
    total: Decimal
    charge_after_us: int
    remind_after_us: int
    inspected: bool
    poison: bool

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps that must be done; a poison task can only end as a dead letter."""
        always = ("assign_driver", "charge", "receipt", "remind")
        return (*always, "inspect_route") if self.inspected and not self.poison else always


@dataclass(slots=True)
class Bookings:
    """The bookings that the service knows. It is never killed, so this is the truth."""

    committed: dict[int, Promise] = field(default_factory=dict)
    rolled_back: set[int] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self.committed) + len(self.rolled_back)


def is_declined(index: int) -> bool:
    """Return True for one trip in ten."""
    return index % 10 == 7


def promise(index: int, trip_id: int, trip: Trip, speed: float) -> Promise:
    """Make the promise, with times divided by `speed`, in microseconds as `late` keeps them."""
    ride = trip.dropoff - trip.pickup
    return Promise(
        trip_id=trip_id,
        total=trip.total,
        charge_after_us=round(ride / timedelta(microseconds=1) / speed),
        remind_after_us=round((ride + REMIND_AFTER) / timedelta(microseconds=1) / speed),
        inspected=index % 50 == 5,
        poison=index == 5,
    )


def write(database: Database, tx: Any, trip: Trip, promised: Promise) -> None:
    """Write the trip and its tasks in the caller's transaction."""
    trip_id, key = promised.trip_id, f"trip-{promised.trip_id}"
    database.book(tx, trip_id, trip.zone, trip.payment, trip.total)
    calls = [
        # One key: nobody is charged before a driver was assigned.
        assign_driver.options(ordering_key=key).call(trip_id),
        charge.options(ordering_key=key, delay=promised.charge_after_us / 1e6).call(
            trip_id, amount=trip.total
        ),
        remind.options(delay=promised.remind_after_us / 1e6).call(trip_id),
    ]
    if promised.inspected:
        calls.append(inspect_route.call(trip_id, poison=promised.poison))
    app.enqueue_many(tx, calls)


def run(
    database: Database,
    trips: Sequence[Trip],
    bookings: Bookings,
    *,
    first_id: int,
    speed: float,
    stop: threading.Event,
) -> None:
    """Book every trip at its (scaled) pick-up time, each in a transaction of its own.

    Ends early when `stop` is set. Raises what the database raises.
    """
    began = time.monotonic()

    def serve(turn: int) -> None:
        for index in range(turn, len(trips), REQUESTS):
            trip = trips[index]
            due = began + (trip.pickup - trips[0].pickup).total_seconds() / speed
            if stop.wait(max(0.0, due - time.monotonic())):
                return
            book(database, bookings, index, promise(index, first_id + index, trip, speed), trip)

    with ThreadPoolExecutor(REQUESTS) as pool:
        for done in [pool.submit(serve, turn) for turn in range(REQUESTS)]:
            done.result()


def book(database: Database, bookings: Bookings, index: int, promised: Promise, trip: Trip) -> None:
    """Serve one request in one transaction, which some requests roll back at the end."""

    def body(tx: Any) -> None:
        write(database, tx, trip, promised)
        if is_declined(index):
            raise Declined

    try:
        database.transaction(body)
    except Declined:
        bookings.rolled_back.add(promised.trip_id)
    else:
        bookings.committed[promised.trip_id] = promised
