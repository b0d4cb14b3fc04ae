"""Celery with Redis. Its page on optimizing: a large prefetch for many short tasks, no results
where none are read; late acknowledgement, because a task that a dead worker held must not be lost.
A task is put in after the commit of the business row: no transaction holds both, and a crash
between the two loses it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.metadata import version

import psycopg
from celery import Celery
from common import BUSINESS, NOTE, REDIS, URL, Marks, main

app = Celery("on_celery", broker=REDIS)
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=64,
    broker_connection_retry_on_startup=True,
)
_marks: dict[int, Marks] = {}


def marks() -> Marks:
    """Those of this process: children are forked, and each counts for itself."""
    process = os.getpid()
    if process not in _marks:
        _marks[process] = Marks()
    return _marks[process]


@app.task(name="nothing")
def nothing(n: int, note: str) -> None:
    marks().nothing()


@app.task(name="stamp")
def stamp(n: int, note: str) -> None:
    marks().stamp(n)


class Connected:
    """Celery has no call for many tasks at once: they share a producer of its pool instead."""

    def __init__(self) -> None:
        self._connection = psycopg.connect(URL)

    async def bulk(self, numbers: Sequence[int]) -> None:
        with app.producer_pool.acquire(block=True) as producer:
            for number in numbers:
                nothing.apply_async((number, NOTE), producer=producer)

    async def single(self, number: int, task: str) -> None:
        with self._connection.transaction():
            self._connection.execute(BUSINESS, (number,))
        app.tasks[task].apply_async((number, NOTE))

    async def close(self) -> None:
        self._connection.close()


class CeleryPeer:
    def versions(self) -> dict[str, str]:
        return {name: version(name) for name in ("celery", "kombu", "redis")}

    async def prepare(self) -> None:
        """A broker needs no schema."""

    async def client(self) -> Connected:
        return Connected()

    def work(self) -> None:
        app.worker_main(["worker", "--loglevel=WARNING", "--without-gossip", "--without-mingle"])


if __name__ == "__main__":
    main(CeleryPeer())
