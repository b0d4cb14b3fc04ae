"""The tasks of the service. A worker is started with `late worker examples.fulfilment.app:app`.

A task may run more than once: when a worker dies, another one runs again what had started and was
not settled yet. So each handler makes sure that its effect happens once, with a row that it writes
in the same transaction as the effect (`Database.once`).
"""

from __future__ import annotations

import asyncio
import os
import signal
from decimal import Decimal
from functools import cache

import late

from .database import Database, connect
from .witness import witnessed

URL = os.environ.get("FULFILMENT_URL", "sqlite:///fulfilment.db")

app = late.App(URL)


@cache
def database() -> Database:
    """Return the handlers' own connections; they are opened at the first call."""
    return connect(URL, connections=16)


class ProviderDown(Exception):
    """The payment provider did not answer."""


def outages(trip_id: int) -> int:
    """Return the number of calls that the simulated payment provider leaves unanswered."""
    return trip_id % 2 + 1 if trip_id % 8 == 3 else 0


@app.task(queue="dispatch")
def assign_driver(ctx: late.Context, trip_id: int) -> None:
    """Assign a driver, as soon as the trip is committed."""
    with witnessed(ctx, "assign_driver", trip_id):
        database().once(trip_id, "assign_driver", ctx.task_id)


@app.task(queue="payments", retry=late.Retry(max_attempts=6, base=0.2, cap=1.0))
def charge(ctx: late.Context, trip_id: int, amount: Decimal) -> None:
    """Charge the rider at drop-off. The receipt is enqueued in the transaction that records the
    payment: there is no receipt without a payment and no payment without a receipt."""
    with witnessed(ctx, "charge", trip_id):
        if ctx.attempt <= outages(trip_id):
            raise ProviderDown(f"no answer for trip {trip_id}, call {ctx.attempt}")
        database().once(
            trip_id,
            "charge",
            ctx.task_id,
            amount,
            also=lambda tx: receipt.enqueue(tx, trip_id, amount=amount),
        )


@app.task(queue="mail")
def receipt(ctx: late.Context, trip_id: int, amount: Decimal) -> None:
    """Send the receipt, after the payment is recorded."""
    with witnessed(ctx, "receipt", trip_id):
        database().once(trip_id, "receipt", ctx.task_id, amount)


@app.task(queue="mail")
async def remind(ctx: late.AsyncContext, trip_id: int) -> None:
    """Ask for a rating, a day later; the call to a push service is left out."""
    with witnessed(ctx, "remind", trip_id):
        await asyncio.to_thread(database().once, trip_id, "remind", ctx.task_id)


@app.task(queue="fraud", process=True)
def inspect_route(ctx: late.Context, trip_id: int, poison: bool) -> None:
    """Run native code that may crash, in a process of its own; one trip does crash it."""
    with witnessed(ctx, "inspect_route", trip_id):
        if poison:
            os.kill(os.getpid(), signal.SIGKILL)
        database().once(trip_id, "inspect_route", ctx.task_id)
