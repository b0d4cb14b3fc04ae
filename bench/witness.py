"""The app of the workers of `bench.restarts`: each start leaves a line in a file of its process.

One `write` per line to a descriptor in append mode: what was written before a kill stays. Times are
the system's monotonic clock, which all processes of one machine share.
"""

from __future__ import annotations

import asyncio
import os
import time

import late

app = late.App(os.environ.get("BENCH_URL", "sqlite:///bench.db"))
_takes_s = float(os.environ.get("BENCH_TAKES_S", "0.01"))
_hold = os.environ.get("BENCH_HOLD")
"""The task with number 0 runs until there is a file of this name."""
_file = -1


@app.task(queue="bench")
async def witness(ctx: late.AsyncContext, n: int) -> None:
    """Says which attempt of which number starts when, and takes a little time."""
    global _file
    if _file < 0:
        path = os.path.join(os.environ["BENCH_FOLDER"], f"{os.getpid()}.starts")
        _file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(_file, f"{n} {ctx.attempt} {time.monotonic_ns()}\n".encode())
    await asyncio.sleep(_takes_s)
    while n == 0 and _hold and not os.path.exists(_hold):  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.05)
