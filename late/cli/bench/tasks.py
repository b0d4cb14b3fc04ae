"""Tasks of `late bench`: they only write down when they started."""

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
    """Write one line with the time, in one `write`: it is read while the worker runs."""
    os.write(_marks, f"{text} {time.time_ns()}\n".encode())


@app.task(queue="bench")
async def nothing(n: int, note: str) -> None:
    """Leave a mark if it is the first of the process."""
    global _started
    if not _started:
        _started = True
        mark("first")


@app.task(queue="bench")
async def stamp(n: int, note: str) -> None:
    """Leave a mark with the number."""
    mark(str(n))
