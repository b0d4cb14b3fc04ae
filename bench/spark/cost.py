"""The cost report at size, on DuckDB and on Spark, in one run on the same files.

    make bench-spark            # 1, 10 and 100 million tasks; ARGS="--tasks 1000000" for one size

Per size, after a small one that warms up both and is not counted, usage rows are generated
(`usage.py`), and then, for each engine,
- `report_s`: the whole of `late report cost` on them: reading, adding up, dividing a bill over
  every key, and writing all files; beside the time, the processor's, which other work on the
  machine does not lengthen as much;
- `daily_s`: of it, the pass over all usage, whose result must be the same on both;
- `percentiles_s`: what the impact report does besides: the histograms of each day.

Spark's session runs already; its start is measured once. `crossover_tasks` is the smallest size at
which Spark's report with its start takes less time than DuckDB's; null if there is none.
Memory is the peak so far: DuckDB's that of this process, Spark's with the JVM added.
The figures and the conditions go to `bench/results/`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from late_spark import commands, drivers, latency, place, session
from late_spark.calendar import Calendar
from late_spark.commands import Asked
from late_spark.cost import CostReport
from late_spark.place import Engine, Source

MARCH = Calendar.of("2026-03", "2026-04", ZoneInfo("America/New_York"))
PRICES = """
version: 1
name: bench
currency: USD
time_zone: America/New_York
prices:
- {line: nodes, unit: node_hour, price: "0.90", quantity: 9,
   drivers: {writes: 50, reads: 20, idle: 20}}
