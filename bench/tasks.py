"""The app of the measured workers: `late worker bench.tasks:app`, with `BENCH_URL`, `BENCH_MARKS`.

Marks go to one file with one `write` each, so that the measuring process can read them while the
worker runs and after it is gone.
"""

from __future__ import annotations

import os
import sqlite3
import time

import late

NOTE = "x" * 100
"""Filler, so that a task's payload is some 120 bytes."""

COMPUTED = 8_000
"""The number to which `compute` counts."""

ROWS = 1_000
"""The number of rows that `update` writes to in turn."""

app = late.App(os.environ.get("BENCH_URL", "sqlite:///bench.db"))

_marks = os.open(
    os.environ.get("BENCH_MARKS", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644
)
_started = False


def _begin() -> None:
    global _started
    _started = True
    os.write(_marks, f"first {time.time_ns()}\n".encode())


@app.task(queue="bench")
async def nothing(n: int, note: str) -> None:
    """The no-op: only the first call of the process leaves a mark."""
    if not _started:
        _begin()


@app.task(queue="bench")
def plain(n: int, note: str) -> None:
    """The no-op of a plain `def`, which runs in a thread."""
    if not _started:
        _begin()


@app.task(queue="bench")
def plain_context(ctx: late.Context, n: int, note: str) -> None:
    """The same with a context."""
    if not _started:
        _begin()


@app.task(queue="bench")
async def compute(n: int, note: str) -> None:
    """Some 80 µs of a processor: always the same work, however busy the machine is."""
    if not _started:
        _begin()
    sum(range(COMPUTED))


@app.task(queue="bench")
async def stamp(n: int, note: str) -> None:
    """Leaves a mark with its number and the time it started."""
    os.write(_marks, f"{n} {time.time_ns()}\n".encode())


@app.task(queue="bench")
def update(ctx: late.Context, n: int, note: str) -> None:
    """The plainest effect: one indexed UPDATE, exactly once."""
    if not _started:
        _begin()
    with ctx.once() as tx:
        mark = "?" if isinstance(tx, sqlite3.Connection) else "%s"
        tx.execute(f"update business set note = 'paid' where id = {mark}", (n % ROWS,))
