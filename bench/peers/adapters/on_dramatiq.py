"""Dramatiq with Redis, started by its command line as its guide shows: a process per core with
eight threads each. A task is put in after the commit of the business row: no transaction holds
both, and a crash between the two loses it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

import dramatiq
import psycopg
from common import BUSINESS, NOTE, REDIS, URL, Marks, main
from dramatiq.brokers.redis import RedisBroker

dramatiq.set_broker(RedisBroker(url=REDIS))
marks = Marks()


@dramatiq.actor(actor_name="nothing")
def nothing(n: int, note: str) -> None:
    marks.nothing()


@dramatiq.actor(actor_name="stamp")
def stamp(n: int, note: str) -> None:
    marks.stamp(n)


ACTORS = {"nothing": nothing, "stamp": stamp}


class Connected:
    """Dramatiq has no call for many tasks at once."""

    def __init__(self) -> None:
        self._connection = psycopg.connect(URL)

    async def bulk(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            nothing.send(number, NOTE)

    async def single(self, number: int, task: str) -> None:
        with self._connection.transaction():
            self._connection.execute(BUSINESS, (number,))
        ACTORS[task].send(number, NOTE)

    async def close(self) -> None:
        self._connection.close()


class DramatiqPeer:
    def versions(self) -> dict[str, str]:
        return {name: version(name) for name in ("dramatiq", "redis")}

    async def prepare(self) -> None:
        """A broker needs no schema."""

    async def client(self) -> Connected:
        return Connected()

    def work(self) -> None:
        processes = str(os.cpu_count() or 1)
        command = ["-m", "dramatiq", "on_dramatiq", "--processes", processes, "--threads", "8"]
        os.execv(sys.executable, [sys.executable, *command])


if __name__ == "__main__":
    main(DramatiqPeer())
