"""What a type checker must accept and refuse; `test_typing.py` runs it. Every `type: ignore` here
is a mistake that must be found: one that is not needed is an error."""

from __future__ import annotations

import sqlite3
from collections.abc import Coroutine
from datetime import timedelta
from decimal import Decimal
from typing import Any, Protocol, assert_type

import late
from late.outbox.adapters.sqlite import AsyncSqlite

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


@app.schedule("0 3 * * *", tz="America/New_York", catch_up="latest", overlap="skip")
@app.task(queue="reports")
def nightly(ctx: late.Context) -> None: ...


@app.schedule(every=timedelta(seconds=90), args={"n": 1})
async def often(ctx: late.AsyncContext, n: int) -> None: ...


class Session(Protocol):
    """Any sync driver's transaction."""

    def commit(self) -> None: ...


class AsyncSession(Protocol):
    """Any async driver's transaction."""

    async def commit(self) -> None: ...


class Asyncpg(Protocol):
    """A connection of asyncpg, which has no `commit`."""

    def is_in_transaction(self) -> bool: ...


def sync(tx: sqlite3.Connection, session: Session) -> None:
    assert_type(charge.enqueue(tx, 7, amount=Decimal("3.5")), late.TaskId)
    assert_type(charge.enqueue(session, 7, Decimal("3.5"), note="x"), late.TaskId)
    assert_type(with_context.options(delay=3).enqueue(tx, 7), late.TaskId)
    assert_type(app.enqueue_many(tx, [plain.call(1), nightly.call()]), list[late.TaskId])
    assert_type(app.send(tx, "plain", {"trip_id": 1}), late.TaskId)
    often.enqueue(tx, n=2)
    charge.enqueue(tx, "7", amount=Decimal("3.5"))  # type: ignore[call-overload]
    charge.enqueue(tx)  # type: ignore[call-overload]
    with_context.enqueue(tx, 1, 2)  # type: ignore[call-overload]
    charge.enqueue("tx", 7, Decimal(1))  # type: ignore[call-overload]
    charge.enqueue(trip_id=7, amount=Decimal(1))  # type: ignore[call-overload]
    plain.call(1, wrod="b")  # type: ignore[call-arg]
    plain.options(dealy=3)  # type: ignore[call-arg]
    plain.options(delay="3")  # type: ignore[arg-type]


async def asynchronous(tx: AsyncSqlite, session: AsyncSession, pg: Asyncpg) -> None:
    made = charge.enqueue(tx, 7, amount=Decimal("3.5"))
    await assert_type(made, Coroutine[Any, Any, late.TaskId])
    assert_type(await charge.enqueue(session, 7, amount=Decimal("3.5")), late.TaskId)
    assert_type(await app.enqueue_many(tx, [plain.call(1)]), list[late.TaskId])
    assert_type(await plain.enqueue(pg, 1), late.TaskId)
    plain.enqueue(session, 1)  # type: ignore[unused-coroutine]
    app.enqueue(pg, plain.call(1))  # type: ignore[unused-coroutine]
    plain.options(delay=3).enqueue(session, 1)  # type: ignore[unused-coroutine]


def names(task_id: late.TaskId) -> None:
    assert_type(app.handle(task_id), late.Handle)
    late.Retyr(max_attempts=5)  # type: ignore[attr-defined]
