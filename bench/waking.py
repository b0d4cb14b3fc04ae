"""`make bench-waking`: commit to start, where producers wake the worker and where they do not.

Both ways take turns, each on a fresh database with a worker of its own, so that what else the
machine does falls on both. All turns of one way are one sample. Read ratios: the load is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import measure
from bench.main import machine
from bench.targets import Postgres, Sqlite, Target

SHARES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


def compare(
    target: Target, folder: Path, rate: float, seconds: float, turns: int
) -> dict[str, Any]:
    """Milliseconds by percentile, woken and not, at `rate` tasks a second."""
    lags: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(turns):
        for wake in lags:
            lags[wake] += measure.lags_ms(target, folder, rate, seconds, wake=wake)
    found: dict[str, Any] = {"store": target.name, "rate_per_s": rate}
    for wake, name in ((False, "polled"), (True, "woken")):
        ascending = sorted(lags[wake])
        found[name] = {at: measure.percentile(ascending, part) for at, part in SHARES.items()}
        found[name] |= {"max": ascending[-1], "tasks": len(ascending)}
    return found


def show(found: Sequence[dict[str, Any]], console: Console) -> None:
    table = Table("", "polled, ms", "woken, ms", "woken / polled")
    for column in table.columns[1:]:
        column.justify = "right"
    for one in found:
        for at in (*SHARES, "max"):
            polled, woken = one["polled"][at], one["woken"][at]
            table.add_row(
                f"{one['store']}, {one['rate_per_s']:g}/s, {at}",
                f"{polled:,.1f}",
                f"{woken:,.1f}",
                f"{woken / max(polled, 0.001):.2f}",
            )
    console.print(table)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.waking", description=__doc__)
    parser.add_argument("--postgres", metavar="URL", help="a server in which databases may be made")
    parser.add_argument("--only", choices=("sqlite", "postgresql"), help="one store only")
    parser.add_argument("--rates", type=float, nargs="+", default=[1, 100, 1_000])
    parser.add_argument("--seconds", type=float, default=10.0, help="of each turn")
    parser.add_argument("--turns", type=int, default=2, help="of each way")
    parser.add_argument("--record", type=Path, help="write the results here")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    console = Console(width=max(Console().width, 100))
    report: dict[str, Any] = {"machine": machine(), "seconds": options.seconds, "found": []}
    with tempfile.TemporaryDirectory(prefix="late-bench-") as scratch:
        folder = Path(scratch)
        targets: list[Target] = [] if options.only == "postgresql" else [Sqlite(folder)]
        if options.postgres and options.only != "sqlite":
            targets.append(Postgres(options.postgres))
        for target in targets:
            try:
                for rate in options.rates:
                    found = compare(target, folder, rate, options.seconds, options.turns)
                    report["found"].append(found)
            finally:
                target.clear()
    report["load_after"] = [round(value, 2) for value in os.getloadavg()]
    show(report["found"], console)
    console.print(f"load before {report['machine']['load_before']}, after {report['load_after']}")
    if options.record:
        options.record.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
