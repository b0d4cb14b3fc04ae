"""`make bench-steady ARGS=--check-size`: what `late size` says beside what was measured. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.peers.table import rows, shown
from bench.steady.figures import payload_bytes
from bench.steady.runs import Shape
from late.model.size.estimate import DAY_S, Load, StoreFigures, estimate

WITHIN = 0.25


def shapes(seconds: float) -> list[Shape]:
    """Shapes between those from which the constants come: another rate, larger, with trouble."""
    return [
        Shape(300, seconds),
        Shape(150, seconds, "failing", note=1_000, delayed=0.1, retried=0.1),
    ]


@dataclass(frozen=True, slots=True)
class Compared:
    """One quantity of one shape, a task."""

    where: str
    what: str
    said: float
    measured: float

    @property
    def ratio(self) -> float:
        return self.said / self.measured if self.measured else float("inf")

    @property
    def good(self) -> bool:
        return 1 - WITHIN <= self.ratio <= 1 + WITHIN


def compare(figures: StoreFigures, run: Mapping[str, Any], store: str) -> Iterator[Compared]:
    """Yield each quantity that both have, processor times at the speed of the fixed loop."""
    rate = run["reached_per_s"]
    load = Load(
        rate=rate,
        payload=payload_bytes(run),
        delayed=run["delayed"],
        retries=run["retried"],
        workers=run["workers"],
    )
    said = estimate(load, figures)
    tasks = rate * DAY_S
    speed = run["loop_ms"] / figures.loop_ms
    # Measured over a window that is longer than the tasks came for.
    stretched = run["window_s"] * rate / run["tasks"]
    rows_each, row_bytes = run["journal_rows_per_task"], run.get("journal_bytes_per_row")
    pairs = {
        "log, bytes": (_over(said.log_bytes_per_day, tasks), run.get("log_bytes_per_task")),
        "journal, rows": (said.journal_rows_per_day / tasks, rows_each),
        "journal, bytes": (
            _over(said.journal_bytes_per_day, tasks),
            None if row_bytes is None else rows_each * row_bytes,
        ),
        "WAL of the producers": (
            _over(said.wal_producers_bytes_per_day, tasks),
            run.get("wal_producer_per_task"),
        ),
        "WAL of the workers": (
            _over(said.wal_workers_bytes_per_day, tasks),
            run.get("wal_worker_per_task"),
        ),
        "workers, µs": (
            _cpu_us(said.workers_cpu_cores, figures.idle_worker_cpu, run, stretched, speed),
            run.get("worker_cpu_us"),
        ),
        "database, µs": (
            _cpu_us(said.server_cpu_cores, figures.idle_server_cpu, run, stretched, speed),
            run.get("server_cpu_us"),
        ),
    }
    where = f"{store}, {run['rate']:g}/s"
    if run["delayed"] or run["retried"]:
        where += f", {payload_bytes(run):,} bytes, {run['delayed']:.0%} delayed, "
        where += f"{run['retried']:.0%} retried"
    for what, (expected, measured) in pairs.items():
        if expected is not None and measured is not None:
            yield Compared(where, what, expected, measured)


def _over(value: float | None, by: float) -> float | None:
    return None if value is None else value / by


def _cpu_us(
    cores: float | None,
    idle: float | None,
    run: Mapping[str, Any],
    stretched: float,
    speed: float,
) -> float | None:
    """Return microseconds a task of such a window, in which a worker also idles."""
    if cores is None:
        return None
    rate = run["reached_per_s"]
    each_s = cores / rate + (idle or 0.0) * (stretched - 1) / rate
    return each_s * 1e6 * speed


def text(found: Sequence[Compared]) -> str:
    """Format the comparison as a table."""
    head = ["a task", "late size", "measured", "ratio", f"within {WITHIN:.0%}"]
    body = [
        [
            f"{one.where}: {one.what}",
            shown(one.said, 2 if one.said < 10 else 0),
            shown(one.measured, 2 if one.measured < 10 else 0),
            shown(one.ratio, 2),
            "yes" if one.good else "**no**",
        ]
        for one in found
    ]
    return rows(head, body)
