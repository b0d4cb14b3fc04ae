"""`make bench-restarts`: what a deployment and a death cost the tasks, per shard.

A **rolling restart** starts the new worker, waits until the database knows it and a second more,
then stops the oldest with SIGTERM and waits for its end, as a deployment does. A **kill** is a
SIGKILL of the oldest; the new worker comes a time to live later. Tasks are committed at a steady
rate all along.

Reported are, with one sample per restart and shard, the longest **dispatch gap**: the time in which
the shard had a committed task that waited while nothing started on it. And over the whole run
duplicates (a number that started twice), attempts that failed, and tasks that were lost. After a
kill it is the **takeover**: from the kill to the first start on each shard of the dead.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.fleet import Fleet, Load, Start, gaps, grants, longest, outcomes, wait_settled
from bench.main import RESULTS, machine
from bench.measure import GaveUp, percentile
from bench.targets import Postgres, Sqlite, Target
from late.control import Control

AFTERWARDS_S = 1.5
"""The time after a stop in which its gaps may still end."""
QUIET_S, WINDOW_S = 15.0, 5.0
"""At the end the load goes on without a restart, in windows about as long as one takes: what such
a window shows is the machine's doing, and the store's."""


def roll(
    url: str,
    folder: Path,
    *,
    restarts: int,
    workers: int = 2,
    rate: int = 200,
    shards: int = 8,
    environment: dict[str, str] | None = None,
    quiet_s: float = QUIET_S,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Rolling restarts under load, and what they cost; at the end `quiet_s` without any.

    Raises:
        GaveUp: a worker did not start or stop as it should, or the backlog stayed.
    """
    widen(url, shards)
    fleet = Fleet(url, folder, environment)
    rounds: list[tuple[float, float, float]] = []
    try:
        for process in [fleet.start() for _ in range(workers)]:
            fleet.wait_ready(process)
        with Load(url, rate, shards) as load:
            time.sleep(2.0)
            for number in range(restarts):
                from_s = time.monotonic()
                fleet.wait_ready(fleet.start())
                stop_s = time.monotonic()
                fleet.stop(fleet.living[0])
                time.sleep(AFTERWARDS_S)
                rounds.append((from_s, stop_s, time.monotonic()))
                if (number + 1) % 10 == 0:
                    say(f"{number + 1} restarts")
            over_s = time.monotonic()
            time.sleep(quiet_s)
        wait_settled(url)
        for process in list(fleet.living):
            fleet.stop(process)
        starts = fleet.starts()
    finally:
        fleet.close()
    found = gaps(load.committed, starts)
    samples, joins, leaves, quiet = [], [], [], []
    for turn in range(int(quiet_s / WINDOW_S)):
        from_s = over_s + turn * WINDOW_S
        quiet += longest(found, from_s, from_s + WINDOW_S).values()
    for from_s, stop_s, until_s in rounds:
        samples += longest(found, from_s, until_s).values()
        joins += longest(found, from_s, stop_s).values()
        leaves += longest(found, stop_s, until_s).values()
    return {
        "what": "rolling restarts",
        "restarts": restarts,
        "workers": workers,
        "shards": shards,
        "standby_s": float((environment or {}).get("LATE_STANDBY_S", 0)),
        "per_s": round(len(load.committed) / (rounds[-1][2] - rounds[0][0] + 2.0)),
        "gap_ms": spread(samples),
        "gap_at_the_join_ms": spread(joins),
        "gap_at_the_leave_ms": spread(leaves),
        "gap_without_restarts_ms": spread(quiet),
        "restart_s": spread([until - begun for begun, _, until in rounds], unit=1.0),
        "grants": grants(url),
    } | verdict(url, set(load.committed), starts)


