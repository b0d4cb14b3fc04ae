"""No-op attempts per second through the dispatcher alone: no database, no scheduler.

    python bench/micro_dispatch.py [--seconds 3] [--profile]

Attempts are submitted as a worker does: as many as there are free slots, from within
`on_finished`; with `--ahead`, that many more than slots.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from late.dispatcher.dispatcher import Dispatcher
from late.model.ids import new_id
from late.model.task import Attempt, Options, Outcome, Record


@dataclass
class Task:
    fn: Callable[..., Any]
    is_async: bool
    process: bool = False
    wants_context: bool = False
    timeout_s: float | None = None
    retry: None = None

    @property
    def name(self) -> str:
        return self.fn.__name__

    def decode(self, record: Record, options: Options | None) -> dict[str, Any]:
        return {}


async def _on_loop() -> None:
    pass


async def _on_loop_waiting() -> None:
    await asyncio.sleep(0)


def _in_thread() -> None:
    pass


def _in_process() -> None:
    pass


# A child process finds a handler by its function's name, so each stands where its function was.
TASKS = {
    "async": Task(_on_loop, is_async=True),
    "async, waits once": Task(_on_loop_waiting, is_async=True),
    "sync, thread": Task(_in_thread, is_async=False),
    "sync, process": (_in_process := Task(_in_process, is_async=False, process=True)),
}


def attempt(name: str) -> Attempt:
    record = Record(0, 1, new_id(0), "default", name, b"{}", None, None, 0, 0)
    return Attempt("default", record, 1, 0, 1, 0)


async def measure(task: Task, seconds: float, concurrency: int, ahead: int) -> float:
    """Attempts per second."""
    one = attempt(task.name)
    finished = 0
    ends = float("inf")
    warm, over = asyncio.Event(), asyncio.Event()

    def on_finished(outcomes: list[Outcome]) -> None:
        nonlocal finished
        assert all(outcome.kind == "done" for outcome in outcomes), outcomes[0]
        finished += len(outcomes)
        warm.set()
        if time.perf_counter() < ends:
            dispatcher.submit([one] * max(0, concurrency + ahead - dispatcher.load))
        else:
            over.set()

    dispatcher = Dispatcher(
        {task.name: task},
        worker_id="bench",
        concurrency=concurrency,
        now_us=lambda: time.time_ns() // 1000,
        on_finished=on_finished,
        url="sqlite://",
    )
    await dispatcher.start()
    dispatcher.submit([one])
    await warm.wait()  # Children have started.
    before, began = finished, time.perf_counter()
    ends = began + seconds
    dispatcher.submit([one] * max(0, concurrency + ahead - dispatcher.load))
    await over.wait()
    rate = (finished - before) / (time.perf_counter() - began)
    await dispatcher.stop(5)
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--ahead", type=int, default=0)
    parser.add_argument("--only", choices=TASKS)
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    for name, task in TASKS.items():
        if given.only not in (None, name):
            continue
        profile = cProfile.Profile() if given.profile else None
        if profile:
            profile.enable()
        rate = asyncio.run(measure(task, given.seconds, given.concurrency, given.ahead))
        if profile:
            profile.disable()
            pstats.Stats(profile).sort_stats("tottime").print_stats(18)
        print(f"{name:20} {rate:10,.0f} attempts/s {1e6 / rate:8.2f} µs each")


if __name__ == "__main__":
    main()
