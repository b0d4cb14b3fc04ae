"""Procrastinate. No-ops are asynchronous, so one process runs many of them at once, and finished
jobs are deleted, as its pages `howto/concurrency` and `howto/production/delete_finished_jobs` say;
`howto/production/external_connection` lets a job join the caller's transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib.metadata import version

import procrastinate
import psycopg
from common import BUSINESS, URL, Marks, arguments, main

CONCURRENCY = 30

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=URL, max_size=20))
marks = Marks()


@app.task(queue="bench", name="nothing")
async def nothing(n: int, note: str) -> None:
    marks.nothing()


@app.task(queue="bench", name="stamp")
async def stamp(n: int, note: str) -> None:
    marks.stamp(n)


class Connected:
    """Deferring goes through a connection of its own, as a service's would."""

    def __init__(self, connection: psycopg.AsyncConnection) -> None:
        self._connection = connection

    async def bulk(self, numbers: Sequence[int]) -> None:
        async with self._connection.transaction():
            job = nothing.configure(connection=self._connection)
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
        async with app.open_async():
            await app.run_worker_async(
                queues=["bench"], concurrency=CONCURRENCY, delete_jobs="successful"
            )


if __name__ == "__main__":
    main(Procrastinate())
