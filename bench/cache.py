"""`make bench-cache`: reads of a service by the driver itself and through `late.cache`, in turns.

Threads read rows of a skewed choice as fast as they can, while another process changes rows at a
rate and says so in the same transactions. Both ways take turns on one database; the ratio of a
store and rate is what counts. The driver's way is the cheapest there is: a connection a thread, one
statement a read, no transaction around it.

    python -m bench.cache --postgres URL [--turns 3] [--seconds 4] [--rates 0 20 200]
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from sqlalchemy import Connection, bindparam, text

import late
from bench.main import machine
from bench.steady.loop import Beside
from bench.targets import Postgres, Sqlite, Target, transaction
from late.cache import Cache, changed
from late.control import Control

ROWS = 1_000
BODY = "x" * 500
READERS = 4
WAYS = ("driver", "cache")
_SELECT = text("select id, note from business where id in :ids").bindparams(
    bindparam("ids", expanding=True)
)

Read = Callable[[int], object]


def load(connection: Connection, keys: Sequence[str]) -> dict[str, str]:
    """Load rows for the cache: key -> note."""
    rows = connection.execute(_SELECT, {"ids": [int(key) for key in keys]})
    return {str(number): note for number, note in rows}


def fill(target: Target) -> str:
    """Make a database with rows to read, whose log keeps what is settled."""
    url = target.fresh()
    with closing(Control(url)) as control:
        control.groups.set_retention(600)
    with closing(target.connect(url)) as connection, transaction(connection):
        connection.execute("delete from business")
        for number in range(ROWS):
            target.business(connection, number)
        connection.execute(f"update business set note = '{BODY}'")
    return url


def skewed(rng: random.Random) -> int:
    """Choose a row: a tenth of them get about half of all reads."""
    return int(ROWS * rng.random() ** 3)


def write(target: Target, url: str, rate: float) -> None:
    """Change rows at `rate` a second until the process is ended."""
    app, rng = late.App(url), random.Random(7)
    with closing(target.connect(url)) as connection:
        due = time.monotonic()
        while True:
            number = skewed(rng)
            with transaction(connection) as tx:
                tx.execute(f"update business set note = '{BODY}' where id = {number}")
                changed(app, tx, str(number))
            due += 1 / rate
            time.sleep(max(0.0, due - time.monotonic()))


@contextmanager
def writer(target: Target, url: str, rate: float) -> Iterator[None]:
    if not rate:
        yield
        return
    command = [sys.executable, "-m", "bench.cache", "--write", target.name, url, str(rate)]
    process = subprocess.Popen(command)
    try:
        yield
        assert process.poll() is None, "the writer has ended"
    finally:
        process.kill()
        process.wait()


@contextmanager
def by_driver(target: Target, url: str) -> Iterator[Callable[[], Read]]:
    """Yield a function that makes each thread's way to read one row."""
    open_ones: list[Any] = []
    mark = "?" if target.name == "sqlite" else "%s"
    statement = f"select note from business where id = {mark}"

    def connect() -> Read:
        connection = target.connect(url)
        if target.name != "sqlite":
            connection.autocommit = True
        open_ones.append(connection)
        return lambda number: connection.execute(statement, (number,)).fetchone()[0]

    try:
        yield connect
    finally:
        for each in open_ones:
            each.close()


@contextmanager
def by_cache(cache: Cache[str]) -> Iterator[Callable[[], Read]]:
    yield lambda: lambda number: cache.get(str(number))


