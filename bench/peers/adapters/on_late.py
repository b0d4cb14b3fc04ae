"""late, with the settings it comes with: `late worker on_late:app`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import psycopg
from common import BUSINESS, NOTE, URL, Failing, Marks, main
from common import update as statement
from mix import fails_first, is_delayed

import late
from bench.shapes.tasks import mix_options, pool
from late.schema import migrate

app = late.App(URL or "postgresql://localhost/bench")
marks = Marks()


@app.task(queue="bench")
async def nothing(n: int, note: str) -> None:
    marks.nothing()


@app.task(queue="bench")
async def stamp(n: int, note: str) -> None:
    marks.stamp(n)


@app.task(queue="bench")
def update(ctx: late.Context, n: int, note: str) -> None:
    marks.nothing()
    with ctx.once() as tx:
        tx.execute(statement(n))


# A worker with such a task looks at the pool of each: only where they are measured.
@app.task(queue="bench", transaction=os.environ.get("BENCH_TASK") == "shared")
def shared(ctx: late.Context, n: int, note: str) -> None:
    marks.nothing()
    ctx.tx.execute(statement(n))


@app.task(queue="bench")
def pooled(n: int, note: str) -> None:
    marks.nothing()
    with pool().begin() as tx:
        tx.exec_driver_sql(statement(n))


@app.task(queue="bench", name="mixed", retry=late.Retry(base=0.1))
async def mix(ctx: late.AsyncContext, n: int, note: str) -> None:
    marks.nothing()
    if ctx.attempt > 1:
        return
    if is_delayed(n):
        marks.stamp(n)
    if fails_first(n):
        raise Failing


TASKS: dict[str, Any] = {"nothing": nothing, "stamp": stamp, "mixed": mix}
TASKS |= {"update": update, "shared": shared, "pooled": pooled}


def asked(number: int, start_s: float) -> dict[str, Any]:
    """Return what a task of the mix asks for; delays count from `start_s`."""
    options = mix_options(number)
    if "delay" in options:
        options["delay"] += max(0.0, start_s - time.time())
    return options


class Connected:
    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection

    async def bulk(
        self, numbers: Sequence[int], task: str = "nothing", start_s: float = 0.0
    ) -> None:
        if task == "mixed":
            calls = [mix.options(**asked(n, start_s)).call(n, NOTE) for n in numbers]
        else:
            calls = [TASKS[task].call(n, NOTE) for n in numbers]
        with self._connection.transaction():
            app.enqueue_many(self._connection, calls)

    async def single(self, number: int, task: str) -> None:
        with self._connection.transaction():
            self._connection.execute(BUSINESS, (number,))
            TASKS[task].enqueue(self._connection, number, NOTE)

    async def close(self) -> None:
        self._connection.close()


class Late:
    def versions(self) -> dict[str, str]:
        return {"late": version("late-queue"), "psycopg": version("psycopg")}

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
