"""An app whose handlers share transactions, and what its effects are counted by."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg

import late
from late.config import WorkerConfig
from late.control import Control
from late.store.base import Fate
from late.store.postgres import shared_transaction
from late.worker.worker import Worker
from tests.integration import postgres_kit

TABLES = """
create table effect (task text, number int);
create table account (id int primary key, balance int not null default 0);
insert into account (id) select generate_series(0, 999);
"""
SOON = late.Retry(base=0.05, cap=0.1)


@contextmanager
def business() -> Iterator[str]:
    """A migrated database with the tables of the effects; none of them keeps out a repeat."""
    with postgres_kit.database() as url:
        with psycopg.connect(url) as tx:
            tx.execute(TABLES)
        yield url


def effects(url: str) -> Counter[int]:
    """How often the effects of each number are there."""
    with psycopg.connect(url) as tx:
        return Counter(n for (n,) in tx.execute("select number from effect").fetchall())


def effect(ctx: late.Context, number: int) -> None:
    """Both kinds of effect: a row, and a change of one."""
    ctx.tx.execute("insert into effect values (%s, %s)", (ctx.task_id, number))
    ctx.tx.execute("update account set balance = balance + 1 where id = %s", (number % 1000,))


async def effect_async(ctx: late.AsyncContext, number: int) -> None:
    """The same as `effect`."""
    await ctx.tx.execute("insert into effect values (%s, %s)", (ctx.task_id, number))
    change = "update account set balance = balance + 1 where id = %s"
    await ctx.tx.execute(change, (number % 1000,))


def check(url: str) -> None:
    """Nothing is open, the books add up, and both kinds of effect agree."""
    with Control(url) as control:
        assert all(
            q.depth.n + q.in_flight.n + q.parked.n == 0 for q in control.status.read().queues
        )
        found = control.verify()
        assert not found.problems, found.problems
    with psycopg.connect(url) as tx:
        [(balances,)] = tx.execute("select sum(balance) from account").fetchall()
    assert balances == sum(effects(url).values())


def enqueue(app: late.App, calls: list[Any]) -> list[str]:
    with psycopg.connect(app.url) as tx:
        return [*app.enqueue_many(tx, calls)]


@asynccontextmanager
async def working(app: late.App, **settings: Any) -> AsyncIterator[Worker]:
    """A worker that polls quickly."""
    worker = Worker(app, settings=WorkerConfig(poll_max_s=0.05, grace_s=5.0, **settings))
    await worker.start()
    try:
        yield worker
    finally:
        await worker.stop()


async def until(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    async with asyncio.timeout(limit_s):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def ended(url: str) -> Callable[[], bool]:
    """Whether nothing of the database waits, runs or is parked."""

    def settled() -> bool:
        with Control(url) as control:
            return all(
                q.depth.n + q.in_flight.n + q.parked.n == 0 for q in control.status.read().queues
            )

    return settled


Commit = Callable[[Any, Any], tuple[Fate, BaseException | None]]


def replace_commit(monkeypatch: Any, wrong: Callable[[Commit, Any, Any], Any]) -> None:
    """Let `wrong(commit, tx, settlements)` stand in the place of each commit."""
    commit = shared_transaction.commit
    monkeypatch.setattr(shared_transaction, "commit", lambda tx, some: wrong(commit, tx, some))
