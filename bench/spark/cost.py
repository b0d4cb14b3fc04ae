"""The cost report at size, beside the same query in DuckDB, in one run on the same files.

    make bench-spark            # 1, 10 and 100 million tasks; ARGS="--tasks 1000000" for one size

Per size, after a small one that warms up the session and is not counted, usage rows are generated
(`usage.py`), and then
- `report`: the whole of `late report cost` on them in a running session: reading, adding up,
  dividing a bill over every key, and writing all files; beside the time, the processor's, which
  other work on the machine does not lengthen as much;
- `daily`: of it, the pass over all usage, on Spark; `duckdb`: the same query there, whose result
  must be the same to the last number;
- `percentiles`: what the impact report does besides, on Spark: the histograms of each day.

Memory is the peak of this process and of the JVM, added up. The session's start is measured once.
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

from late_spark import commands, drivers, latency, schema, session
from late_spark.calendar import DAY_US, Calendar
from late_spark.commands import Asked, Source

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
    parser.add_argument("--per-row", type=int, default=8, help="tasks per row of usage, mean")
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
        "heap": chosen.memory, "python": platform.python_version(), "spark": spark_version(),
        "session_s": round(started, 1), "sizes": found, "growth": growth(found),
    }  # fmt: skip
    path = RESULTS / f"{figures['at']}-spark.json"
    path.write_text(json.dumps(figures, indent=1) + "\n")
    print(f"written to bench/results/{path.name}")
    largest = found[-1]
    if largest["report_s"] > REPORT_S_MAX or largest["peak_mib"] > PEAK_MIB_MAX:
        sys.exit(f"more than {REPORT_S_MAX} s or {PEAK_MIB_MAX} MiB")


def spark_version() -> str:
    return metadata.version("pyspark")


def growth(found: list[dict[str, Any]]) -> list[dict[str, float]]:
    """From each size to the next: times the tasks, times the seconds. Linear is as many of both."""
    return [
        {name: round(after[name] / before[name], 1) for name in ("tasks", "report_s", "daily_s")}
        for before, after in pairwise(found)
        if before["daily_s"]
    ]


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
    asked = Asked(
        source=Source(usage=path), from_="2026-03", to="2026-04", prices=prices,
        out=folder / f"report-{tasks}",
    )  # fmt: skip
    before = cpu_s()
    whole, report = timed(lambda: commands.cost(asked, "owner"))
    cpu = cpu_s() - before
    frame = spark.read.parquet(str(path))
    passed, ours = timed(lambda: drivers.daily(frame, MARCH, {"tenant"}).toArrow())
    timing, _ = timed(lambda: latency.collect(latency.daily(frame, MARCH)))
    figures = {
        "tasks": sum(row.ended for row in report.used),
        "rows": frame.count(),
        "mib": round(size / 2**20),
        "generate_s": round(made, 1),
        "report_s": round(whole, 1),
        "report_cpu_s": round(cpu, 1),
        "daily_s": round(passed, 1),
        "percentiles_s": round(timing, 1),
        "keys": len({row.key for row in report.used}),
        "costs": len(report.costs),
        "peak_mib": round(peak_mib()),
    }
    theirs = duckdb(path)
    if theirs is not None:
        seconds, result = theirs
        assert same(ours, result), "DuckDB finds something else"
        figures |= {"duckdb_s": round(seconds, 1), "ratio": round(passed / seconds, 1)}
    shutil.rmtree(path)
    return figures


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.perf_counter()
    result = call()
    return time.perf_counter() - begun, result


SUMS = ("attempts", "retries", "busy_us", "waiting_us", "bytes")


def duckdb(path: Path) -> tuple[float, Any] | None:
    """The query of `drivers.daily` in DuckDB, with as many threads; None where it is not there."""
    try:
        import duckdb as engine
    except ModuleNotFoundError:
        print("DuckDB is not installed: the dependency group `bench` has it", file=sys.stderr)
        return None
    offset = str(MARCH.spans[0][1])
    for start, shift in MARCH.spans[1:]:
        offset = f"case when settled_us >= {start} then {shift} else {offset} end"

    def counted(outcomes: tuple[str, ...]) -> str:
        names = ", ".join(f"'{each}'" for each in outcomes)
        return f"sum(case when outcome in ({names}) then count else 0 end)"

    query = f"""
        select cast(floor((settled_us + ({offset})) / {DAY_US}) as integer) as day,
            consumer_group, queue, name, owner, count(*) as entries,
            {counted(schema.ENDS)} as ended, {counted(("dead",))} as dead,
            {counted(schema.GOES_ON)} as again, {counted(("retried",))} as retried,
            {counted((schema.ENQUEUED,))} as enqueued,
            {", ".join(f"sum({each}) as {each}" for each in SUMS)}
        from read_parquet('{path}/*.parquet')
        where settled_us >= {MARCH.from_us} and settled_us < {MARCH.to_us}
        group by all
    """
    connection = engine.connect()
    connection.execute("set threads = 2")
    seconds, result = timed(lambda: connection.execute(query).fetchall())
    return seconds, result


def same(ours: Any, theirs: list[tuple[Any, ...]]) -> bool:
    """Row by row, in any order."""
    columns = ours.to_pydict().values()

    def ordered(rows: Any) -> list[tuple[Any, ...]]:
        return sorted(
            (tuple("" if v is None else v for v in row[:5]), *map(int, row[5:])) for row in rows
        )

    return ordered(zip(*columns, strict=True)) == ordered(theirs)


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


def peak_mib() -> float:
    """Return the peak of this process and its children (the JVM), added up."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return own + sum(high_water(pid) for pid in children(os.getpid()))


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
