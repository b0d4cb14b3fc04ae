"""Oban for Python, the open-source edition: a queue with a limit in an embedded instance, as its
README shows it; jobs of a transaction go in through `conn`.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from importlib.metadata import version

import psycopg
import uvloop
from common import BUSINESS, URL, Marks, arguments, main, update
from oban import Oban, worker
from oban.schema import install
from psycopg_pool import AsyncConnectionPool

LIMIT = 50
POOL = 20

marks = Marks()


@worker(queue="bench")
class Nothing:
    async def process(self, job):
        marks.nothing()


@worker(queue="bench")
class Stamp:
    async def process(self, job):
        marks.stamp(job.args["n"])


own = AsyncConnectionPool(URL, min_size=1, max_size=POOL, open=False)


@worker(queue="bench")
class Update:
    async def process(self, job):
        marks.nothing()
        async with own.connection() as connection:
            await connection.execute(update(job.args["n"]))


WORKERS = {"nothing": Nothing, "stamp": Stamp, "update": Update}


class Connected:
    def __init__(
        self, pool: AsyncConnectionPool, connection: psycopg.AsyncConnection, oban: Oban
    ) -> None:
        self._pool, self._connection, self._oban = pool, connection, oban

    async def bulk(self, numbers: Sequence[int], task: str = "nothing") -> None:
        jobs = [WORKERS[task].new(arguments(n)) for n in numbers]
        async with self._connection.transaction():
            await self._oban.enqueue_many(jobs, conn=self._connection)

    async def single(self, number: int, task: str) -> None:
        async with self._connection.transaction():
            await self._connection.execute(BUSINESS, (number,))
            await self._oban.enqueue(WORKERS[task].new(arguments(number)), conn=self._connection)

    async def close(self) -> None:
        await self._connection.close()
        await self._pool.close()


class ObanPeer:
    def versions(self) -> dict[str, str]:
        return {name: version(name) for name in ("oban", "psycopg", "uvloop")}

    async def prepare(self) -> None:
        async with AsyncConnectionPool(URL, min_size=1) as pool:
            await install(pool)

    async def client(self) -> Connected:
        pool = AsyncConnectionPool(URL, min_size=0, max_size=2, open=False)
        await pool.open()
        connection = await psycopg.AsyncConnection.connect(URL, autocommit=True)
        return Connected(pool, connection, Oban(pool=pool))

    def work(self) -> None:
        uvloop.run(self._work())

    async def _work(self) -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        pool = await Oban.create_pool(URL)
        async with own, Oban(pool=pool, queues={"bench": LIMIT}):
            await stop.wait()
        await pool.close()


if __name__ == "__main__":
    main(ObanPeer())
