"""Calls that must pass, and the types that they give."""

from __future__ import annotations

import sqlite3
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Protocol, assert_type

import late
from late.app.task import Prepared
from tests.typing.handlers import app, charge, distant, nightly, often, plain, send_all
from tests.typing.handlers import with_context as counted


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
    assert_type(counted.options(delay=3).enqueue(tx, 7), late.TaskId)
    assert_type(app.enqueue_many(tx, [plain.call(1), nightly.call()]), list[late.TaskId])
    assert_type(app.enqueue(tx, plain.call(1)), late.TaskId)
    assert_type(app.send(tx, "plain", {"trip_id": 1}, priority=3), late.TaskId)
    assert_type(app.cancel(tx, app.send(tx, "plain")), late.TaskId)
    assert_type(send_all.enqueue(tx, "ada@example.org"), late.TaskId)
    assert_type(distant.enqueue(tx, trip_id=7), late.TaskId)
    often.enqueue(tx, n=2)
    assert_type(plain(7), int)


async def asynchronous(session: AsyncSession, pg: Asyncpg) -> None:
    made = charge.enqueue(session, 7, amount=Decimal("3.5"))
    await assert_type(made, Coroutine[Any, Any, late.TaskId])
    assert_type(await charge.enqueue(session, 7, amount=Decimal("3.5")), late.TaskId)
    assert_type(await app.enqueue_many(session, [plain.call(1)]), list[late.TaskId])
    assert_type(await app.enqueue(session, plain.call(1)), late.TaskId)
    assert_type(await app.send(session, "plain"), late.TaskId)
    assert_type(await plain.enqueue(pg, 1), late.TaskId)


def options() -> None:
    in_an_hour = plain.options(delay=timedelta(hours=1), priority=-5, headers={"a": "b"})
    assert_type(in_an_hour.call(1), late.Call)
    assert isinstance(in_an_hour, Prepared)
    plain.options(at=datetime.now(UTC), expires=datetime.now(UTC), ordering_key="7")
    plain.options(unique_key="7", unique_for=60, on_conflict="replace", autocommit=True)
    asked: late.TaskOptions = {"delay": 3, "subject": "tenant-42"}
    plain.options(**asked)


async def results(task_id: late.TaskId) -> None:
    handle = app.handle(task_id)
    assert_type(handle, late.Handle)
    assert_type(handle.state(), str)
    assert_type(handle.task_id, late.TaskId)
    assert_type(await handle.result(type=int), int)
    assert_type(await handle.result(10, type=dict[str, int]), dict[str, int])
    assert_type(handle.wait(None, type=datetime), datetime)
    assert_type(await handle.result(), Any)
    assert_type(handle.wait(), Any)
