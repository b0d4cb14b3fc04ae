"""The shared part of the Python adapters. It runs in a peer's environment: standard library only.

An adapter is a program with these commands, and one line of JSON as its last line of output:

| command | does | says |
|---|---|---|
| `prepare` | makes the peer's schema | its versions |
| `bulk FIRST COUNT [TASK [START]]` | puts tasks in, as many at once as it is made for | seconds |
| `single COUNT CLIENTS` | business row + task a transaction, on so many connections | seconds |
| `produce RATE SECONDS FILE [TASK]` | the same at a rate; writes `number time` of each to FILE | |
| `work` | runs tasks until SIGTERM | |

`BENCH_URL` is the PostgreSQL database, `BENCH_REDIS` the Redis, `BENCH_MARKS` the file of marks,
`BENCH_NOTE` the length of the payload's filler. START is the time from which delays
count. Tasks are `nothing`, `stamp`, and where a peer has
them `update` and `mixed`, the shapes of `bench.shapes`.
Each client has a thread and an event loop of its own, so that one that blocks delays no other.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

URL = os.environ.get("BENCH_URL", "")
REDIS = os.environ.get("BENCH_REDIS", "")
NOTE = "x" * int(os.environ.get("BENCH_NOTE", "100"))
"""Filler: with 100 a task's payload is some 120 bytes."""
BATCH = 1_000
"""Tasks per call when they are put in in bulk."""
SEEN_EVERY = 200
"""No-ops per mark: one write for each would be measured with them."""
BUSINESS = "insert into business values (%s, 'order')"
UPDATE = "update business set note = 'paid' where id = "
ROWS = 1_000
"""The number of rows that `update` writes to in turn."""


class Client(Protocol):
    """One connection that puts tasks in. Its methods may block."""

    async def bulk(self, numbers: Sequence[int], task: str = "nothing") -> None:
        """Put in a task once per number, and commit. With `mixed` the time comes as well from
        which delays count."""

    async def single(self, number: int, task: str) -> None:
        """A business row and one task, committed; in one transaction where the peer can."""

    async def close(self) -> None: ...


class Adapter(Protocol):
    def versions(self) -> dict[str, str]: ...

    async def prepare(self) -> None: ...

    async def client(self) -> Client: ...

    def work(self) -> None:
        """Run tasks until SIGTERM."""


class Marks:
    """The record of what handlers did: one `write` a line, so that lines of several threads and
    processes stay whole. `itertools.count` hands out each number once, whatever the thread."""

    def __init__(self) -> None:
        path = os.environ.get("BENCH_MARKS", os.devnull)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._count = itertools.count(1)

    def nothing(self) -> None:
        """The no-op: the first one and every `SEEN_EVERY`th leave a mark."""
        count = next(self._count)
        if count == 1:
            os.write(self._file, f"first {time.time_ns()}\n".encode())
        if count % SEEN_EVERY == 0:
            os.write(self._file, f"seen {SEEN_EVERY}\n".encode())

    def stamp(self, number: int) -> None:
        """The task whose latency is measured."""
        os.write(self._file, f"{number} {time.time_ns()}\n".encode())


def update(number: int) -> str:
    """One indexed UPDATE of the service's own table."""
    return f"{UPDATE}{number % ROWS}"


class Failing(Exception):
    """A first attempt of the mix that fails as it was told to."""


def arguments(number: int) -> dict[str, Any]:
    """A task's payload, the same for every peer."""
    return {"n": number, "note": NOTE}


def main(adapter: Adapter) -> None:
    """Run the command of the command line."""
    command, *rest = sys.argv[1:]
    answer: dict[str, Any] = {}
    if command == "prepare":
        asyncio.run(adapter.prepare())
        answer = {"versions": adapter.versions() | {"python": sys.version.split()[0]}}
    elif command == "bulk":
        task = [rest[2], *map(float, rest[3:])] if rest[2:] else []
        answer = {"seconds": asyncio.run(_bulk(adapter, int(rest[0]), int(rest[1]), *task))}
    elif command == "single":
        answer = {"seconds": _single(adapter, int(rest[0]), int(rest[1]))}
    elif command == "produce":
        _produce(adapter, float(rest[0]), float(rest[1]), Path(rest[2]), *rest[3:])
    elif command == "work":
        adapter.work()
    else:
        sys.exit(f"no such command: {command}")
    print(json.dumps(answer), flush=True)


async def _bulk(adapter: Adapter, first: int, count: int, *task: Any) -> float:
    client = await adapter.client()
    began = time.perf_counter()
    for start in range(first, first + count, BATCH):
        await client.bulk(range(start, min(start + BATCH, first + count)), *task)
    seconds = time.perf_counter() - began
    await client.close()
    return seconds


def _together(count: int, run: Callable[[int], Any]) -> None:
    """`run(number)` in a thread each; the first error is raised here, after all have ended."""
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            asyncio.run(run(number))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _single(adapter: Adapter, count: int, clients: int) -> float:
    """Seconds from when all are connected until the last has committed."""
    ready = threading.Barrier(clients)
    began: list[float] = []
    ended: list[float] = []

    async def one(number: int) -> None:
        client = await adapter.client()
        ready.wait()
        began.append(time.perf_counter())
        for task in range(number, count, clients):
            await client.single(task, "nothing")
        ended.append(time.perf_counter())
        await client.close()

    _together(clients, one)
    return max(ended) - min(began)


def _produce(
    adapter: Adapter, rate: float, seconds: float, file: Path, task: str = "stamp"
) -> None:
    """One client per 250 a second, evenly spaced; one that falls behind does not bunch up."""
    clients = max(1, int(rate // 250))
    share = rate / clients
    ready = threading.Barrier(clients)
    committed: list[list[str]] = [[] for _ in range(clients)]

    async def one(first: int) -> None:
        client = await adapter.client()
        ready.wait()
        began = time.monotonic()
        for turn in range(int(share * seconds)):
            wait = began + turn / share - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
            number = first + turn * clients
            await client.single(number, task)
            committed[first].append(f"{number} {time.time_ns()}")
        await client.close()

    _together(clients, one)
    file.write_text("".join(f"{line}\n" for lines in committed for line in lines))
