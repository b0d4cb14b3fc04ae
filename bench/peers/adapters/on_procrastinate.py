"""Procrastinate. No-ops are asynchronous, so one process runs many of them at once, and finished
jobs are deleted, as its pages `howto/concurrency` and `howto/production/delete_finished_jobs` say;
`howto/production/external_connection` lets a job join the caller's transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import procrastinate
import psycopg
from common import BUSINESS, URL, Failing, Marks, arguments, main
from common import update as statement
from mix import fails_first, is_delayed, mixed
from psycopg_pool import AsyncConnectionPool

CONCURRENCY = 30
POOL = 20

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=URL, max_size=20))
marks = Marks()


@app.task(queue="bench", name="nothing")
async def nothing(n: int, note: str) -> None:
    marks.nothing()


@app.task(queue="bench", name="stamp")
async def stamp(n: int, note: str) -> None:
    marks.stamp(n)


pool = AsyncConnectionPool(URL, min_size=1, max_size=POOL, open=False)


@app.task(queue="bench", name="update")
async def update(n: int, note: str) -> None:
    marks.nothing()
    async with pool.connection() as connection:
        await connection.execute(statement(n))


@app.task(queue="bench", name="mixed", pass_context=True, retry=procrastinate.RetryStrategy(wait=1))
async def mix(context: procrastinate.JobContext, n: int, note: str) -> None:
    marks.nothing()
    if context.job.attempts:
        return
    if is_delayed(n):
        marks.stamp(n)
    if fails_first(n):
        raise Failing


def asked(number: int, start_s: float) -> dict[str, Any]:
    """What a job of the mix asks for: a lock for its key, a queueing lock for its unique one."""
    one = mixed(number)
    options = {"lock": one.key, "queueing_lock": one.unique, "priority": one.priority}
    if one.delay_s is not None:
        options["schedule_at"] = datetime.fromtimestamp(start_s + one.delay_s, UTC)
    return options


class Connected:
    """Deferring goes through a connection of its own, as a service's would."""

    def __init__(self, connection: psycopg.AsyncConnection) -> None:
        self._connection = connection

    async def bulk(
        self, numbers: Sequence[int], task: str = "nothing", start_s: float = 0.0
    ) -> None:
        async with self._connection.transaction():
            if task == "mixed":  # a batch shares its options
                for n in numbers:
                    job = mix.configure(connection=self._connection, **asked(n, start_s))
                    await job.defer_async(**arguments(n))
                return
            job = app.tasks[task].configure(connection=self._connection)
            await job.batch_defer_async(*(arguments(n) for n in numbers))

    async def single(self, number: int, task: str) -> None:
        async with self._connection.transaction():
            await self._connection.execute(BUSINESS, (number,))
            job = app.tasks[task].configure(connection=self._connection)
            await job.defer_async(**arguments(number))

    async def close(self) -> None:
        await self._connection.close()


class Procrastinate:
    def versions(self) -> dict[str, str]:
        return {name: version(name) for name in ("procrastinate", "psycopg")}

    async def prepare(self) -> None:
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    async def client(self) -> Connected:
        return Connected(await psycopg.AsyncConnection.connect(URL, autocommit=True))

    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        async with app.open_async(), pool:
            await app.run_worker_async(
                queues=["bench"], concurrency=CONCURRENCY, delete_jobs="successful"
            )


if __name__ == "__main__":
    main(Procrastinate())
