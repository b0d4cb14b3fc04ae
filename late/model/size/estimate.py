"""Estimate what a load costs a database and its workers. Pure: the same load, the same numbers.

Every constant is measured, by `make bench-steady` (docs/benchmarks.md), and stands in
`figures.py`; the formulas here name no number of their own but units. A figure of one rate
holds between two measured rates by interpolation on logarithms, and beyond them as at the last one.
Operations of Spanner, which its emulator takes at low rates only, go on as between the last two.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Annotated, get_type_hints

import msgspec
from msgspec import Meta

from late.errors import ConfigError

DAY_S, HOUR_S = 86_400.0, 3_600.0


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The work to be expected. Rates are means over the day.

    Raises:
        ConfigError: a value is out of its bounds; the message names it.
    """

    rate: Annotated[float, Meta(ge=0.001, le=100_000)]
    """Tasks a second, each in a transaction of its own."""
    payload: Annotated[int, Meta(ge=1, le=1_048_576)] = 120
    """Bytes of the arguments of one task."""
    delayed: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Share of the tasks that wait for longer than a worker keeps them in memory (10 s)."""
    retries: Annotated[float, Meta(ge=0, le=100)] = 0.0
    """Further attempts per task, on average."""
    groups: Annotated[int, Meta(ge=1, le=1_000)] = 1
    """Consumer groups that read the log."""
    retention_s: Annotated[float, Meta(ge=0, le=3_660 * DAY_S)] = 0.0
    """The time that the log keeps what every group has settled."""
    journal_s: Annotated[float, Meta(ge=0, le=3_660 * DAY_S)] = 7 * DAY_S
    """The time that settlements are kept, as sums after an hour."""
    workers: Annotated[int, Meta(ge=1, le=10_000)] = 1
    shards: Annotated[int, Meta(ge=1, le=4_096)] = 8

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(Load, include_extras=True).items():
            value = getattr(self, name)
            try:
                msgspec.convert(value, kind)
            except msgspec.ValidationError:
                bounds = next(each for each in kind.__metadata__ if isinstance(each, Meta))
                raise ConfigError(
                    f"{name}={value}: expected {bounds.ge:,} to {bounds.le:,}"
                ) from None


class RateFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One worker at one steady rate: what it cost per task, beyond what it costs when idle.

    None is what the store cannot tell, or what too few rows said nothing about.
    """

    rate: float
    journal_rows: float
    journal_row_bytes: float | None = None
    worker_wal_bytes: float | None = None
    worker_cpu_us: float | None = None
    server_cpu_us: float | None = None
    reads: float | None = None
    """Spanner's reads and queries."""
    commits: float | None = None
    mutations: float | None = None
    """Values that Spanner's commits wrote; a deleted range counts as one."""


class StoreFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The constants of one store."""

    measured: str
    """Day, machine and versions of the measurement."""
    loop_ms: float
    """The fixed loop of that run: processor times are of a processor that takes so long for it."""
    shards: int
    payload_bytes: int
    rates: tuple[RateFigures, ...]
    log_task_bytes: float | None = None
    """A task's row with its index, its payload of `payload_bytes` included."""
    producer_wal_bytes: float | None = None
    """A transaction of one small row of the service's own and one task."""
    idle_worker_cpu: float | None = None
    """Cores that one worker takes without any work; what the server takes for it."""
    idle_server_cpu: float | None = None
    idle_wal_per_s: float | None = None
    """WAL bytes a second of one worker without any work: its heartbeats."""
    idle_reads_per_s: float | None = None
    idle_commits_per_s: float | None = None
    idle_mutations_per_s: float | None = None
    connections: float | None = None
    """Connections to the database that one worker holds."""
    delayed: RateFigures | None = None
    """The cost of a parked task beyond that of another one at the same rate."""
    retried: RateFigures | None = None
    """The cost of a second attempt."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a load. None is what the store has not, or what was not measured on it."""

    log_bytes_per_day: float | None
    log_bytes_kept: float | None
    journal_rows_per_day: float
    journal_bytes_per_day: float | None
    journal_bytes_kept: float | None
    wal_producers_bytes_per_day: float | None
    wal_workers_bytes_per_day: float | None
    connections: int | None
    workers_cpu_cores: float | None
    server_cpu_cores: float | None
    """Without what the producers' own transactions take."""
    spanner_reads_per_day: float | None
    spanner_commits_per_day: float | None
    spanner_mutations_per_day: float | None


