"""`make bench`: what `late` costs and gains on this machine, with the limits of the same run.

Prints one table per store and writes everything as JSON, with the machine and the versions, to
`bench/results/`. Read ratios before rates: the stores take turns, and the limit beside each rate
was measured a moment earlier, by the same driver, on the same disk. Rates are medians of all turns.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import measure
from bench.targets import Postgres, Row, Sqlite, Target

RESULTS = Path(__file__).resolve().parent / "results"
SINGLE = 3_000
"""Transactions of the one-by-one measurements."""
EFFECTS = 5_000
"""Tasks that write to the database."""
COUNTED = (5_000, 50_000)
"""Tasks of the two runs that count statements: what the second takes more is the work, without the
start and the stop."""


def machine() -> dict[str, Any]:
    """Describe the machine of the measurements."""
    cpu = "unknown"
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = models[0].partition(":")[2].strip() if models else cpu
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "late": version("late-queue"),
        "load_before": [round(value, 2) for value in os.getloadavg()],
    }


def turn(target: Target, folder: Path, count: int, say: Callable[[str], None]) -> dict[str, float]:
    """The rates of one store, and its limits, a moment apart: the ratio is what counts."""
    say(f"limits, and {count:,} no-ops: in bulk, drained by one worker, one a transaction; effects")
    found = limits(target, measure.rows(count))
    for each in (
        partial(measure.drain, target, folder, count),
        partial(measure.drain_plain, target, folder, count),
        partial(measure.effects, target, folder, EFFECTS),
        partial(measure.one_by_one, target, SINGLE),
    ):
        rest(target)
        found |= each()
    return found


def rest(target: Target) -> None:
    """Leave nothing of what was measured before: no database to be vacuumed, and no pages that the
    disk has yet to take, for which whoever is measured next would wait."""
    target.clear()
    os.sync()


def limits(target: Target, bare: Sequence[Row]) -> dict[str, float]:
    """Measure the same driver with the same rows and no queue."""
    rates: dict[str, Callable[[], float]] = {
        "limit_write_per_s": partial(target.write_rate, bare),
        "limit_drain_per_s": partial(target.drain_rate, bare),
        "limit_commit_per_s": partial(target.commit_rate, SINGLE),
    }
    if isinstance(target, Postgres):
        rates["limit_prepared_per_s"] = partial(target.prepared_rate, bare)
    found = {}
    for name, rate in rates.items():
        rest(target)
        found[name] = rate()
    return found


def medians(turns: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Take the median of each figure by itself."""
    return {name: median(each[name] for each in turns) for name in turns[0]}


def once(
    target: Target, folder: Path, seconds: float, say: Callable[[str], None]
) -> dict[str, Any]:
    """Measure counts, and figures whose noise disappears in thousands of samples."""
    few, many = COUNTED
    say(f"statements: {few:,} and {many:,} no-ops with a counting hook in the driver")
    rest(target)
    result = measure.statements(target, folder, few, many)
    result["latency"] = []
    for rate, hold in ((100, False), (1_000, False), (100, True)):
        if hold and target.name == "sqlite":
            continue  # one writer at a time: an open write transaction stops every producer
        say(f"latency: {rate}/s for {seconds:g} s{', beside an open transaction' if hold else ''}")
        rest(target)
        found = measure.latency(target, folder, rate, seconds, hold=hold)
        result["latency"].append(found | {"open_transaction": hold})
    return result


def show(result: dict[str, Any], console: Console) -> None:
    """One store's numbers, beside the limits of the same run."""
    table = Table("", "measured", "limit", "ratio", title=result["versions"])
    for column in table.columns[1:]:
        column.justify = "right"
    for what, key, limit in (
        ("drain, no-op, one worker, /s", "drain_per_s", "limit_drain_per_s"),
        (
            "drain, no-op of a plain def, beside the coroutine, /s",
            "drain_plain_per_s",
            "drain_per_s",
        ),
        ("enqueue in bulk beside rows one by one, /s", "enqueue_bulk_per_s", "limit_write_per_s"),
        ("the same beside encoded rows, /s", "enqueue_bulk_per_s", "limit_prepared_per_s"),
        ("business row + task, /s", "enqueue_single_per_s", "limit_commit_per_s"),
        ("the same beside a row by hand, /s", "enqueue_single_per_s", "by_hand_per_s"),
    ):
        if limit not in result:
            continue  # SQLite's driver takes no encoded rows
        rate, most = result[key], result[limit]
        table.add_row(what, f"{rate:,.0f}", f"{most:,.0f}", f"{rate / most:.2f}")
    table.add_row("one indexed UPDATE in ctx.once(), /s", f"{result['effect_per_s']:,.0f}")
    if "wal_life_bytes" in result:
        life, insert = result["wal_life_bytes"], result["wal_insert_bytes"]
        table.add_row(
            "WAL per task over its life / its insert, bytes",
            f"{life:,.0f}",
            f"{insert:,.0f}",
            f"{life / insert:.2f}",
        )
    for what, key in (("when busy", "busy"), ("start and stop of a short run included", "task")):
        found = f"{result[f'statements_per_{key}'] * 1e3:,.1f}"
        table.add_row(f"statements of the worker per 1,000 tasks, {what}", found)
    for one in result["latency"]:
        beside = ", beside an open transaction" if one["open_transaction"] else ""
        table.add_row(
            f"commit to start at {one['reached_per_s']:,.0f}/s{beside}, p50 p95 p99 max, ms",
            " ".join(f"{one[key]:,.1f}" for key in ("p50_ms", "p95_ms", "p99_ms", "max_ms")),
        )
    console.print(table)


def _say(console: Console, store: str, text: str) -> None:
    console.print(f"[dim]{store}: {text}[/]")


def measured(
    targets: Sequence[Target], folder: Path, options: argparse.Namespace, console: Console
) -> list[dict[str, Any]]:
    """Run all measurements. The stores take turns, each time another one first, so that other work
    of the machine affects both."""
    turns: dict[str, list[dict[str, float]]] = {target.name: [] for target in targets}
    for number in range(options.turns):
        for target in targets if number % 2 == 0 else targets[::-1]:
            say = partial(_say, console, f"{target.name}, turn {number + 1}")
            turns[target.name].append(turn(target, folder, options.count, say))
    return [
        {"store": target.name, "versions": target.versions(), "tasks": options.count}
        | medians(turns[target.name])
        | {"turns": turns[target.name]}
        | once(target, folder, options.seconds, partial(_say, console, target.name))
        for target in targets
    ]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.main", description=__doc__)
    parser.add_argument("--postgres", metavar="URL", help="a server in which databases may be made")
    parser.add_argument("--only", choices=("sqlite", "postgresql"), help="one store only")
    parser.add_argument("--count", type=int, default=100_000, help="tasks to drain")
    parser.add_argument("--turns", type=int, default=9, help="of all rates; the median counts")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a latency run")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    console = Console(width=max(Console().width, 110))
    report: dict[str, Any] = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
    }
    with tempfile.TemporaryDirectory(prefix="late-bench-") as scratch:
        folder = Path(scratch)
        targets: list[Target] = []
        if options.only != "postgresql":
            targets.append(Sqlite(folder))
        if options.postgres and options.only != "sqlite":
            targets.append(Postgres(options.postgres))
        try:
            report["stores"] = measured(targets, folder, options, console)
        except measure.GaveUp as error:
            console.print(str(error), markup=False)
            return 1
        finally:
            for target in targets:
                target.clear()
    for result in report["stores"]:
        show(result, console)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{report['at'].replace(':', '')}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    console.print(f"written to bench/results/{path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
