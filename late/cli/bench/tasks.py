"""Tasks of `late bench`: no-ops that write down when they started."""

from __future__ import annotations

import os
import time

import late

URL, MARKS = "LATE_BENCH_URL", "LATE_BENCH_MARKS"
NOTE = "x" * 100
"""Filler, so that a payload is some 120 bytes."""

app = late.App(os.environ.get(URL, "sqlite:///late-bench.db"))

_marks = os.open(os.environ.get(MARKS, os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
_started = False


def mark(text: str) -> None:
    """One line with the time, in one `write`: it is read while the worker runs."""
    os.write(_marks, f"{text} {time.time_ns()}\n".encode())


@app.task(queue="bench")
async def nothing(n: int, note: str) -> None:
    """Only the first of a process leaves a mark."""
    global _started
    if not _started:
        _started = True
        mark("first")


@app.task(queue="bench")
async def stamp(n: int, note: str) -> None:
    """Leaves a mark with its number."""
    mark(str(n))
