"""Mistakes in calls. Each line with a mark must have exactly these errors, and no other line."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime
from decimal import Decimal
from typing import Protocol

import late
from tests.typing.handlers import app, charge, distant, plain, send_all, with_context


class AsyncSession(Protocol):
    """Any async driver's transaction."""

    async def commit(self) -> None: ...


class Asyncpg(Protocol):
    """A connection of asyncpg, which has no `commit`."""

    def is_in_transaction(self) -> bool: ...


def arguments(tx: sqlite3.Connection) -> None:
    charge.enqueue(tx, "7", amount=Decimal("3.5"))  # error: call-overload, reportCallIssue
    charge.enqueue(tx)  # error: call-overload, reportCallIssue
    with_context.enqueue(tx, 1, 2)  # error: call-overload, reportCallIssue
    plain.enqueue(tx, 1, wrod="b")  # error: call-overload, reportCallIssue
    plain.call(1, wrod="b")  # error: call-arg, reportCallIssue
    send_all.enqueue(tx, 7)  # error: call-overload, reportCallIssue
    distant.enqueue(tx, "7")  # error: call-overload, reportCallIssue
    plain.options(delay=3).enqueue(tx, "7")  # error: call-overload, reportCallIssue


def transactions(tx: sqlite3.Connection) -> None:
    charge.enqueue("tx", 7, Decimal(1))  # error: call-overload, reportCallIssue
    charge.enqueue(trip_id=7, amount=Decimal(1))  # error: call-overload, reportCallIssue
    app.enqueue_many([plain.call(1)])  # error: call-overload, reportCallIssue
    app.enqueue_many(tx, [plain])  # error: list-item, reportCallIssue
    app.enqueue(plain.call(1))  # error: call-overload, reportCallIssue
    app.send("plain", {"trip_id": 1})  # error: call-overload, reportCallIssue


async def awaits(session: AsyncSession, pg: Asyncpg, tx: sqlite3.Connection) -> None:
    plain.enqueue(session, 1)  # error: unused-coroutine, reportUnusedCoroutine
    plain.enqueue(pg, 1)  # error: unused-coroutine, reportUnusedCoroutine
    plain.options(delay=3).enqueue(session, 1)  # error: unused-coroutine, reportUnusedCoroutine
    app.enqueue(pg, plain.call(1))  # error: unused-coroutine, reportUnusedCoroutine
    app.enqueue_many(session, [plain.call(1)])  # error: unused-coroutine, reportUnusedCoroutine
    app.send(session, "plain")  # error: unused-coroutine, reportUnusedCoroutine
    await plain.enqueue(tx, 1)  # error: misc, reportGeneralTypeIssues
    forgotten: late.TaskId = plain.enqueue(session, 1)  # error: assignment, reportAssignmentType
    print(forgotten)


def options(tx: sqlite3.Connection) -> None:
    plain.options(dealy=3)  # error: call-arg, reportCallIssue
    plain.options(delay="3")  # error: arg-type, reportArgumentType
    plain.options(delay=datetime.now(UTC))  # error: arg-type, reportArgumentType
    plain.options(at=5)  # error: arg-type, reportArgumentType
    plain.options(on_conflict="raise")  # error: arg-type, reportArgumentType
    app.send(tx, "plain", prioriy=3)  # error: call-overload, reportCallIssue


async def results(task_id: late.TaskId) -> None:
    number = await app.handle(task_id).result(type=int)
    number.upper()  # error: attr-defined, reportAttributeAccessIssue
    print(app.handle(task_id).reslut)  # error: attr-defined, reportAttributeAccessIssue
    app.handle(7)  # error: arg-type, reportArgumentType
