"""W1 to W5, W7 and W8: what is asked of every peer, the same way.

| | what | how |
|---|---|---|
| W1 | drain | tasks wait; one worker starts. From its first start until its storage is empty |
| W2 | putting in | in bulk; a business row and a task a transaction, with 1 to 16 clients |
| W3 | commit to start | at a steady rate, the worker idle otherwise |
| W4 | cost per task | over the whole life of the tasks of W1: see `cost.py` |
| W5 | backlog | W1 at other sizes: does the rate hold when more waits? |
| W7 | beside an open transaction | W3 while another transaction that has written stays open |
| W8 | workers | W1 with several workers at once |

A peer whose measurement fails is shown with the reason: no number stands for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from bench.peers import cost, marks, redis
from bench.peers.environments import Environment
from bench.peers.programs import Failed, Program, Running
from bench.peers.roster import Peer
from bench.targets import Postgres

PATIENCE_S = 60.0
"""Without progress for this long a measurement gives up."""
LOOK_BELOW = 5_000
"""Unmarked tasks from which on the storage is asked: more than all processes together may leave
without a mark at the end, and more than the fastest does between two looks."""
LOOK_S, LOOK_NEAR_S = 0.02, 0.005
WARM_UP = 64


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of the workloads."""

    tasks: int = 50_000
    singles: int = 2_000
    clients: tuple[int, ...] = (1, 4, 16)
    rates: tuple[int, ...] = (100, 1_000)
    seconds: float = 10.0
    backlogs: tuple[int, ...] = ()
    workers: tuple[int, ...] = ()
    rounds: int = 0
    enduring: tuple[str, ...] = ()
    """The peers that take part in W7's rounds."""


@dataclass(frozen=True, slots=True)
class Bench:
    """The place of the measurements of one peer."""

    peer: Peer
    environment: Environment
    server: Postgres
    redis: str
    folder: Path

    @contextmanager
    def fresh(self) -> Iterator[tuple[Program, dict[str, Any]]]:
        """The peer's program on an empty database with its schema, and what `prepare` said.

        The database is gone afterwards, and what came before is on disk: neither a vacuum nor a
        checkpoint of one measurement shall fall into the next.
        """
        url = self.server.empty()
        try:
            with closing(psycopg.connect(url, autocommit=True)) as connection:
                connection.execute("create table business (id bigint primary key, note text)")
                with suppress(psycopg.errors.InsufficientPrivilege):
                    connection.execute("checkpoint")
            if self.redis:
                redis.flush(self.redis)
            program = Program(self.environment, url, self.redis, self.folder)
            yield program, program.run("prepare")
        finally:
            self.server.drop(url)

    @contextmanager
    def watch(self, url: str, count: int) -> Iterator[Callable[[], int]]:
        """Asks how many of `count` tasks the peer's storage does not know as finished."""
        left = self.peer.left
        if not isinstance(left, str):
            yield partial(redis.left, self.redis, left)
            return
        statement: Any = left.replace("{count}", str(count))
        with closing(psycopg.connect(url, autocommit=True)) as connection:
            cursor: Any = connection.cursor()
            yield lambda: int(cursor.execute(statement).fetchone()[0])


