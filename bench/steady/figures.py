"""Results of `bench.steady` to the constants of `late size`. Pure.

Per task means: what one task more costs. What an idle worker costs by itself is taken off, and has
constants of its own. Processor times are brought to one speed, that of the median fixed loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import msgspec

from late.model.size.estimate import RateFigures, StoreFigures

STORES = {"PostgreSQL": "postgresql", "SQLite": "sqlite", "Spanner's emulator": "spanner"}
SHARDS = 8
"""Of an app as it comes, which the bench measures."""
READS = ("StreamingRead_per_s", "Read_per_s", "ExecuteStreamingSql_per_s", "ExecuteSql_per_s")


def fit(report: Mapping[str, Any]) -> dict[str, StoreFigures]:
    """Return the figures of each store on which late was measured, idle and at work."""
    return {
        STORES[one["store"]]: _store(report, one)
        for one in report["places"]
        if one["name"] == "late" and one.get("idle") and one.get("steady")
    }


def _store(report: Mapping[str, Any], place: Mapping[str, Any]) -> StoreFigures:
    idle = place["idle"][0]
    plain = sorted((r for r in place["steady"] if r["task"] == "stamp"), key=lambda r: r["rate"])
    loop_ms = median(run["loop_ms"] for run in plain)
    alone = Idle(idle, loop_ms)
    rates = tuple(alone.taken_off(run) for run in plain)
    shapes = {
        kind: next((run for run in place.get("shapes", ()) if run[kind]), None)
        for kind in ("delayed", "retried")
    }
    most = plain[-1]
    return StoreFigures(
        measured=", ".join(
            (report["at"][:10], report["machine"]["cpu"], place["versions"].partition(" (")[0])
        ),
        loop_ms=loop_ms,
        shards=SHARDS,
        payload_bytes=payload_bytes(most),
        rates=rates,
        log_task_bytes=most.get("log_bytes_per_task"),
        producer_wal_bytes=most.get("wal_producer_per_task"),
        idle_worker_cpu=alone.worker_cpu,
        idle_server_cpu=alone.server_cpu,
        idle_wal_per_s=alone.wal_per_s,
        idle_reads_per_s=alone.of("reads"),
        idle_commits_per_s=alone.of("commits"),
        idle_mutations_per_s=alone.of("mutations"),
        connections=_over(idle["connections"], idle["workers"]),
        **{kind: alone.more(run, plain) for kind, run in shapes.items() if run is not None},
    )


BYTES = ("log_task_bytes", "producer_wal_bytes", "idle_wal_per_s")
RATE_BYTES = ("journal_rows", "journal_row_bytes", "worker_wal_bytes")


def with_bytes(figures: StoreFigures, measured: StoreFigures) -> StoreFigures:
    """Return `figures` with the bytes and rows of another run, at those rates and shapes that it
    has too."""

    def taken(one: RateFigures | None, other: RateFigures | None) -> RateFigures | None:
        return one if one is None or other is None else _with(one, other, RATE_BYTES)

    return msgspec.structs.replace(
        _with(figures, measured, BYTES),
        measured=f"{figures.measured}; bytes {measured.measured[:10]}",
        rates=tuple(taken(one, _near(measured, one.rate)) or one for one in figures.rates),
        delayed=taken(figures.delayed, measured.delayed),
        retried=taken(figures.retried, measured.retried),
    )


def filled(figures: StoreFigures, before: StoreFigures) -> StoreFigures:
    """Return `figures`, with those of `before` where this run could not tell: a short one has too
    few rows for their bytes."""

    def full(one: Any, other: Any) -> Any:
        if one is None or other is None:
            return one or other
        lacking = [name for name in one.__struct_fields__ if getattr(one, name) is None]
        return _with(one, other, lacking)

    return msgspec.structs.replace(
        full(figures, before),
        rates=tuple(full(one, _near(before, one.rate)) for one in figures.rates),
        delayed=full(figures.delayed, before.delayed),
        retried=full(figures.retried, before.retried),
    )


def _near(figures: StoreFigures, rate: float) -> RateFigures | None:
    """Return the figures of about that rate, if it was measured."""
    return next((each for each in figures.rates if abs(each.rate - rate) < rate / 10), None)


def _with(one: Any, other: Any, names: Sequence[str]) -> Any:
    """Return `one` with those fields of `other` that were measured."""
    given = {name: value for name in names if (value := getattr(other, name)) is not None}
    return msgspec.structs.replace(one, **given)


def payload_bytes(run: Mapping[str, Any]) -> int:
    """Bytes of `{"n":100,"note":"x..."}`: the filler and what is around it."""
    return int(run["note_bytes"]) + 20


class Idle:
    """One worker's share of an idle fleet."""

    def __init__(self, idle: Mapping[str, Any], loop_ms: float) -> None:
        self._loop_ms = loop_ms
        workers, speed = idle["workers"], self._speed(idle)
        server = _minus(idle["server_cpu_percent"], idle["server_alone_cpu_percent"])
        self.worker_cpu = _over(idle["workers_cpu_percent"], workers * 100 / speed)
        self.server_cpu = None if server is None else max(0.0, server) / workers / 100 * speed
        self.wal_per_s = _over(idle["wal_per_s"], workers)
        self._operations = {name: (n or 0.0) / workers for name, n in operations(idle).items()}

    def _speed(self, run: Mapping[str, Any]) -> float:
        """Return the factor that brings the processor times of a run to the common speed."""
        return self._loop_ms / float(run["loop_ms"])

    def of(self, name: str) -> float | None:
        return self._operations.get(name)

    def taken_off(self, run: Mapping[str, Any]) -> RateFigures:
        """Return what a run cost per task, without what the worker costs when it is idle."""
        window_s, tasks, speed = run["window_s"], run["tasks"], self._speed(run)
        used = {
            "worker_wal_bytes": (run.get("wal_worker_per_task"), self.wal_per_s, 1.0, 1.0),
            "worker_cpu_us": (run.get("worker_cpu_us"), self.worker_cpu, 1e6, speed),
            "server_cpu_us": (run.get("server_cpu_us"), self.server_cpu, 1e6, speed),
        }
        each = {
            name: None
            if total is None
            else max(0.0, total * factor - (idle or 0.0) * unit * window_s / tasks)
            for name, (total, idle, unit, factor) in used.items()
        }
        for name, per_s in operations(run).items():
            each[name] = max(0.0, per_s - (self.of(name) or 0.0)) * window_s / tasks
        return RateFigures(
            rate=run["reached_per_s"],
            journal_rows=run["journal_rows_per_task"],
            journal_row_bytes=run.get("journal_bytes_per_row"),
            **each,
        )

    def more(self, run: Mapping[str, Any], plain: Any) -> RateFigures | None:
        """Return what each task of a shape cost more than the same rate without it."""
        same = next((one for one in plain if one["rate"] == run["rate"]), None)
        if same is None:
            return None
        a, b = self.taken_off(run), self.taken_off(same)
        names = ("worker_wal_bytes", "worker_cpu_us", "server_cpu_us")
        found = {name: _minus(getattr(a, name), getattr(b, name)) for name in names}
        rows = max(0.0, a.journal_rows - b.journal_rows)
        return RateFigures(rate=a.rate, journal_rows=rows, **found)


def operations(run: Mapping[str, Any]) -> dict[str, float]:
    """Spanner's operations a second of one run; nothing where none were counted."""
    if not any(name.endswith("_per_s") and name[0].isupper() for name in run):
        return {}
    return {
        "reads": sum(run.get(name, 0.0) for name in READS),
        "commits": run.get("Commit_per_s", 0.0),
        "mutations": run.get("mutation_per_s", 0.0),
    }


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _over(a: float | None, b: float) -> float | None:
    return None if a is None else a / b
