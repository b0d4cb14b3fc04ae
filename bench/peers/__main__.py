"""`make bench-peers`: measures every peer in turn and writes one file of results.

`python -m bench.peers --postgres URL [--only NAME ...]`. The order is that of the roster, with the
limits of the same run before and after: what the same driver does with no queue at all. A peer that
cannot be brought up or fails is written down with its reason and stops nobody else.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console

from bench import measure
from bench.main import RESULTS, SINGLE, machine
from bench.peers import enduring, redis, roster, table, workloads
from bench.peers.environments import Unavailable, bring_up, installed
from bench.peers.programs import Failed
from bench.targets import Postgres


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    sizes = workloads.Sizes()
    parser.add_argument("--postgres", metavar="URL", help="a server in which databases may be made")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="these, and late")
    parser.add_argument("--install", action="store_true", help="bring the environments up, no more")
    parser.add_argument("--tasks", type=int, default=sizes.tasks, help="tasks to drain")
    parser.add_argument("--singles", type=int, default=sizes.singles, help="single transactions")
    parser.add_argument("--clients", type=int, nargs="+", default=sizes.clients)
    parser.add_argument("--rates", type=int, nargs="+", default=sizes.rates, help="tasks a second")
    parser.add_argument("--seconds", type=float, default=sizes.seconds, help="of a latency run")
    parser.add_argument("--backlogs", type=int, nargs="*", default=(), help="drains of other sizes")
    parser.add_argument("--workers", type=int, nargs="*", default=(), help="drains by so many")
    parser.add_argument("--rounds", type=int, default=0, help="of W7, with a snapshot held")
    parser.add_argument("--enduring", nargs="*", default=[], metavar="NAME", help="in W7: these")
    parser.add_argument("--record", type=Path, help="write the results here as well")
    parser.add_argument("--go-on", action="store_true", help="with --record: the peers left there")
    return parser.parse_args(arguments)


def limits(server: Postgres, count: int) -> dict[str, float]:
    """Measure the driver with the same rows and no queue."""
    rows = measure.rows(count)
    return {
        "write_per_s": server.write_rate(rows),
        "drain_per_s": server.drain_rate(rows),
        "commit_per_s": server.commit_rate(SINGLE),
    }


def one(
    peer: roster.Peer, server: Postgres, sizes: workloads.Sizes, say: Callable[[str], None]
) -> dict[str, Any]:
    """One peer's entry in the results: its numbers, or why there are none."""
    entry: dict[str, Any] = {
        "at": now(),
        "load_before": round(os.getloadavg()[0], 2),
        "peer": peer.name,
        "title": peer.title,
        "settings": peer.settings,
        "durability": peer.durability,
        "same_transaction": peer.same_transaction,
    }
    try:
        with ExitStack() as stack:
            environment = bring_up(peer)
            entry["installed"] = installed(peer, environment)
            address = stack.enter_context(redis.server()) if peer.redis else ""
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="late-bench-"))
            bench = workloads.Bench(peer, environment, server, address, Path(scratch))
            entry |= workloads.measure(bench, sizes, say)
            if sizes.rounds and peer.name in {"late", *sizes.enduring}:
                entry["enduring"] = []
                for hold in (False, True):
                    say(f"{sizes.rounds} rounds" + ", a snapshot held" * hold)
                    found = enduring.endure(bench, sizes, hold=hold)
                    entry["enduring"].append(found)
            return entry
    except (Unavailable, Failed, OSError, psycopg.Error) as reason:
        say(f"not measured: {reason}")
        return entry | {"failed": str(reason)}


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    console = Console(width=max(Console().width, 110))
    peers = roster.chosen(options.only, roster.read())
    if options.install:
        return _install(peers, console)
    if not options.postgres:
        console.print("--postgres is needed: make bench-peers finds or starts a server")
        return 2
    sizes = workloads.Sizes(
        options.tasks,
        options.singles,
        tuple(options.clients),
        tuple(options.rates),
        options.seconds,
        tuple(options.backlogs),
        tuple(options.workers),
        options.rounds,
        tuple(options.enduring),
    )
    server = Postgres(options.postgres)
    report = begun(server, options)
    RESULTS.mkdir(exist_ok=True)
    files = [RESULTS / f"peers-{report['at'].replace(':', '')}.json"]
    files += [options.record] if options.record else []
    there = {entry["peer"] for entry in report["peers"] if "failed" not in entry}
    try:
        bound(report, server, sizes)
        for peer in peers:
            if peer.name in there:
                continue
            console.print(f"[b]{peer.title}[/]")
            report["peers"].append(one(peer, server, sizes, partial(_say, console)))
            write(report, files)  # what ends a run in the middle leaves what it has found
        bound(report, server, sizes)
    finally:
        server.clear()
    write(report, files)
    console.print(table.text(report), markup=False)
    for path in files:
        console.print(f"written to {path.name}")
    return 0


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def begun(server: Postgres, options: argparse.Namespace) -> dict[str, Any]:
    """A report without peers, or the one that is gone on with: without those that failed."""
    if options.go_on and options.record and options.record.exists():
        report: dict[str, Any] = json.loads(options.record.read_text())
        report["peers"] = [entry for entry in report["peers"] if "failed" not in entry]
        return report
    head = {"at": now(), "machine": machine(), "server": server.versions()}
    return {**head, "peers": [], "limits": {}}


def bound(report: dict[str, Any], server: Postgres, sizes: workloads.Sizes) -> None:
    """Measure the limits once more: the best of a run counts."""
    found = report["limits"]
    for name, rate in limits(server, sizes.tasks).items():
        found[name] = max(rate, found.get(name, 0.0))


def write(report: dict[str, Any], files: Sequence[Path]) -> None:
    for path in files:
        path.write_text(json.dumps(report, indent=1) + "\n")


def _say(console: Console, text: str) -> None:
    console.print(f"  {text}", style="dim", markup=False)


def _install(peers: Sequence[roster.Peer], console: Console) -> int:
    """Bring the environments up; how many could not be."""
    missing = 0
    for peer in peers:
        try:
            bring_up(peer)
            console.print(f"{peer.name}: ready")
        except Unavailable as reason:
            missing += 1
            console.print(f"{peer.name}: {reason}", markup=False)
    return min(missing, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