Cost = Callable[[RateFigures], float | None]
"""One of the figures."""
PRUNE_S = 15.0
"""The time between two rounds of pruning: so long a settled task stays in the log at the most,
without a time for which the log is kept (`WorkerConfig.prune_every_s`)."""
DETAIL_S, MINUTES_S = 3_600.0, 86_400.0
"""The ages at which settlements of some minutes become one row, and those of an hour
(`WorkerConfig.journal_detail_s` and `journal_minute_s`)."""
SUM_ROWS = 500
"""So many settlements are enough for a row of less than an hour."""
FAILED_S = 0.010
"""The time in which a failed attempt is recorded: those of this time are so together (`URGENT_S` of
the settler)."""
PRODUCER_MUTATIONS = 8
"""Values of a task's row on Spanner: its columns."""


def estimate(load: Load, figures: StoreFigures) -> Estimate:
    """Compute all quantities of a load on one store."""
    tasks = load.rate * DAY_S
    payload = load.payload - figures.payload_bytes
    log = _plus(figures.log_task_bytes, payload)
    rows = journal_rows_per_s(load, figures) * DAY_S
    row_bytes = _at(
        figures.rates, load.rate * figures.shards / load.shards, lambda one: one.journal_row_bytes
    )
    journal = _times(rows, row_bytes)
    kept_s = max(load.retention_s, PRUNE_S)
    return Estimate(
        log_bytes_per_day=_times(log, tasks),
        log_bytes_kept=_times(log, load.rate * kept_s),
        journal_rows_per_day=rows,
        journal_bytes_per_day=journal,
        journal_bytes_kept=_times(_rows_kept(load, rows / DAY_S), row_bytes),
        wal_producers_bytes_per_day=_times(_plus(figures.producer_wal_bytes, payload), tasks),
        wal_workers_bytes_per_day=_times(_workers_wal_per_s(load, figures, payload), DAY_S),
        connections=_ceil(_times(figures.connections, load.workers)),
        workers_cpu_cores=_cores(
            load, figures, lambda one: one.worker_cpu_us, figures.idle_worker_cpu
        ),
        server_cpu_cores=_cores(
            load, figures, lambda one: one.server_cpu_us, figures.idle_server_cpu
        ),
        spanner_reads_per_day=_spanner(
            load, figures, lambda one: one.reads, figures.idle_reads_per_s
        ),
        spanner_commits_per_day=_plus(
            _spanner(load, figures, lambda one: one.commits, figures.idle_commits_per_s), tasks
        ),
        spanner_mutations_per_day=_plus(
            _spanner(load, figures, lambda one: one.mutations, figures.idle_mutations_per_s),
            tasks * PRODUCER_MUTATIONS,
        ),
    )


def _rows_kept(load: Load, rows_per_s: float) -> float:
    """Return the rows that stay: all of the detail's time, then sums of some minutes of a shard,
    and after a day of an hour (`late/store/common/compaction.py`)."""
    shards = load.groups * load.shards
    in_an_hour = rows_per_s * HOUR_S / shards
    sums = max(1.0, min(HOUR_S / 60, in_an_hour / SUM_ROWS))
    detail_s, minutes_s = min(load.journal_s, DETAIL_S), min(load.journal_s, MINUTES_S)
    hours = (minutes_s - detail_s) * min(in_an_hour, sums) + (load.journal_s - minutes_s) * min(
        in_an_hour, 1.0
    )
    return rows_per_s * detail_s + shards * hours / HOUR_S


def journal_rows_per_s(load: Load, figures: StoreFigures) -> float:
    """Compute the rows that all groups and shards write.

    A worker of a group settles for all its shards at once: each that has something writes a row. An
    end waits for company. The wait comes out of the measured rows, from rates at which there was
    company. A failed attempt is recorded at once, with what has ended in its shard: so of the rows
    that ends would write, those go whose last end was a failure.
    """
    workers = max(1.0, load.workers / load.groups)
    each = load.rate / workers
    ends, failures = each * (1 + load.delayed + load.retries), each * load.retries
    waits = [
        (one.rate, _wait_s(one.rate, one.rate * one.journal_rows, figures.shards))
        for one in figures.rates
        if one.journal_rows < 1
    ]
    wait_s = _between(waits, each, linear=True) if waits else 0.0
    shards = load.shards / workers
    rows = (1 - failures / ends) * _rows_per_s(ends, 1 / ends + wait_s, shards)
    if failures:
        rows += _rows_per_s(failures, 1 / failures + FAILED_S, shards)
    return load.groups * workers * rows