def strike(
    url: str,
    folder: Path,
    *,
    kills: int,
    workers: int = 2,
    rate: int = 200,
    shards: int = 8,
    ttl_s: float = 5.0,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Kills under load: how long the shards of the dead stand still.

    Raises:
        GaveUp: as `roll`.
    """
    widen(url, shards)
    fleet = Fleet(url, folder, {"LATE_LEASE_TTL_S": str(ttl_s)})
    struck: list[tuple[float, set[int], int]] = []
    try:
        for process in [fleet.start() for _ in range(workers)]:
            fleet.wait_ready(process)
        with Load(url, rate, shards) as load:
            time.sleep(2.0)
            for number in range(kills):
                victim = fleet.living[0]
                owned = fleet.owned_by(victim)
                kill_s = time.monotonic()
                fleet.kill(victim)
                struck.append((kill_s, owned, victim.pid))
                time.sleep(ttl_s + 2.0)
                fleet.wait_ready(fleet.start())
                time.sleep(2.0)
                say(f"{number + 1} kills")
        wait_settled(url)
        for process in list(fleet.living):
            fleet.stop(process)
        starts = fleet.starts()
    finally:
        fleet.close()
    result = {
        "what": "kills",
        "kills": kills,
        "workers": workers,
        "shards": shards,
        "ttl_s": ttl_s,
        "takeover_s": spread(takeovers(load.committed, starts, struck), unit=1.0),
    } | verdict(url, set(load.committed), starts)
    dead = {pid for _, _, pid in struck}
    by_number: dict[int, set[int]] = {}
    for start in starts:
        by_number.setdefault(start.number, set()).add(start.pid)
    result["unexplained"] = sum(
        1 for pids in by_number.values() if len(pids) > 1 and not pids & dead
    )
    return result


def takeovers(
    committed: dict[int, tuple[int, float]],
    starts: Sequence[Start],
    struck: Sequence[tuple[float, set[int], int]],
) -> list[float]:
    """From each kill to the first start by another process, per shard that the dead had."""
    found = []
    for kill_s, owned, pid in struck:
        first: dict[int, float] = {}
        for start in starts:
            shard = committed[start.number][0]
            if start.at_s > kill_s and start.pid != pid and shard in owned:
                first.setdefault(shard, start.at_s - kill_s)
        found += first.values()
    return found


def verdict(url: str, committed: set[int], starts: Sequence[Start]) -> dict[str, Any]:
    """Count the broken promises: all zero in a deployment."""
    counts = Counter(start.number for start in starts)
    ended = outcomes(url)
    return {
        "tasks": len(committed),
        "lost": len(committed - counts.keys()),
        "duplicates": sum(count - 1 for count in counts.values()),
        "repeated_attempts": sum(1 for start in starts if start.attempt > 1),
        "failed": sum(n for outcome, n in ended.items() if outcome not in ("done", "interrupted")),
        "unsettled": len(committed) - ended["done"],
        "load_average": round(os.getloadavg()[1], 1),
    }


def widen(url: str, shards: int) -> None:
    with Control(url) as control:
        control.lanes.set_shards("default", shards)


def spread(values: Sequence[float], unit: float = 1_000.0) -> dict[str, float]:
    """p50, p99 and the most, and of how many."""
    ordered = sorted(value * unit for value in values)
    if not ordered:
        return {"samples": 0}
    digits = 0 if unit > 1 else 2
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    found = {name: round(percentile(ordered, share), digits) for name, share in shares.items()}
    return found | {"max": round(ordered[-1], digits), "samples": len(ordered)}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.restarts", description=__doc__)
    parser.add_argument("--postgres", metavar="URL", help="a server in which databases may be made")
    parser.add_argument("--only", choices=("sqlite", "postgresql"), help="one store only")
    parser.add_argument("--restarts", type=int, default=100)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rate", type=int, default=200, help="tasks a second")
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--standby", type=float, default=0.0, metavar="S", help="new ones wait")
    options = parser.parse_args(arguments)
    report: dict[str, Any] = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
        "runs": [],
    }
    given = {name: getattr(options, name) for name in ("workers", "rate", "shards")}
    rolled = {"environment": {"LATE_STANDBY_S": str(options.standby)}} if options.standby else {}
    with tempfile.TemporaryDirectory(prefix="late-bench-") as scratch:
        targets: list[Target] = []
        if options.only != "postgresql":
            targets.append(Sqlite(Path(scratch)))
        if options.postgres and options.only != "sqlite":
            targets.append(Postgres(options.postgres))
        for target in targets:
            try:
                for name, run in (("restarts", roll), ("kills", strike)):
                    if not (count := getattr(options, name)):
                        continue
                    folder = Path(scratch) / f"{target.name}-{name}"
                    folder.mkdir()
                    print(f"{target.name}: {count} {name}", flush=True)
                    measured = run(  # type: ignore[operator]
                        target.fresh(), folder, **{name: count}, **given, say=_say,
                        **(rolled if run is roll else {}),
                    )  # fmt: skip
                    report["runs"].append({"store": target.versions(), **measured})
                    print(json.dumps(report["runs"][-1], indent=1), flush=True)
            except GaveUp as error:
                print(f"{target.name}: {error}")
                return 1
            finally:
                target.clear()
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"restarts-{report['at'].replace(':', '')}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written to bench/results/{path.name}")
    return 0


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
