"""The app of the measured workers: `late worker bench.shapes.tasks:app`. One table of shapes."""

from __future__ import annotations

import functools
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Engine, create_engine, event

import late
from bench.peers.adapters import mix
from bench.peers.adapters.mix import KEYS

ROWS = 1_000
"""The number of rows that the UPDATE writes to in turn."""
SMALL, LARGE = "x" * 100, "x" * 2_000

app = late.App(os.environ.get("BENCH_URL", "sqlite:///bench.db"))
_marks = os.open(
    os.environ.get("BENCH_MARKS", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644
)


class Failing(Exception):
    """A first attempt that fails as it was told to."""


@functools.cache
def begun() -> None:
    """Leave a mark once in each process, at its first task."""
    os.write(_marks, f"first {time.time_ns()} {time.process_time_ns()}\n".encode())


@app.task(queue="bench")
async def plain(n: int, note: str) -> None:
    begun()


@app.task(queue="bench")
def function(n: int, note: str) -> None:
    begun()


@app.task(queue="bench")
async def context(ctx: late.AsyncContext, n: int, note: str) -> None:
    begun()


@app.task(queue="bench", history=True)
async def history(n: int, note: str) -> None:
    begun()


@app.task(queue="bench", retry=late.Retry(base=0.1))
async def mixed(ctx: late.AsyncContext, n: int, note: str) -> None:
    begun()
    if ctx.attempt == 1:
        if mix.is_delayed(n):
            os.write(_marks, f"{n} {time.time_ns()}\n".encode())
        if mix.fails_first(n):
            raise Failing


@app.task(queue="bench")
def once(ctx: late.Context, n: int, note: str) -> None:
    begun()
    with ctx.once() as tx:
        mark = "?" if isinstance(tx, sqlite3.Connection) else "%s"
        tx.execute(f"update business set note = 'paid' where id = {mark}", (n % ROWS,))


# Another store refuses it.
SHARES = app.url.startswith(("postgresql", "sqlite"))
PAID = (
    f"update business set note = 'paid' where id = {'?' if app.url.startswith('sqlite') else '%s'}"
)


@app.task(queue="bench", transaction=SHARES)
def shared(ctx: late.Context, n: int, note: str) -> None:
    begun()
    ctx.tx.execute(PAID, (n % ROWS,))


@app.task(queue="bench", transaction=SHARES)
async def shared_async(ctx: late.AsyncContext, n: int, note: str) -> None:
    begun()
    await ctx.tx.execute(PAID, (n % ROWS,))


@functools.cache
def pool() -> Engine:
    """Return the service's own pool of connections, as it would be made for its other work."""
    url = os.environ["BENCH_URL"].replace("postgresql://", "postgresql+psycopg://")
    made = create_engine(url, pool_size=20)
    if url.startswith("sqlite"):
        event.listen(made, "connect", _durable)
    return made


def _durable(connection: sqlite3.Connection, _record: object) -> None:
    connection.execute("pragma synchronous = full")
    connection.execute("pragma busy_timeout = 30000")


def _pay(tx: Any, n: int) -> None:
    tx.exec_driver_sql(f"update business set note = 'paid' where id = {n % ROWS}")


@app.task(queue="bench")
def claimed(ctx: late.Context, n: int, note: str) -> None:
    begun()
    with pool().begin() as tx:
        if ctx.claim(tx):
            _pay(tx, n)


@app.task(queue="bench")
def pooled(n: int, note: str) -> None:
    begun()
    with pool().begin() as tx:
        _pay(tx, n)


def mix_options(n: int) -> dict[str, Any]:
    """Return what a task of the mix asks for, in late's words."""
    one = mix.mixed(n)
    options = {
        "delay": one.delay_s,
        "ordering_key": one.key,
        "priority": one.priority,
        "unique_key": one.unique,
    }
    return {name: value for name, value in options.items() if value}


def in_turn(n: int) -> dict[str, Any]:
    """Return an ordering key, each in turn."""
    return {"ordering_key": f"k{n % KEYS}"}


class Shape(NamedTuple):
    """One row of the table: what is enqueued, how, and what share of the tasks of a run."""

    title: str
    task: late.Task[[int, str], Any]
    options: Callable[[int], dict[str, Any]] = lambda _n: {}
    note: str = SMALL
    share: float = 1.0
    workers: int = 1
    delays: bool = False
    stores: Sequence[str] = ("sqlite", "postgresql")

    def call(self, n: int, wait_s: float = 0.0) -> Any:
        """Make the call of one number; delays count from `wait_s` after now."""
        asked = self.options(n)
        if "delay" in asked:
            asked["delay"] += wait_s
        return (self.task.options(**asked) if asked else self.task).call(n, self.note)


SHAPES: dict[str, Shape] = {
    "plain": Shape("plain `async def`", plain),
    "function": Shape("`def` handler", function),
    "context": Shape("with a context", context),
    "large": Shape("payload of 2 KB", plain, note=LARGE, share=0.5),
    "priority": Shape("with a priority", plain, lambda n: {"priority": n % 3 - 1}, share=0.5),
    "unique": Shape("with a unique key", plain, lambda n: {"unique_key": f"u{n}"}, share=0.5),
    "ordered": Shape(f"{KEYS} ordering keys", plain, in_turn, share=0.5),
    "history": Shape("with history", history, share=0.5),
    "mix": Shape("options, delays and retries mixed", mixed, mix_options, LARGE, 0.6, delays=True),
    "once": Shape("one UPDATE in `ctx.once()`", once, share=0.1),
    "shared": Shape("one UPDATE, `transaction=True`", shared, share=0.1),
    "shared_async": Shape("one UPDATE, `transaction=True`, `async def`", shared_async, share=0.1),
    "claimed": Shape("one UPDATE, own pool, `claim`", claimed, share=0.1),
    "pooled": Shape("one UPDATE, own pool, no `claim`", pooled, share=0.1),
    "two": Shape("plain, two worker processes", plain, workers=2),
}
"""A shape more is one line more."""
