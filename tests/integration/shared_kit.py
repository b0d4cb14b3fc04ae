"""An app whose handlers share transactions, and what its effects are counted by."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

import late
from late.config import WorkerConfig
from late.control import Control
from late.store.base import Fate
from late.store.postgres import shared_transaction
from late.store.sqlite import shared_transaction as in_a_file
from late.worker.worker import Worker
from tests.integration import postgres_kit
from tests.integration.shared_effect import effect as effect
from tests.integration.shared_effect import effect_async as effect_async
from tests.support import sqlite
from tests.support.leases import LONG_LEASES

TABLES = """
create table effect (task text, number int);
create table account (id int primary key, balance int not null default 0);
insert into account (id) select generate_series(0, 999);
"""
FILE_TABLES = """
create table effect (task text, number int);
create table account (id integer primary key, balance int not null default 0);
insert into account (id)
    with recursive n(i) as (select 0 union all select i + 1 from n where i < 999) select i from n;
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
    with raw(url) as tx:
        return Counter(n for (n,) in tx.execute("select number from effect").fetchall())


@contextmanager
def business_file(folder: Path) -> Iterator[str]:
    """The same in a SQLite file."""
    url = sqlite.database(folder / "business.db")
    with raw(url) as tx:
        tx.executescript(FILE_TABLES)
    yield url


@contextmanager
def raw(url: str) -> Iterator[Any]:
    """A connection for the test itself, which commits at the end."""
    if not url.startswith("sqlite"):
        with psycopg.connect(url) as tx:
            yield tx
        return
    path = url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, timeout=120.0)) as connection, connection:
        yield connection


def check(url: str) -> None:
    """Nothing is open, the books add up, and both kinds of effect agree."""
    with Control(url) as control:
        assert all(
            q.depth.n + q.in_flight.n + q.parked.n == 0 for q in control.status.read().queues
        )
        found = control.verify()
        assert not found.problems, found.problems
    with raw(url) as tx:
        [(balances,)] = tx.execute("select sum(balance) from account").fetchall()
    assert balances == sum(effects(url).values())


def enqueue(app: late.App, calls: list[Any]) -> list[str]:
    with raw(app.url) as tx:
        return [*app.enqueue_many(tx, calls)]


@asynccontextmanager
async def working(app: late.App, **settings: Any) -> AsyncIterator[Worker]:
    """A worker that polls quickly."""
    worker = Worker(
        app, settings=WorkerConfig(poll_max_s=0.05, grace_s=5.0, **LONG_LEASES | settings)
    )
    await worker.start()
    try:
        yield worker
    finally:
        await worker.stop()


async def until(condition: Callable[[], bool], limit_s: float = 120.0) -> None:
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
    for module in (shared_transaction, in_a_file):
        commit: Any = module.commit
        replaced = partial(wrong, commit)
        monkeypatch.setattr(module, "commit", replaced)
