"""late, with the settings it comes with: `late worker on_late:app`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

import psycopg
from common import BUSINESS, NOTE, URL, Marks, main

import late
from late.schema import migrate

app = late.App(URL or "postgresql://localhost/bench")
marks = Marks()


@app.task(queue="bench")
async def nothing(n: int, note: str) -> None:
    marks.nothing()


@app.task(queue="bench")
async def stamp(n: int, note: str) -> None:
    marks.stamp(n)


TASKS = {"nothing": nothing, "stamp": stamp}


class Connected:
    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection

    async def bulk(self, numbers: Sequence[int]) -> None:
        with self._connection.transaction():
            app.enqueue_many(self._connection, [nothing.call(n, NOTE) for n in numbers])

    async def single(self, number: int, task: str) -> None:
        with self._connection.transaction():
            self._connection.execute(BUSINESS, (number,))
            TASKS[task].enqueue(self._connection, number, NOTE)

    async def close(self) -> None:
        self._connection.close()


class Late:
    def versions(self) -> dict[str, str]:
        return {name: version(name) for name in ("late", "psycopg")}

    async def prepare(self) -> None:
        migrate.upgrade(URL)

    async def client(self) -> Connected:
        return Connected(psycopg.connect(URL))

    def work(self) -> None:
        # The worker takes this process over, so that signals and processor time are its own. Like
        # the others it fails at once where there is no server.
        command = ["late.cli", "worker", "on_late:app", "--wait-for-database", "0"]
        os.execv(sys.executable, [sys.executable, "-m", *command])


if __name__ == "__main__":
    main(Late())
