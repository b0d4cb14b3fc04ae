"""late on any store, as a program like those in `bench/peers/adapters`: see `common.py` there.

| variable | means |
|---|---|
| `BENCH_NOTE` | length of the filler in the payload; 100 by default |
| `BENCH_DELAYED` | share of the tasks that wait for `DELAY_S`, beyond what stays in memory |
| `BENCH_RETRIED` | share of the tasks whose first attempt fails |
| `BENCH_GROUP` | the consumer group of the worker |
| `BENCH_COUNTED` | where `bench.counted` writes, which then runs the worker: FILE.PID |
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from common import NOTE, URL, Marks, main

import late
from late.schema import migrate

DELAY_S = 12.0
"""A little more than a worker keeps in memory, so that such a task is parked in the table."""
BUSINESS = "insert into business values ({}, 'order')"
UPDATE = "update business set note = 'sent' where id = {}"
DELAYED = float(os.environ.get("BENCH_DELAYED", "0"))
RETRIED = float(os.environ.get("BENCH_RETRIED", "0"))

app = late.App(URL or "sqlite:///bench.db")
marks = Marks()
_own = threading.local()


def chosen(number: int, share: float) -> bool:
    """Tell whether a task is of a share: the same tasks in each run, evenly spread."""
    return int((number + 1) * share) > int(number * share)


class Failing(Exception):
    """An attempt that fails as it was told to."""


@app.task(queue="bench")
async def nothing(n: int, note: str) -> None:
    marks.nothing()


@app.task(queue="bench")
async def stamp(n: int, note: str) -> None:
    marks.stamp(n)


@app.task(queue="bench", retry=late.Retry(base=0.1))
async def failing(ctx: late.AsyncContext, n: int, note: str) -> None:
    """The same, but some first attempts fail."""
    if ctx.attempt == 1:
        marks.stamp(n)
        if chosen(n, RETRIED):
            raise Failing


@app.task(queue="bench")
def update(n: int, note: str) -> None:
    """The ordinary handler: a plain function with one indexed UPDATE on its thread's connection."""
    marks.stamp(n)
    connection = getattr(_own, "connection", None)
    if connection is None:
        connection = _own.connection = connected(URL)
    connection.execute(UPDATE.format(n))
    connection.commit()


TASKS: dict[str, Any] = {"nothing": nothing, "stamp": stamp}
TASKS |= {"failing": failing, "update": update}


def connected(url: str) -> Any:
    """Open a connection of the database's own driver."""
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")
        return connection
    import psycopg

    return psycopg.connect(url)


class Sql:
    """A client with one connection."""

    def __init__(self, url: str) -> None:
        self._connection = connected(url)

    async def bulk(self, numbers: Sequence[int]) -> None:
        app.enqueue_many(self._connection, [nothing.call(n, NOTE) for n in numbers])
        self._connection.commit()

    async def single(self, number: int, task: str) -> None:
        self._connection.execute(BUSINESS.format(number))
        asked(number, task).enqueue(self._connection, number, NOTE)
        self._connection.commit()

    async def close(self) -> None:
        self._connection.close()


class Spanner:
    """A client of Spanner: row and task are mutations of one commit."""

    def __init__(self, url: str) -> None:
        from late.store.spanner.client import open_database

        self._database: Any = open_database(url, priority="foreground")

    async def bulk(self, numbers: Sequence[int]) -> None:
        calls = [nothing.call(n, NOTE) for n in numbers]
        self._database.run_in_transaction(lambda tx: app.enqueue_many(tx, calls))

    async def single(self, number: int, task: str) -> None:
        def write(tx: Any) -> None:
            tx.insert("business", ("id", "note"), [(number, "order")])
            asked(number, task).enqueue(tx, number, NOTE)

        self._database.run_in_transaction(write)

    async def close(self) -> None:
        from late.store.spanner.client import close_database

        close_database(self._database)


def asked(number: int, task: str) -> Any:
    """Return the task as it is to be enqueued: with a delay if it is of that share."""
    if task != "nothing" and chosen(number, DELAYED):
        return TASKS[task].options(delay=DELAY_S)
    return TASKS[task]


class OnStore:
    def versions(self) -> dict[str, str]:
        return {"late": version("late-queue")}

    async def prepare(self) -> None:
        migrate.upgrade(URL)

    async def client(self) -> Sql | Spanner:
        return Spanner(URL) if URL.startswith("spanner") else Sql(URL)

    def work(self) -> None:
        counted = os.environ.get("BENCH_COUNTED")
        # A file for each worker; the process stays the same when the worker takes it over.
        command = ["bench.counted", f"{counted}.{os.getpid()}"] if counted else ["late.cli"]
        command += ["worker", "on_store:app", "--wait-for-database", "0"]
        if group := os.environ.get("BENCH_GROUP"):
            command += ["--group", group]
        os.execv(sys.executable, [sys.executable, "-m", *command])


if __name__ == "__main__":
    main(OnStore())
