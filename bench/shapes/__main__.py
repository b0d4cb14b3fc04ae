"""`make bench-shapes`: one drain per shape of task, on SQLite and PostgreSQL, in turns.

Beside each rate stand the worker's processor time and a fixed loop, which tells how fast the
processor was at that moment. The shape `rested` is the plain one after a pause between its bulk
load and the drain; `vacuumed` is the same after a VACUUM instead.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import alone, measure
from bench.main import machine, rest
from bench.shapes import table
from bench.shapes.tasks import DELAYED, ROWS, SHAPES, Shape, app, delay_s
from bench.steady.loop import Beside
from bench.targets import Postgres, Sqlite, Target, transaction

PLAIN = SHAPES["plain"]
LOADED = {
    "rested": PLAIN._replace(title="plain, a rest after the load"),
    "vacuumed": PLAIN._replace(title="plain, VACUUM after the load"),
}


def fill(target: Target, url: str, shape: Shape, count: int) -> dict[int, float]:
    """Enqueue in bulk; return when each delayed task is due, by this machine's clock. For several
    workers, which live already, all tasks appear in one commit."""
    due = {}
    each = count if shape.workers > 1 else measure.BATCH
    with closing(target.connect(url)) as connection:
        for start in range(0, count, each):
            inserted_s = time.time()
            with transaction(connection) as tx:
                for first in range(start, min(start + each, count), measure.BATCH):
                    numbers = range(first, min(first + measure.BATCH, count))
                    app.enqueue_many(tx, [shape.call(n) for n in numbers])
                    if shape is SHAPES["mix"]:
                        due |= {n: inserted_s + delay_s(n) for n in numbers if n % DELAYED == 0}
    return due


def fill_business(target: Target, url: str) -> None:
    with closing(target.connect(url)) as connection, transaction(connection) as tx:
        for number in range(ROWS):
            target.business(tx, number)


def prepare(target: Target, url: str, name: str, rest_s: float) -> None:
    """Do what the row says between its load and its drain."""
    if name == "rested":
        time.sleep(rest_s)
    elif name == "vacuumed":
        with closing(target.connect(url)) as connection:
            if target.name == "postgresql":
                connection.autocommit = True
            connection.execute("vacuum")


def run(target: Target, folder: Path, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Drain one shape once."""
    shape = (SHAPES | LOADED)[name]
    count = max(200, round(options.count * shape.share))
    rest(target)
    url = target.fresh()
    fill_business(target, url)
    due = fill(target, url, shape, count) if shape.workers == 1 else {}
    prepare(target, url, name, options.rest)
    command = ["late.cli", "worker", "bench.shapes.tasks:app"]
    with Beside() as beside, ExitStack() as stack:
        running = [
            stack.enter_context(measure.program(command, url, folder, f"worker-{n}"))
            for n in range(shape.workers)
        ]
        if shape.workers > 1:
            wait_even(target, url, running)
            fill(target, url, shape, count)
        last_us = measure.wait_settled(target, url, count, running[0])
        used_s = sum(processor_s(one) for one in running)
    marks = [line.split() for one in running for line in one.marks.read_text().splitlines()]
    firsts = [mark for mark in marks if mark[0] == "first"]
    first_ns = min(int(at) for _, at, _ in firsts)
    used_s -= sum(int(used) for _, _, used in firsts) / 1e9
    late_ms = sorted(1e3 * (int(at) / 1e9 - due[int(n)]) for n, at, *_ in marks if n != "first")
    found = {
        "tasks": count,
        "per_s": count / (last_us / 1e6 - first_ns / 1e9),
        "worker_us": 1e6 * used_s / count,
    }
    if late_ms:
        found["late_p50_ms"] = measure.percentile(late_ms, 0.5)
        found["late_p99_ms"] = measure.percentile(late_ms, 0.99)
    return found | beside.figures()


def wait_even(target: Target, url: str, running: Sequence[measure.Worker]) -> None:
    """Wait until each worker holds its share of the shards."""
    with closing(target.connect(url)) as connection:
        if target.name == "postgresql":
            connection.autocommit = True
        while alone.shares(connection, running) != alone.even(len(running)):
            pass  # it waits a second, and fails when a worker has ended


def processor_s(running: measure.Worker) -> float:
    """Return the processor time of a living worker so far."""
    stat = Path(f"/proc/{running.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.shapes", description=__doc__)
    parser.add_argument("--postgres", metavar="URL", help="a server in which databases may be made")
    parser.add_argument("--shapes", nargs="*", choices=[*SHAPES, *LOADED], help="these only")
    parser.add_argument("--count", type=int, default=100_000, help="tasks of the plain shape")
    parser.add_argument("--turns", type=int, default=3, help="of every shape; medians count")
    parser.add_argument("--rest", type=float, default=20.0, help="seconds of the row `rested`")
    parser.add_argument("--quick", action="store_true", help="few tasks, one turn")
    parser.add_argument("--record", type=Path, help="write the report here")
    options = parser.parse_args(arguments)
    if options.quick:
        options.count, options.turns, options.rest = 5_000, 1, 5.0
    options.shapes = options.shapes or [*SHAPES, *LOADED]
    return options


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    console = Console(width=max(Console().width, 110))
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    report: dict[str, Any] = {"at": at, "machine": machine(), "stores": {}}
    with tempfile.TemporaryDirectory(prefix="late-bench-") as scratch:
        targets: list[Target] = [Sqlite(Path(scratch))]
        if options.postgres:
            targets.append(Postgres(options.postgres))
        try:
            for turn in range(options.turns):
                for name in options.shapes:
                    for target in targets if turn % 2 == 0 else targets[::-1]:
                        console.print(f"turn {turn + 1}, {target.name}: {name}", style="dim")
                        one = run(target, Path(scratch), name, options)
                        store = report["stores"].setdefault(target.name, {})
                        entry = {"title": (SHAPES | LOADED)[name].title, "turns": []}
                        store.setdefault(name, entry)["turns"].append(one)
        except measure.GaveUp as error:
            console.print(str(error), markup=False)
            return 1
        finally:
            for target in targets:
                target.clear()
    console.print(table.text(report), markup=False)
    if options.record is not None:
        options.record.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
