"""Tasks with every kind of signature, as a service declares them. It must pass."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import late

app = late.App("sqlite:///trips.db")


@app.task(queue="payments", retry=late.Retry(max_attempts=5), timeout_s=30)
async def charge(
    ctx: late.AsyncContext, trip_id: int, amount: Decimal, *, note: str = ""
) -> None: ...


@app.task
def plain(trip_id: int, word: str = "a") -> int:
    return trip_id


@app.task
def with_context(ctx: late.Context, trip_id: int) -> None: ...


@app.task(batch=100, queue="mail")
def send_all(mails: late.Batch[str]) -> None:
    for item in mails:
        print(item.value)


@app.schedule("0 3 * * *", tz="America/New_York", catch_up="latest", overlap="skip")
@app.task(queue="reports")
def nightly(ctx: late.Context) -> None: ...


@app.schedule(every=timedelta(seconds=90), args={"n": 1})
async def often(ctx: late.AsyncContext, n: int) -> None: ...


def shape(trip_id: int) -> None: ...


distant = app.remote("distant", target="billing", like=shape)