def _rows_per_s(ends: float, every_s: float, shards: float) -> float:
    """Return the rows of a worker that settles every so many seconds: its shards with an end."""
    return shards / every_s * -math.expm1(-ends / shards * every_s)


def _wait_s(ends: float, rows: float, shards: float) -> float:
    """Return the wait at which `_rows_per_s` gives so many rows: it falls as the wait grows."""
    low, high = 0.0, 60.0
    for _ in range(60):
        middle = (low + high) / 2
        if _rows_per_s(ends, 1 / ends + middle, shards) > rows:
            low = middle
        else:
            high = middle
    return high


def _workers_wal_per_s(load: Load, figures: StoreFigures, payload: float) -> float | None:
    """Sum up heartbeats, settlements, and what parked tasks and attempts take."""
    each = _at(
        figures.rates, load.rate * figures.shards / load.shards, lambda one: one.worker_wal_bytes
    )
    if each is None or figures.idle_wal_per_s is None:
        return None
    # A parked task is written with its payload once more, also one that waits for a retry.
    each += _more(figures.delayed, lambda one: one.worker_wal_bytes, load.delayed, payload)
    each += _more(figures.retried, lambda one: one.worker_wal_bytes, load.retries, payload)
    return load.workers * figures.idle_wal_per_s + load.groups * load.rate * each


def _cores(load: Load, figures: StoreFigures, cost: Cost, idle: float | None) -> float | None:
    """Compute processor cores: of idle workers, and for each task by how busy a worker is."""
    each = _at(figures.rates, load.groups * load.rate / load.workers, cost)
    if each is None or idle is None:
        return None
    each += _more(figures.delayed, cost, load.delayed) + _more(figures.retried, cost, load.retries)
    return load.workers * idle + load.groups * load.rate * each / 1e6


def _spanner(
    load: Load, figures: StoreFigures, cost: Cost, idle_per_s: float | None
) -> float | None:
    """Compute the workers' operations a day."""
    each = _at(figures.rates, load.groups * load.rate / load.workers, cost, onward=True)
    if each is None or idle_per_s is None:
        return None
    ends = load.groups * load.rate * (1 + load.delayed + load.retries)
    return (load.workers * idle_per_s + ends * each) * DAY_S


def _more(figures: RateFigures | None, cost: Cost, share: float, bytes_more: float = 0.0) -> float:
    """Return what a share of the tasks costs more than others."""
    found = None if figures is None else cost(figures)
    return 0.0 if found is None else share * max(0.0, found + bytes_more)


def _at(
    figures: Sequence[RateFigures], rate: float, cost: Cost, *, onward: bool = False
) -> float | None:
    """Return one figure at a rate, from those rates at which it was measured.

    Args:
        onward: beyond the last rate go on as between the last two, but let the total not shrink.
    """
    points = [(one.rate, y) for one in figures if (y := cost(one)) is not None]
    if not points:
        return None
    points.sort()
    if onward and len(points) > 1 and rate > points[-1][0] and min(y for _, y in points[-2:]) > 0:
        (low, a), (high, b) = points[-2:]
        slope = math.log(b / a) / math.log(high / low)
        return float(b * (rate / high) ** min(0.0, max(-1.0, slope)))
    return _between(points, rate)


def _between(points: Sequence[tuple[float, float]], x: float, *, linear: bool = False) -> float:
    """Interpolate on the logarithm of x, and of y unless `linear` or a value is not above zero."""
    ascending = sorted(points)
    x = min(max(x, ascending[0][0]), ascending[-1][0])
    for (low, a), (high, b) in itertools.pairwise(ascending):
        if x <= high:
            part = math.log(x / low) / math.log(high / low)
            if linear or min(a, b) <= 0:
                return a + (b - a) * part
            return math.exp(math.log(a) + (math.log(b) - math.log(a)) * part)
    return ascending[-1][1]


def _maybe(join: Callable[[float, float], float]) -> Callable[..., float | None]:
    def joined(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else join(a, b)

    return joined


_plus = _maybe(lambda a, b: a + b)
_times = _maybe(lambda a, b: a * b)


def _ceil(value: float | None) -> int | None:
    return None if value is None else math.ceil(value)