def measure(make: Callable[[], Read], seconds: float) -> dict[str, float]:
    """Read in threads for so long: reads a second, time of a read, processor time of a read."""
    times: list[list[float]] = [[] for _ in range(READERS)]
    until = time.perf_counter() + seconds

    def run(number: int) -> None:
        rng, read, taken = random.Random(number), make(), times[number]
        while (began := time.perf_counter()) < until:
            read(skewed(rng))
            taken.append(time.perf_counter() - began)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(READERS)]
    began, used = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took, used = time.perf_counter() - began, time.process_time() - used
    ascending = sorted(each for taken in times for each in taken)
    count = len(ascending)
    return {
        "reads_per_s": count / took,
        "p50_us": ascending[count // 2] * 1e6,
        "p99_us": ascending[count * 99 // 100] * 1e6,
        "processor_us": used / count * 1e6,
    }


def compare(target: Target, rate: float, seconds: float, turns: int) -> dict[str, Any]:
    """Measure both ways in turns on one database that is written at `rate`."""
    url = fill(target)
    found: dict[str, Any] = {"store": target.name, "rate": rate}
    taken: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    loops: list[float] = []
    with Cache(late.App(url), load) as cache:
        cache.start()
        while cache.statistics().age_s is None:
            time.sleep(0.01)
        cache.snapshot(map(str, range(ROWS)))  # A process that has run for a while.
        for _ in range(turns):
            with writer(target, url, rate):
                time.sleep(1.0)  # The writer's imports are over.
                for way in WAYS:
                    of = by_driver(target, url) if way == "driver" else by_cache(cache)
                    with Beside() as beside, of as make:
                        taken[way].append(measure(make, seconds))
                    loops.append(beside.figures()["loop_ms"])
        after = cache.statistics()
    for way in WAYS:
        found[way] = {name: median(one[name] for one in taken[way]) for name in taken[way][0]}
    ratios = [c["reads_per_s"] / d["reads_per_s"] for d, c in zip(*taken.values(), strict=True)]
    found |= {
        "ratios": [round(each, 2) for each in ratios],
        "loop_ms": median(loops),
        "hits": after.hits / max(1, after.hits + after.misses),
        "loaded": after.loaded,
        "loads": after.loads,
        "kib": after.bytes / 1024,
    }
    return found


def show(found: Sequence[dict[str, Any]], console: Console) -> None:
    columns = (
        "", "reads/s", "cache / driver", "p50, us", "p99, us", "processor, us", "hits",
        "keys loaded", "loop, ms",
    )  # fmt: skip
    table = Table(*columns)
    for column in table.columns[1:]:
        column.justify = "right"
    for one in found:
        for way in WAYS:
            of, cached = one[way], way == "cache"
            table.add_row(
                f"{one['store']}, {one['rate']:g} changes/s, {way}",
                f"{of['reads_per_s']:,.0f}",
                " ".join(f"{each:.2f}" for each in one["ratios"]) if cached else "",
                f"{of['p50_us']:,.0f}",
                f"{of['p99_us']:,.0f}",
                f"{of['processor_us']:,.0f}",
                f"{one['hits']:.1%}" if cached else "",
                f"{one['loaded']:,}" if cached else "",
                f"{one['loop_ms']:.2f}" if cached else "",
            )
    console.print(table)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.cache", description=__doc__)
    parser.add_argument("--postgres", metavar="URL", help="a server in which databases may be made")
    parser.add_argument("--only", choices=("sqlite", "postgresql"), help="one store only")
    parser.add_argument("--rates", type=float, nargs="+", default=[0, 20, 200])
    parser.add_argument("--seconds", type=float, default=4.0, help="of each turn")
    parser.add_argument("--turns", type=int, default=3, help="of each way")
    parser.add_argument("--write", nargs=3, metavar=("STORE", "URL", "RATE"), help="for itself")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    if options.write:
        store, url, rate = options.write
        target: Target = Sqlite(Path()) if store == "sqlite" else Postgres(url)
        write(target, url, float(rate))
    console = Console(width=max(Console().width, 130))
    before = machine()
    found = []
    with tempfile.TemporaryDirectory(prefix="late-bench-") as scratch:
        targets: list[Target] = [] if options.only == "postgresql" else [Sqlite(Path(scratch))]
        if options.postgres and options.only != "sqlite":
            targets.append(Postgres(options.postgres))
        for target in targets:
            try:
                for rate in options.rates:
                    found.append(compare(target, rate, options.seconds, options.turns))
                    console.print(found[-1])
            finally:
                target.clear()
    show(found, console)
    console.print(f"{before}\nload after {[round(each, 2) for each in os.getloadavg()]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
