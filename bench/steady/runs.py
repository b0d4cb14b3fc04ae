"""The measurements: each on a fresh database, and each leaves nothing running."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import mean
from typing import Any

from bench.peers import cost, marks
from bench.peers.programs import Failed, Program, Running
from bench.peers.workloads import started
from bench.steady.loop import Beside
from bench.steady.places import Look, OnSpanner, Place

WARM_UP = 64
PATIENCE_S = 60.0
LOOK_S = 0.25
CONSUMED_S = 20.0
"""The longest wait for the log to be pruned, before what is left counts as growth: a worker prunes
every 15 s."""
PAGES = 500
"""Fewer rows or tasks than this say nothing about bytes: tables grow by pages."""
CALM_S = 3.0
"""From the warm-up to the measurement, and from the start of an idle fleet."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What is put in."""

    rate: float
    seconds: float
    task: str = "stamp"
    note: int = 100
    """Length of the payload's filler; some 20 bytes more are keys and a number."""
    delayed: float = 0.0
    retried: float = 0.0
    workers: int = 1

    @property
    def variables(self) -> dict[str, str]:
        """What the producers and the workers are told beside the rate."""
        shares = {"BENCH_DELAYED": str(self.delayed), "BENCH_RETRIED": str(self.retried)}
        return shares | {"BENCH_NOTE": str(self.note)}


def steady(place: Place, shape: Shape) -> dict[str, Any]:
    """Measure one shape with a worker, and the same producers without one right before.

    Raises:
        Failed: a program failed, or nothing moved.
    """
    with Beside() as beside:
        alone = without_worker(place, shape)
        found = with_worker(place, shape)
    return {
        "rate": shape.rate,
        "task": shape.task,
        "note_bytes": shape.note,
        "delayed": shape.delayed,
        "retried": shape.retried,
        "workers": shape.workers,
        **beside.figures(),
        **derived(found, alone),
    }


def without_worker(place: Place, shape: Shape) -> Look:
    """Return what the producers do to the database by themselves."""
    with place.fresh(**shape.variables) as program:
        before = place.look(program.url)
        _produce(program, shape)
        return place.look(program.url).since(before)


@dataclass(frozen=True, slots=True)
class Worked:
    """What happened with a worker."""

    tasks: int
    whole: Look
    """Until all was settled."""
    consumed: Look
    """Until the log was pruned too."""
    worker_cpu_s: float | None
    produced_s: float
    """From the first commit to the last one, and one gap more."""
    lags_ms: Sequence[float]
    operations: Mapping[str, int]


def with_worker(place: Place, shape: Shape) -> Worked:
    with place.fresh(**shape.variables) as program, _running(place, program, shape) as workers:
        before, cpu_before = place.look(program.url), _cpu_s(workers)
        counted = _operations(place)
        committed = _produce(program, shape)
        found = [started(running, len(committed)) for running in workers[:1]]
        settled(place, program.url, WARM_UP + len(committed), workers)
        operations = {name: n - counted.get(name, 0) for name, n in _operations(place).items()}
        after, cpu_after = place.look(program.url), _cpu_s(workers)
        consumed = pruned(place, program.url, after)
    return Worked(
        tasks=len(committed),
        whole=after.since(before),
        consumed=consumed.since(before),
        worker_cpu_s=None if None in (cpu_before, cpu_after) else cpu_after - cpu_before,
        produced_s=_span_s(committed.values()),
        lags_ms=marks.lags_ms(committed, found[0].started),
        operations=operations,
    )


@contextmanager
def _running(place: Place, program: Program, shape: Shape) -> Iterator[list[Running]]:
    """The workers, when they own their shards and have run something."""
    with ExitStack() as stack:
        workers = [stack.enter_context(program.worker(n)) for n in range(shape.workers)]
        program.run("bulk", 0, WARM_UP)
        settled(place, program.url, WARM_UP, workers)
        time.sleep(CALM_S)
        yield workers


def _produce(program: Program, shape: Shape) -> dict[int, int]:
    commits = program.folder / "commits"
    program.run("produce", shape.rate, shape.seconds, commits, shape.task)
    return marks.pairs(commits)


def settled(place: Place, url: str, count: int, workers: Sequence[Running]) -> None:
    """Wait until the storage knows `count` tasks as finished.

    Raises:
        Failed: a worker ended, or nothing moved for `PATIENCE_S`.
    """
    best, moved = count + 1, time.monotonic()
    while (left := place.left(url, count)) > 0:
        for running in workers:
            running.check()
        if left < best:
            best, moved = left, time.monotonic()
        if time.monotonic() - moved > PATIENCE_S:
            raise Failed(f"{left} of {count} tasks are not finished, and nothing moves")
        time.sleep(LOOK_S)


def pruned(place: Place, url: str, look: Look) -> Look:
    """Wait for an empty log, as long as that makes sense, and look again."""
    deadline = time.monotonic() + CONSUMED_S
    while look.log_rows and time.monotonic() < deadline:
        time.sleep(1.0)
        look = place.look(url)
    return look


def _span_s(commits_ns: Collection[int]) -> float:
    """Return the time that producing took: longer than was asked for where it fell behind."""
    between_s = (max(commits_ns) - min(commits_ns)) / 1e9
    return between_s * len(commits_ns) / max(1, len(commits_ns) - 1)