- {line: storage, unit: gb_month, price: "0.30", quantity: 500, drivers: {bytes: 100}}
- {line: workers, unit: core_hour, price: "0.04", quantity: 64, drivers: {busy: 90, retries: 10}}
"""


ENGINES: tuple[Engine, ...] = ("duckdb", "spark")
WARM_UP = 100_000
RESULTS = Path(__file__).resolve().parents[1] / "results"
REPORT_S_MAX, PEAK_MIB_MAX = 120, 4_096
"""The promised limits for 100 million tasks on two cores."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--tasks", type=int, nargs="+", default=[1_000_000, 10_000_000, 100_000_000]
    )
    parser.add_argument("--folder", type=Path, default=Path(".late/bench-spark"),
                        help="for data; made, and removed at the end")  # fmt: skip
    parser.add_argument(
        "--per-row",
        type=int,
        default=8,
        help="tasks per row of usage, mean; 1 is a trickle, as in the demo",
    )
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--memory", default="2g", help="the JVM's heap")
    chosen = parser.parse_args()
    folder: Path = chosen.folder
    folder.mkdir(parents=True)
    at = datetime.now(UTC)
    load = os.getloadavg()[0]
    started, spark = timed(lambda: session.start(cores=chosen.cores, memory=chosen.memory))
    print(f"session: {started:.1f} s", flush=True)
    found = []
    try:
        measure(spark, WARM_UP, folder, chosen.per_row)
        for tasks in chosen.tasks:
            one = measure(spark, tasks, folder, chosen.per_row)
            found.append(one)
            print("  ".join(f"{k}={v}" for k, v in one.items()), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        session.stop(spark)
    figures = {
        "at": f"{at:%Y-%m-%dT%H%M%SZ}", "load_average": round(load, 1), "cores": chosen.cores,
        "heap": chosen.memory, "python": platform.python_version(),
        "spark": metadata.version("pyspark"), "duckdb": metadata.version("duckdb"),
        "session_s": round(started, 1), "sizes": found,
        "growth": {each: growth(found, each) for each in ENGINES},
        "crossover_tasks": crossover(found, started),
    }  # fmt: skip
    path = RESULTS / f"{figures['at']}-spark.json"
    path.write_text(json.dumps(figures, indent=1) + "\n")
    print(f"written to bench/results/{path.name}")
    largest = found[-1]["spark"]
    if largest["report_s"] > REPORT_S_MAX or largest["peak_mib"] > PEAK_MIB_MAX:
        sys.exit(f"more than {REPORT_S_MAX} s or {PEAK_MIB_MAX} MiB")


def growth(found: list[dict[str, Any]], engine: str) -> list[dict[str, float]]:
    """From each size to the next: times the tasks, times the seconds. Linear is as many of both."""
    return [
        {
            "tasks": round(after["tasks"] / before["tasks"], 1),
            **{name: round(after[engine][name] / before[engine][name], 1) for name in names},
        }
        for before, after in pairwise(found)
        for names in (("report_s", "daily_s"),)
        if all(before[engine][name] for name in names)
    ]


def crossover(found: list[dict[str, Any]], started_s: float) -> int | None:
    """Return the smallest size at which Spark is sooner done than DuckDB, its start included."""
    sooner = (
        one["tasks"]
        for one in found
        if one["spark"]["report_s"] + started_s < one["duckdb"]["report_s"]
    )
    return min(sooner, default=None)


def measure(spark: Any, tasks: int, folder: Path, per_row: int) -> dict[str, Any]:
    """Figures of one size."""
    from bench.spark import usage

    usage.PER_ROW = per_row
    path = folder / f"usage-{tasks}"
    rows = usage.rows(spark, tasks, MARCH.from_us, len(MARCH.days))
    made, _ = timed(lambda: rows.write.option("compression", "zstd").parquet(str(path)))
    size = sum(file.stat().st_size for file in path.glob("*.parquet"))
    prices = folder / "prices.yaml"
    prices.write_text(PRICES)
    figures: dict[str, Any] = {
        "rows": spark.read.parquet(str(path)).count(),
        "mib": round(size / 2**20),
        "generate_s": round(made, 1),
    }
    reports = []
    for engine in ENGINES:
        asked = Asked(
            source=Source(usage=path, engine=engine), from_="2026-03", to="2026-04",
            prices=prices, out=folder / f"report-{tasks}-{engine}",
        )  # fmt: skip
        report, figures[engine] = of_engine(asked)
        reports.append(report)
    first, second = reports
    assert first.used == second.used, "the engines find different work"
    assert first.costs == second.costs, "the engines find different costs"
    shutil.rmtree(path)
    counted = {
        "tasks": sum(row.ended for row in first.used),
        "keys": len({row.key for row in first.used}),
        "costs": len(first.costs),
    }
    return counted | figures


def of_engine(asked: Asked) -> tuple[CostReport, dict[str, Any]]:
    """Make the report, and measure it and the passes over the usage by themselves."""
    before = cpu_s()
    whole, report = timed(lambda: commands.cost(asked, "owner"))
    cpu = cpu_s() - before
    usage = place.opened(asked.source, MARCH.from_us, MARCH.to_us, commands.quiet)
    passed, _ = timed(lambda: drivers.daily(usage, MARCH, {"tenant"}))
    timing, _ = timed(lambda: latency.collect(latency.daily(usage, MARCH)))
    return report, {
        "report_s": round(whole, 1),
        "report_cpu_s": round(cpu, 1),
        "daily_s": round(passed, 2),
        "percentiles_s": round(timing, 2),
        "peak_mib": round(own_mib() if asked.source.engine == "duckdb" else peak_mib()),
    }


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.perf_counter()
    result = call()
    return time.perf_counter() - begun, result


def cpu_s() -> float:
    """Processor seconds of this process and its children so far."""
    ticks = os.sysconf("SC_CLK_TCK")
    total = time.process_time()
    for pid in children(os.getpid()):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) / ticks
    return total


def own_mib() -> float:
    """Return the peak of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def peak_mib() -> float:
    """Return the peak of this process and its children (the JVM), added up."""
    return own_mib() + sum(high_water(pid) for pid in children(os.getpid()))


def children(parent: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            pid = int(status.parent.name)
            found += [pid, *children(pid)]
    return found


def high_water(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


if __name__ == "__main__":
    main()
