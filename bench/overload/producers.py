"""Producers at a steady rate, each in a process of its own, as those of a service are.

In the worker's they would wait for its interpreter lock before and after each commit, and it for
theirs: that was most of what a crowd seemed to cost its neighbours.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import late
from bench.measure import percentile
from bench.targets import transaction
from late.app.task import Call

TURN_S = 0.05
_SPAWN = get_context("spawn")

Make = Callable[[int, float], Call]
"""(number, when it is made) -> what to enqueue. The second is its name in the samples."""


@dataclass(frozen=True)
class Committed:
    """One transaction of a producer. Seconds of the machine's monotonic clock."""

    tasks: tuple[float, ...]
    """The names of its tasks: when each was made."""
    began_s: float
    ended_s: float
    """The time when the producer's commit had returned."""


class Producer:
    """`rate` tasks a second from its start until `stop`, a transaction every `TURN_S`.

    Args:
        of: what its tasks are called in the samples.
        makes: a function of a module, called in the producer's process with an app of its own.
    """

    def __init__(self, url: str, of: str, makes: Callable[[late.App], Make], rate: int) -> None:
        self.of = of
        self._number = _SPAWN.Value("q", 0)
        self._stop = _SPAWN.Event()
        self._said, say = _SPAWN.Pipe(duplex=False)
        self._process = _SPAWN.Process(
            target=_produce, args=(url, makes, rate, self._number, self._stop, say), daemon=True
        )
        self._process.start()
        say.close()  # the process has its own: when that is closed, it is dead

    @property
    def number(self) -> int:
        """Tasks that it has committed."""
        return int(self._number.value)

    def stop(self) -> list[Committed]:
        """End it, and return all that it has committed.

        Raises:
            EOFError: it died.
        """
        self._stop.set()
        commits: list[Committed] = self._said.recv()
        self._process.join()
        return commits

    def kill(self) -> None:
        """End it if it still runs."""
        self._process.kill()
        self._process.join()


def _produce(
    url: str, makes: Callable[[late.App], Make], rate: int, number: Any, stop: Any, say: Any
) -> None:
    app, commits = late.App(url), list[Committed]()
    make, each = makes(app), max(1, round(rate * TURN_S))
    due_s = time.monotonic()
    with closing(_connection(url)) as connection:
        while not stop.is_set():
            made = [time.monotonic() for _ in range(each)]
            calls = [make(number.value + n, at_s) for n, at_s in enumerate(made)]
            began_s = time.monotonic()
            with transaction(connection):
                app.enqueue_many(connection, calls)
            commits.append(Committed(tuple(made), began_s, time.monotonic()))
            number.value += each
            due_s = max(due_s + each / rate, time.monotonic() - 1.0)
            time.sleep(max(0.0, due_s - time.monotonic()))
    say.send(commits)


def _connection(url: str) -> Any:
    """A producer's own, kept as services do: to connect costs as much as a hundred tasks."""
    if url.startswith("sqlite"):
        return sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)
    import psycopg

    return psycopg.connect(url)


class Samples:
    """Waiting times of tasks from the return of their producer's commit to their start, by kind;
    0 for a task that started before that return.

    They are judged by when they were committed: those that started within a time would be the few
    that got through, and the ones that an overload keeps waiting would be missing.
    """

    def __init__(self) -> None:
        self._started: dict[tuple[str, float], float] = {}
        self._commits: list[tuple[str, Committed]] = []

    def add(self, of: str, at: float) -> None:
        """A task starts now; `at` is its name."""
        self._started.setdefault((of, at), time.monotonic())

    def committed(self, of: str, commits: list[Committed]) -> None:
        """Add the commits of a producer of such tasks."""
        self._commits += [(of, commit) for commit in commits]

    def p99_ms(self, of: str, from_s: float, until_s: float) -> float:
        """Return the 99th percentile of `wait_ms`."""
        return self.wait_ms(of, from_s, until_s, 0.99)

    def wait_ms(self, of: str, from_s: float, until_s: float, share: float) -> float:
        """Return a percentile of the waits of tasks whose commit began in this time. A task that
        has not started yet has waited until now."""
        now_s = time.monotonic()
        waits = [
            max(0.0, self._started.get((of, at), now_s) - commit.ended_s)
            for commit in self._within(of, from_s, until_s)
            for at in commit.tasks
        ]
        return _ms(waits, until_s - from_s, share)

    def commit_p99_ms(self, of: str, from_s: float, until_s: float) -> float:
        """Return the 99th percentile of the duration of the transactions in this time."""
        commits = self._within(of, from_s, until_s)
        return _ms([commit.ended_s - commit.began_s for commit in commits], until_s - from_s)

    def _within(self, of: str, from_s: float, until_s: float) -> list[Committed]:
        return [c for each, c in self._commits if each == of and from_s <= c.began_s < until_s]


def _ms(seconds: list[float], without_any: float, share: float = 0.99) -> float:
    return round((percentile(sorted(seconds), share) if seconds else without_any) * 1_000, 1)
