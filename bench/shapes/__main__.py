"""`make bench-shapes`: one drain per shape of task, on SQLite and PostgreSQL, in turns.

Each shape runs between two drains of the plain one, and its ratio is to the mean of these. With
`--parts peers` late and each other queue take turns on PostgreSQL. Beside every rate stand the
processor time of worker and server and a fixed loop, which tells how fast the processor was at that
moment. A drain that gives up is said in the report and stops nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import measure
from bench.main import machine
from bench.peers.__main__ import now, write
from bench.shapes import beside, drains, pairs, table
from bench.targets import Postgres, Sqlite, Target

Report = dict[str, Any]
STORES = ("sqlite", "postgresql")


def own(
    targets: Sequence[Target],
    options: argparse.Namespace,
    report: Report,
    keep: Callable[[str], None],
) -> None:
    """Drain the shapes in turns on each store, into the report."""
    report["stores"] = {}
    for turn in range(options.turns):
        for target in targets if turn % 2 == 0 else targets[::-1]:
            shapes = [name for name in options.shapes if target.name in drains.LINES[name].stores]
            names = pairs.chain(shapes, turn)
            found: list[dict[str, Any] | None] = []
            for name in names:
                keep(f"turn {turn + 1}, {target.name}: {name}")
                found.append(_one(target, name, turn, options, report))
            store = report["stores"].setdefault(target.name, {})
            for name, turns in pairs.paired(names, found).items():
                entry = {"title": drains.LINES[name].title, "turns": []}
                store.setdefault(name, entry)["turns"].extend(turns)
            target.clear()


def _one(
    target: Target, name: str, turn: int, options: argparse.Namespace, report: Report
) -> dict[str, Any] | None:
    with tempfile.TemporaryDirectory(prefix="late-bench-") as folder:
        try:
            return drains.run(target, Path(folder), name, options.count, options.rest)
        except measure.GaveUp as reason:
            beside.gave_up(report, target.name, name, turn, reason)
            return None


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.shapes", description=__doc__)
    known = [*drains.LINES]
    parts = [*STORES, "peers"]
    parser.add_argument("--postgres", metavar="URL", help="a server in which databases may be made")
    parser.add_argument("--parts", nargs="*", choices=parts, default=STORES, help="what to measure")
    parser.add_argument("--shapes", nargs="*", choices=known, default=known, help="these only")
    parser.add_argument("--peers", nargs="*", choices=beside.PEERS, default=beside.PEERS)
    parser.add_argument(
        "--contests", nargs="*", choices=beside.CONTESTS, default=[*beside.CONTESTS]
    )
    parser.add_argument("--count", type=int, default=100_000, help="tasks of the plain shape")
    parser.add_argument("--turns", type=int, default=3, help="of every shape; medians count")
    parser.add_argument("--rest", type=float, default=20.0, help="seconds of the row `rested`")
    parser.add_argument("--quick", action="store_true", help="few tasks, one turn")
    parser.add_argument("--record", type=Path, help="write the report here as well")
    parser.add_argument("--note", help="what the record shall say of its conditions beside that")
    parser.add_argument("--go-on", action="store_true", help="with --record: keep its other parts")
    options = parser.parse_args(arguments)
    if options.quick:
        options.count, options.turns, options.rest = 5_000, 1, 5.0
    return options


def begun(options: argparse.Namespace) -> Report:
    """Return a report without figures, or the one that is gone on with."""
    if options.go_on and options.record and options.record.exists():
        report: Report = json.loads(options.record.read_text())
        return report
    return {"gave_up": [], "conditions": {}}


def conditions(options: argparse.Namespace, targets: Sequence[Target]) -> dict[str, Any]:
    """Describe one run, before it."""
    return {
        "at": now(),
        "machine": machine(),
        "versions": [target.versions() for target in targets],
        "count": options.count,
        "turns": options.turns,
        "rest_s": options.rest,
        "note": options.note,
    }


def measured(
    targets: Sequence[Target], options: argparse.Namespace, console: Console
) -> Report:  # fmt: skip
    """Measure the parts that are asked for; the record is written again before each drain."""
    report = begun(options)

    def keep(what: str = "") -> None:
        console.print(what, style="dim", markup=False)
        report["conditions"][part]["load_after"] = round(os.getloadavg()[0], 2)
        if options.record is not None:
            write(report, [options.record])

    stores = [target for target in targets if target.name in options.parts]
    if stores:
        part = "stores"
        report["conditions"][part] = conditions(options, stores)
        own(stores, options, report, keep)
        keep()
    servers = [target for target in targets if isinstance(target, Postgres)]
    if "peers" in options.parts and servers:
        part = "peers"
        report["conditions"][part] = conditions(options, servers)
        beside.measure(servers[0], options, report, keep)
        keep()
    return report


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    console = Console(width=max(Console().width, 110))
    with tempfile.TemporaryDirectory(prefix="late-bench-") as scratch:
        targets: list[Target] = [Sqlite(Path(scratch))]
        if options.postgres:
            targets.append(Postgres(options.postgres))
        try:
            report = measured(targets, options, console)
        finally:
            for target in targets:
                target.clear()
    console.print(table.text(report), markup=False, soft_wrap=True)
    return 1 if report["gave_up"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