def measure(bench: Bench, sizes: Sizes, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure all numbers of one peer.

    Raises:
        Failed: one of its programs failed, or nothing moved.
    """
    tasks = max(1_000, round(sizes.tasks * bench.peer.share))
    say(f"drain: {tasks:,} no-ops, one worker")
    found = drain(bench, tasks)
    found["single"] = []
    for clients in sizes.clients:
        say(f"one per transaction, {clients} clients")
        with bench.fresh() as (program, _):
            seconds = program.run("single", sizes.singles, clients)["seconds"]
        found["single"].append({"clients": clients, "per_s": sizes.singles / seconds})
    found["backlog"] = []
    for waiting in sizes.backlogs:
        say(f"drain: {waiting:,} no-ops, one worker")
        again = drain(bench, waiting)
        found["backlog"].append({"tasks": waiting, "drain_per_s": again["drain_per_s"]})
    found["workers"] = []
    for workers in sizes.workers:
        say(f"drain: {tasks:,} no-ops, {workers} workers")
        again = drain(bench, tasks, workers)
        found["workers"].append({"workers": workers, "drain_per_s": again["drain_per_s"]})
    found["latency"] = []
    for rate, hold in [*((rate, False) for rate in sizes.rates), (sizes.rates[0], True)]:
        say(f"latency: {rate}/s for {sizes.seconds:g} s" + ", a transaction open" * hold)
        found["latency"].append(latency(bench, rate, sizes.seconds, hold=hold))
    return found


def drain(bench: Bench, count: int, workers: int = 1) -> dict[str, Any]:
    """W1, the bulk of W2, and W4; with another `count` W5, with more `workers` W8."""
    with bench.fresh() as (program, said):
        before = cost.counters(program.url)
        enqueue_s = program.run("bulk", 0, count)["seconds"]
        inserted = cost.wal_bytes(program.url) - before.wal_bytes
        server = cost.postmaster(program.url)
        server_s = cost.cpu_s(server)
        with ExitStack() as stack:
            all_running = [stack.enter_context(program.worker(number)) for number in range(workers)]
            end = emptied(bench, program.url, count, all_running)
        after = cost.counters(program.url)
        database_s = _difference(server_s, cost.cpu_s(server))
    return {
        "versions": said["versions"],
        "tasks": count,
        "enqueue_bulk_per_s": count / enqueue_s,
        "drain_per_s": count / end.seconds,
        "wal_insert_bytes": inserted / count,
        "per_task": after.since(before).per_task(count),
        "worker_cpu_us": _each_us(end.worker_cpu_s, count),
        "database_cpu_us": _each_us(database_s, count),
    }


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def _each_us(seconds: float | None, count: int) -> float | None:
    return None if seconds is None else seconds / count * 1e6


def _cpu_s(all_running: Sequence[Running]) -> float | None:
    """Processor seconds of the workers and their children so far."""
    taken = [cost.cpu_s(running.process.pid) for running in all_running]
    return None if None in taken else sum(filter(None, taken))


@dataclass(frozen=True, slots=True)
class Emptied:
    """A drain, from the first start until the storage was empty."""

    seconds: float
    worker_cpu_s: float | None
    """CPU time of the workers in that time, without that of their start."""


def _read(all_running: Sequence[Running]) -> marks.Marks:
    """The marks of all workers so far."""
    lines = [line for running in all_running for line in marks.lines(running.marks)]
    return marks.parse(lines)


def emptied(bench: Bench, url: str, count: int, all_running: Sequence[Running]) -> Emptied:
    """Wait until the storage knows every task as finished.

    Asking costs the database something, so only marks are read until `LOOK_BELOW` are left.

    Raises:
        Failed: the worker ended, or nothing moved for `PATIENCE_S`.
    """
    best, moved = (-1, count), time.monotonic()
    before_s = first_ns = None
    with bench.watch(url, count) as left:
        while True:
            for running in all_running:
                running.check()
            found = _read(all_running)
            if first_ns is None and found.first_ns is not None:
                before_s = _cpu_s(all_running)
            first_ns = found.first_ns
            near = first_ns is not None and count - found.seen < LOOK_BELOW
            rest = left() if near else count
            now_ns = time.time_ns()
            if first_ns is not None and rest <= 0:
                used_s = _difference(before_s, _cpu_s(all_running))
                return Emptied((now_ns - first_ns) / 1e9, used_s)
            if (found.seen, rest) != best:
                best, moved = (found.seen, rest), time.monotonic()
            if time.monotonic() - moved > PATIENCE_S:
                raise Failed(f"{found.seen} of {count} started, {rest} left, and nothing moves")
            time.sleep(LOOK_NEAR_S if near else LOOK_S)


def latency(bench: Bench, rate: int, seconds: float, *, hold: bool) -> dict[str, Any]:
    """W3, and with `hold` W7: from the return of a commit to the start of its handler."""
    commits = bench.folder / "commits"
    with bench.fresh() as (program, _), program.worker() as running:
        program.run("bulk", 0, WARM_UP)
        emptied(bench, program.url, WARM_UP, [running])
        with _held(program.url) if hold else nullcontext():
            program.run("produce", rate, seconds, commits)
            committed = marks.pairs(commits)
            found = started(running, len(committed))
    lags = marks.lags_ms(committed, found.started)
    return {
        "asked_per_s": rate,
        "open_transaction": hold,
        "twice": found.again,
        **marks.summary(lags, seconds),
    }


@contextmanager
def _held(url: str) -> Iterator[None]:
    """A transaction that has written and stays open, as a stuck client or a long report has."""
    with closing(psycopg.connect(url)) as holder:
        holder.execute("insert into business values (-1, 'held')")
        yield
        holder.rollback()


def started(running: Running, count: int) -> marks.Marks:
    """The marks, once `count` tasks have started.

    Raises:
        Failed: they have not, and nothing moved for `PATIENCE_S`.
    """
    best, moved = -1, time.monotonic()
    while True:
        running.check()
        found = _read([running])
        if len(found.started) >= count:
            return found
        if len(found.started) > best:
            best, moved = len(found.started), time.monotonic()
        if time.monotonic() - moved > PATIENCE_S:
            raise Failed(f"{best} of {count} tasks started, and no more come")
        time.sleep(0.05)
