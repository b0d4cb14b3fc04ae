"""The cost report at size, on DuckDB and on Spark, each in a process of its own.

    make bench-spark            # 0.1, 1 and 10 million tasks; ARGS="--tasks 1000000" for one size

Per size, usage rows of the demo's shape are generated (`usage.py`) and both engines make the whole
of `late report cost --by owner` on them in turns, `--rounds` times: reading, adding up, dividing a
price book over every key, and writing all files. Each run is a process as a person starts it, so
that Spark's has the start of its session in it. Of each:
- `wall_s`, and `cpu_s`: processor seconds of the process and its children, which other work on the
  machine does not lengthen as much;
- `peak_mib`: the most memory of the process and its children (the JVM), added up;
- `loop_ms` and `load`: the fixed loop of `bench/steady` beside it, and the load of the machine.

The costs must be the same on both. A size's figures are medians of the rounds. `crossover_tasks` is
the smallest size at which Spark takes less processor time than DuckDB; null if there is none.
The figures and the conditions go to `bench/results/`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any, cast
from zoneinfo import ZoneInfo

from late_spark import commands, session
from late_spark.calendar import Calendar
from late_spark.commands import Asked
from late_spark.place import Engine, Source
from pyarrow import parquet

from bench.spark import usage
from bench.steady.loop import Beside

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
MEASURES = ("wall_s", "cpu_s", "peak_mib", "loop_ms", "load")
RESULTS = Path(__file__).resolve().parents[1] / "results"
PROMISED_TASKS, WALL_S_MAX, PEAK_MIB_MAX = 10_000_000, 20, 1_024
"""The promised limits of DuckDB, which is chosen for that size."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--folder", type=Path, default=Path(".late/bench-spark"),
                        help="for data; made, and removed at the end")  # fmt: skip
    parser.add_argument("--shape", choices=usage.SHAPES, default="demo",
                        help="of the usage: rows for each task")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--run", nargs=2, metavar=("ENGINE", "USAGE"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.run:
        engine, path = chosen.run
        print(json.dumps(one_report(cast("Engine", engine), Path(path))))
        return
    folder: Path = chosen.folder
    folder.mkdir(parents=True)
    at = datetime.now(UTC)
    try:
        (folder / "prices.yaml").write_text(PRICES)
        made = generate(chosen.tasks, chosen.shape, folder)
        found = [size | measure(folder / name(size["asked"]), chosen.rounds) for size in made]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    figures = {
        "at": f"{at:%Y-%m-%dT%H%M%SZ}", "cores": os.cpu_count(), "shape": chosen.shape,
        "rounds": chosen.rounds, "python": platform.python_version(),
        "spark": metadata.version("pyspark"), "duckdb": metadata.version("duckdb"),
        "sizes": found, "crossover_tasks": crossover(found),
    }  # fmt: skip
    path = RESULTS / f"spark-{figures['at']}.json"
    path.write_text(json.dumps(figures, indent=1) + "\n")
    print(f"written to bench/results/{path.name}")
    for size in found:
        of = size["duckdb"]
        over = of["wall_s"] > WALL_S_MAX or of["peak_mib"] > PEAK_MIB_MAX
        if size["asked"] <= PROMISED_TASKS and over:
            sys.exit(f"{size['asked']:,} tasks: over {WALL_S_MAX} s or {PEAK_MIB_MAX} MiB")


def name(tasks: int) -> str:
    """Return the name of a size's folder of usage."""
    return f"usage-{tasks}"


def generate(sizes: list[int], shape: str, folder: Path) -> list[dict[str, Any]]:
    """Write the usage of each size, in a session that ends with it."""
    spark = session.start(archive=False)
    try:
        for tasks in sizes:
            rows = usage.rows(spark, tasks, MARCH.from_us, len(MARCH.days), usage.SHAPES[shape])
            rows.write.option("compression", "zstd").parquet(str(folder / name(tasks)))
    finally:
        session.stop(spark)
    return [written(tasks, folder) for tasks in sizes]


def written(tasks: int, folder: Path) -> dict[str, Any]:
    """Return how much usage there is of one size."""
    files = [parquet.ParquetFile(path) for path in (folder / name(tasks)).glob("*.parquet")]
    size = sum(path.stat().st_size for path in (folder / name(tasks)).glob("*.parquet"))
    rows = sum(file.metadata.num_rows for file in files)
    return {"asked": tasks, "rows": rows, "mib": round(size / 2**20, 1)}


def measure(path: Path, rounds: int) -> dict[str, Any]:
    """Return the medians of both engines, which take turns in who is first."""
    runs: dict[str, list[dict[str, Any]]] = {engine: [] for engine in ENGINES}
    for number in range(rounds):
        for engine in ENGINES[:: 1 if number % 2 == 0 else -1]:
            one = in_process(engine, path)
            print(path.name, engine, {what: one[what] for what in MEASURES}, flush=True)
            runs[engine].append(one)
    said = {one.pop("costs") for of in runs.values() for one in of}
    assert len(said) == 1, "the engines find different costs"
    tasks = runs["duckdb"][0]["tasks"]
    medians = {
        engine: {what: round(median(one[what] for one in of), 2) for what in MEASURES}
        for engine, of in runs.items()
    }
    return {"tasks": tasks, **medians}


def in_process(engine: str, path: Path) -> dict[str, Any]:
    """Make the report in a process of its own."""
    command = [sys.executable, "-m", "bench.spark.cost", "--run", engine, str(path)]
    with Beside() as beside:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found | beside.figures()


def one_report(engine: Engine, path: Path) -> dict[str, Any]:
    """Make the report, and return what it took: the whole of this process, but for its imports."""
    began = time.perf_counter()
    out = path.parent / f"report-{path.name}-{engine}"
    asked = Asked(
        source=Source(usage=path, engine=engine), from_="2026-03", to="2026-04",
        prices=path.parent / "prices.yaml", out=out, force=True,
    )  # fmt: skip
    with Memory() as memory:
        report = commands.cost(asked, "owner")
    return {
        "wall_s": round(time.perf_counter() - began, 2), "cpu_s": round(cpu_s(), 2),
        "peak_mib": round(memory.peak_mib), "tasks": sum(row.ended for row in report.used),
        "costs": json.dumps([[row.by, row.amount] for row in report.rows]),
    }  # fmt: skip


class Memory:
    """The most memory that this process and its children have had at once, looked at often."""

    EVERY_S = 0.1

    def __enter__(self) -> Memory:
        self._done = threading.Event()
        self._most = 0.0
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(self.EVERY_S):
            self._most = max(self._most, sum(map(resident_mib, [os.getpid(), *children()])))

    @property
    def peak_mib(self) -> float:
        """Return it; of a process without children the kernel knows the peak."""
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return max(self._most, own)


def cpu_s() -> float:
    """Return processor seconds of this process and its children so far."""
    ticks = os.sysconf("SC_CLK_TCK")
    total = time.process_time()
    for pid in children():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) / ticks
    return total


def children(parent: int | None = None) -> list[int]:
    """Return the processes below one, or below this one."""
    parent = os.getpid() if parent is None else parent
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


def resident_mib(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def crossover(found: list[dict[str, Any]]) -> int | None:
    """Return the smallest size at which Spark takes less processor time than DuckDB."""
    less = (one["tasks"] for one in found if one["spark"]["cpu_s"] < one["duckdb"]["cpu_s"])
    return min(less, default=None)


if __name__ == "__main__":
    main()