def _cpu_s(workers: Sequence[Running]) -> Any:
    taken = [cost.cpu_s(running.process.pid) for running in workers]
    return None if None in taken else sum(filter(None, taken))


def _operations(place: Place) -> Mapping[str, int]:
    return place.operations() if isinstance(place, OnSpanner) else {}


def derived(found: Worked, alone: Look) -> dict[str, Any]:
    """Compute the figures per task and per second; None where a store cannot tell. Pure."""
    tasks, whole = found.tasks, found.whole
    added_wal = _less(whole.wal_bytes, alone.wal_bytes)
    added_cpu = _less(whole.server_cpu_s, alone.server_cpu_s)
    many = tasks >= PAGES
    rows = whole.journal_rows
    lags = sorted(found.lags_ms)
    dead, log_left = found.consumed.dead_rows, found.consumed.log_rows
    if dead is None and log_left is not None:
        dead = tasks - log_left  # a store without counters has no partitions either
    return {
        "tasks": tasks,
        "window_s": round(whole.at_s, 3),
        "journal_rows_per_task": _each(rows, tasks),
        "journal_bytes_per_row": _each(whole.journal_bytes, rows) if (rows or 0) > PAGES else None,
        "log_bytes_per_task": _each(alone.log_bytes, tasks) if many else None,
        "wal_producer_per_task": _each(alone.wal_bytes, tasks),
        "wal_worker_per_task": _each(added_wal, tasks),
        "growth_per_task": _each(found.consumed.kept_bytes, tasks) if many else None,
        "log_rows_left": log_left,
        "dead_rows_per_task": _each(dead, tasks),
        "worker_cpu_us": _each(found.worker_cpu_s, tasks, 1e6),
        "worker_cpu_percent": _each(found.worker_cpu_s, whole.at_s, 100),
        "server_cpu_us": _each(added_cpu, tasks, 1e6),
        "server_cpu_percent": _each(whole.server_cpu_s, whole.at_s, 100),
        **{f"{name}_per_s": n / whole.at_s for name, n in found.operations.items()},
        **(marks.summary(lags, found.produced_s) if lags else {}),
    }


def _less(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before


def _each(total: float | None, count: float | None, unit: float = 1) -> float | None:
    return None if total is None or not count else total / count * unit


def sparse(place: Place, gap_s: float, count: int) -> dict[str, Any]:
    """Measure commit to start of single tasks that come every `gap_s`: each after silence."""
    shape = Shape(1 / gap_s, gap_s * (count + 1))
    with Beside() as beside, place.fresh() as program, _running(place, program, shape) as workers:
        committed = _produce(program, shape)
        found = started(workers[0], len(committed))
    del committed[0]  # it comes right behind the warm-up
    lags = marks.lags_ms(committed, found.started)
    return {"gap_s": gap_s, "tasks": len(lags), "lags_ms": lags, **beside.figures()}


def idle(place: Place, workers: int, seconds: float) -> dict[str, Any]:
    """Measure a fleet without any work: processor time in percent of one, WAL, connections."""
    shape = Shape(1, 1, workers=workers)
    with Beside() as beside, place.fresh() as program:
        before = place.look(program.url)
        time.sleep(seconds / 2)
        alone = place.look(program.url).since(before)
        with _running(place, program, shape) as all_running:
            time.sleep(CALM_S)
            counted = _operations(place)
            before, cpu_before = place.look(program.url), _cpu_s(all_running)
            time.sleep(seconds)
            after, cpu_after = place.look(program.url), _cpu_s(all_running)
            operations = {n: c - counted.get(n, 0) for n, c in _operations(place).items()}
    whole = after.since(before)
    return {
        "workers": workers,
        "workers_cpu_percent": _each(_less(cpu_after, cpu_before), whole.at_s, 100),
        "server_cpu_percent": _each(whole.server_cpu_s, whole.at_s, 100),
        "server_alone_cpu_percent": _each(alone.server_cpu_s, alone.at_s, 100),
        "wal_per_s": _each(whole.wal_bytes, whole.at_s),
        "connections": after.connections,
        "journal_rows_per_s": _each(whole.journal_rows, whole.at_s),
        **{f"{name}_per_s": n / whole.at_s for name, n in operations.items()},
        **beside.figures(),
    }


def clients(place: Place, count: int, number: int, turns: int) -> dict[str, Any]:
    """Measure transactions per second of many clients: without a worker, beside a worker that slept
    and is told of commits, and for our own beside one that polls."""
    ways: dict[str, dict[str, str] | None] = {"without_worker": None, "with_worker": {}}
    if place.ours:
        ways["with_polling_worker"] = {"LATE_WAKING": "off"}
    rates: dict[str, list[float]] = {way: [] for way in ways}
    with Beside() as beside:
        for _ in range(turns):
            for way, variables in ways.items():
                with ExitStack() as stack:
                    program = stack.enter_context(place.fresh(**(variables or {})))
                    if variables is not None:
                        stack.enter_context(_running(place, program, Shape(1, 1)))
                    taken_s = program.run("single", count, number)["seconds"]
                rates[way].append(count / taken_s)
    each = {f"{way}_per_s": mean(found) for way, found in rates.items()}
    return {"clients": number, **each, **beside.figures()}
