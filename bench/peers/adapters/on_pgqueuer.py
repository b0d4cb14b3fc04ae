"""PgQueuer. Its page on performance tuning: larger batches for short jobs, at most half as large
as the tasks that run at once; `autovac` after the installation; one connection of asyncpg for the
manager; durability stays at its default, `durable`.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Sequence
from importlib.metadata import version

import asyncpg
import uvloop
from common import URL, Marks, arguments, main, update
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

BATCH_SIZE = 100
POOL = 20
BUSINESS = "insert into business values ($1, 'order')"

marks = Marks()


def payload(number: int) -> bytes:
    return json.dumps(arguments(number)).encode()


class Connected:
    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self._queries = Queries(AsyncpgDriver(connection))

    async def bulk(self, numbers: Sequence[int], task: str = "nothing") -> None:
        count = len(numbers)
        await self._queries.enqueue([task] * count, [payload(n) for n in numbers], [0] * count)

    async def single(self, number: int, task: str) -> None:
        async with self._connection.transaction():
            await self._connection.execute(BUSINESS, number)
            await self._queries.enqueue(task, payload(number))

    async def close(self) -> None:
        await self._connection.close()


class Pgqueuer:
    def versions(self) -> dict[str, str]:
        return {name: version(name) for name in ("pgqueuer", "asyncpg", "uvloop")}

    async def prepare(self) -> None:
        connection = await asyncpg.connect(URL)
        queries = Queries(AsyncpgDriver(connection))
        await queries.install()
        await queries.optimize_autovacuum()
        await connection.close()

    async def client(self) -> Connected:
        return Connected(await asyncpg.connect(URL))

    def work(self) -> None:
        uvloop.run(self._work())

    async def _work(self) -> None:
        pool = await asyncpg.create_pool(URL, min_size=1, max_size=POOL)
        manager = PgQueuer.from_asyncpg_connection(await asyncpg.connect(URL))

        @manager.entrypoint("nothing")
        async def nothing(job: Job) -> None:
            marks.nothing()

        @manager.entrypoint("stamp")
        async def stamp(job: Job) -> None:
            marks.stamp(json.loads(job.payload or b"")["n"])

        @manager.entrypoint("update")
        async def pay(job: Job) -> None:
            marks.nothing()
            await pool.execute(update(json.loads(job.payload or b"")["n"]))

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, manager.shutdown.set)
        await manager.run(batch_size=BATCH_SIZE)


if __name__ == "__main__":
    main(Pgqueuer())
