"""`make bench-steady`: a trickle of tasks, one a transaction beside a row of the service's own.

Stores and other queues take turns at each rate. Each figure stands beside a fixed loop that was
timed around it. `--record docs/figures/steady.json` writes the results for docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console

from bench.main import RESULTS, machine
from bench.peers import roster
from bench.peers.__main__ import now, write
from bench.peers.environments import Unavailable, bring_up
from bench.peers.programs import Failed
from bench.peers.workloads import Bench
from bench.steady import check, runs, table
from bench.steady.figures import STORES as STORE_NAMES
from bench.steady.figures import fit
from bench.steady.places import OnPostgres, OnSpanner, OnSqlite, Place
from bench.targets import Postgres
from late.errors import LateError
from late.model.size.figures import FIGURES
from late.testing.servers.databases import spanner_emulator

PEERS = ("graphile-worker", "pg-boss", "pgqueuer")
STORES = ("sqlite", "postgresql", "spanner")
FLEET = 4
CLIENTS = 16
SHAPES = {"delayed": {"delayed": 1.0}, "retried": {"retried": 1.0, "task": "failing"}}
"""What a parked task and a second attempt cost, measured where every task is one."""
SHAPED_RATE = 100


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.steady", description=__doc__)
    parser.add_argument("--postgres", metavar="URL", help="a server in which databases may be made")
    parser.add_argument("--only", nargs="*", default=STORES, choices=STORES, help="these stores")
    parser.add_argument("--peers", nargs="*", default=PEERS, metavar="NAME", help="beside late")
    parser.add_argument("--rates", type=float, nargs="+", default=(1, 100, 1_000))
    parser.add_argument(
        "--spanner-rates", type=float, nargs="+", default=(1, 10), help="what the emulator stands"
    )
    parser.add_argument("--seconds", type=float, default=120.0, help="of each rate")
    parser.add_argument("--gap", type=float, default=20.0, help="seconds between sparse tasks")
    parser.add_argument("--sparse", type=int, default=10, help="tasks of that kind; 0 for none")
    parser.add_argument("--idle", type=float, default=60.0, help="seconds; 0 for none")
    parser.add_argument("--singles", type=int, default=4_000, help="of 16 clients; 0 for none")
    parser.add_argument("--turns", type=int, default=2, help="of the clients")
    parser.add_argument("--no-shapes", action="store_true", help="no delays and no retries")
    parser.add_argument(
        "--check-size", action="store_true", help="instead: does `late size` foretell other shapes?"
    )
    parser.add_argument(
        "--figures", type=Path, help="with --check-size: constants of this run, not those kept"
    )
    parser.add_argument("--record", type=Path, help="write the results here as well")
    return parser.parse_args(arguments)


@contextmanager
def places(options: argparse.Namespace, say: Callable[[str], None]) -> Iterator[list[Place]]:
    """Every queue on every store that was asked for and is there."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="late-bench-")))
        found: list[Place] = []
        if "sqlite" in options.only:
            found.append(OnSqlite(folder))
        if "postgresql" in options.only and options.postgres:
            server = Postgres(options.postgres)
            stack.callback(server.clear)
            known = roster.read()
            for name in ("late", *options.peers):
                try:
                    bench = Bench(known[name], bring_up(known[name]), server, "", folder)
                    found.append(OnPostgres(bench))
                except Unavailable as reason:
                    say(f"{name} is not measured: {reason}")
        if "spanner" in options.only:
            try:
                stack.enter_context(spanner_emulator())
                found.append(OnSpanner(folder))
            except LateError as reason:
                say(f"Spanner is not measured: {reason}")
        yield found


def steps(
    all_places: Sequence[Place], options: argparse.Namespace
) -> Iterator[tuple[Place, str, Callable[[], dict[str, Any]]]]:
    """Yield all measurements in their order: (place, kind, measurement)."""
    for rate in options.rates:
        for place in all_places:
            if not isinstance(place, OnSpanner):
                shape = runs.Shape(rate, options.seconds)
                yield place, "steady", partial(runs.steady, place, shape)
        for place in all_places:
            if place.ours and not isinstance(place, OnSpanner):
                shape = runs.Shape(rate, options.seconds, "update")
                yield place, "steady", partial(runs.steady, place, shape)
    for place in all_places:
        if isinstance(place, OnSpanner):
            for rate in options.spanner_rates:
                shape = runs.Shape(rate, options.seconds)
                yield place, "steady", partial(runs.steady, place, shape)
        elif place.ours and not options.no_shapes:
            for asked in SHAPES.values():
                shape = runs.Shape(SHAPED_RATE, options.seconds, **asked)  # type: ignore[arg-type]
                yield place, "shapes", partial(runs.steady, place, shape)
    for place in all_places:
        if options.sparse:
            yield place, "sparse", partial(runs.sparse, place, options.gap, options.sparse)
        if options.idle:
            yield place, "idle", partial(runs.idle, place, FLEET, options.idle)
        if options.singles and not isinstance(place, OnSpanner):
            measured = partial(runs.clients, place, options.singles, CLIENTS, options.turns)
            yield place, "clients", measured


def entry(report: dict[str, Any], place: Place) -> dict[str, Any]:
    """Find the results of one queue on one store, or begin them."""
    key = {"store": place.store, "name": place.name}
    found: dict[str, Any]
    for found in report["places"]:
        if key.items() <= found.items():
            return found
    found = key | {"title": place.title, "versions": place.versions(), "failed": []}
    report["places"].append(found)
    return found


def check_size(options: argparse.Namespace, console: Console) -> int:
    """Compare `late size` with shapes that its constants were not measured with."""
    figures = FIGURES
    if options.figures:
        figures = fit(json.loads(options.figures.read_text()))
    say = partial(console.print, style="dim", markup=False)
    options.peers = ()
    found = []
    with places(options, say) as all_places:
        for place in all_places:
            store = STORE_NAMES[place.store]
            if isinstance(place, OnSpanner) or store not in figures:
                continue  # the emulator's bytes and times say nothing
            for shape in check.shapes(options.seconds):
                run = runs.steady(place, shape)
                say(f"{place.store}: {table.brief(run)}")
                found += check.compare(figures[store], run, place.store)
    console.print(check.text(found), markup=False, soft_wrap=True)
    return 0 if all(one.good for one in found) else 1


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    console = Console(width=max(Console().width, 110))
    say = partial(console.print, style="dim", markup=False)
    report: dict[str, Any] = {"at": now(), "machine": machine(), "seconds": options.seconds}
    report["places"] = []
    RESULTS.mkdir(exist_ok=True)
    files = [RESULTS / f"steady-{report['at'].replace(':', '')}.json"]
    files += [options.record] if options.record else []
    if options.check_size:
        return check_size(options, console)
    with places(options, say) as all_places:
        for place, kind, measure in steps(all_places, options):
            found = entry(report, place)
            try:
                one = measure()
            except (Failed, OSError, psycopg.Error, LateError) as reason:
                found["failed"].append(f"{kind}: {reason}")
                say(f"{place.title} on {place.store}, {kind}: not measured: {reason}")
            else:
                found.setdefault(kind, []).append(one)
                say(f"{place.title} on {place.store}, {kind}: {table.brief(one)}")
            write(report, files)  # what ends a run in the middle leaves what it has found
    report["load_after"] = round(os.getloadavg()[0], 2)
    write(report, files)
    console.print(table.text(report), markup=False, soft_wrap=True)
    for path in files:
        console.print(f"written to {path.name}")
    return 1 if any(one["failed"] for one in report["places"]) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
