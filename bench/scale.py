"""`make bench-scale`: how a drain grows with the workers, each held to a share of a processor.

On a machine with few processors, more workers show what the machine has left and not how `late`
scales. So each process gets a share of a processor, by a control group of Linux, and the server
what it wants. Its use is stated beside each figure, which says something only while server and
workers together leave some of the machine free. The backlog appears in one commit in front of
workers that own their shards already, so a speed-up is the work's and the placement's. What
placement alone allows is `shards / most shards of a worker`.

Needs root, for the control groups. Turns go up and down (1 2 4 8 8 4 2 1 ...).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from bench import measure
from bench.main import machine, rest
from bench.peers import cost
from bench.peers.table import rows
from bench.shapes import drains
from bench.shapes.tasks import SHAPES, app
from bench.steady.loop import Beside
from bench.targets import Postgres
from late.control import Control
from late.model.lanes import Lane

RESULT = Path(__file__).parents[1] / "docs" / "figures" / "scale.json"
SHARDS = 64
DEFAULT = ["plain", "function", "once"]
PERIOD_US = 10_000
"""Short: a process that has used its share waits for the rest of it."""
OWNERS = "select count(*) from late_lease where owner is not null group by owner"
GROUPS_V1, GROUPS_V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


@contextmanager
def held(pids: Sequence[int], share: float) -> Iterator[None]:
    """Hold each process to a share of one processor.

    Raises:
        GaveUp: there are no control groups of Linux here, or they are not ours to make.
    """
    quota, made = round(share * PERIOD_US), []
    try:
        for pid in pids:
            first = (GROUPS_V1 / "cpu.cfs_quota_us").exists()
            group = (GROUPS_V1 if first else GROUPS_V2) / f"late-bench-{pid}"
            group.mkdir()
            made.append(group)
            if first:
                (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (group / "cpu.cfs_quota_us").write_text(str(quota))
            else:
                (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
            (group / "cgroup.procs").write_text(str(pid))
        yield
    except OSError as error:
        raise measure.GaveUp(f"no share of a processor can be set here: {error}") from error
    finally:
        for group in made:
            for pid in (group / "cgroup.procs").read_text().split():
                (group.parent / "cgroup.procs").write_text(pid)
            group.rmdir()


def run(target: Postgres, folder: Path, name: str, workers: int, options: Any) -> dict[str, Any]:
    """Drain one backlog, once, with so many workers."""
    rest(target)
    url = target.fresh()
    with Control(url) as control:
        control.lanes.set_shards("default", SHARDS)
    app.adopt(Lane(shards=SHARDS, version=1))
    drains._fill_business(target, url)
    shape = SHAPES[name]._replace(workers=max(2, workers))  # 2: all appear at once
    count = round(options.tasks * shape.share) * workers
    server = cost.postmaster(url)
    with Beside() as beside, ExitStack() as stack:
        running = [
            stack.enter_context(drains._worker(url, folder, number)) for number in range(workers)
        ]
        most = _wait_owned(target, url, running)
        stack.enter_context(held([one.process.pid for one in running], options.share))
        drains.fill(target, url, shape, count)
        before_s = cost.cpu_s(server) or 0.0
        last_us = measure.wait_settled(target, url, count, running[0])
        server_s = (cost.cpu_s(server) or 0.0) - before_s
        first_s = min(drains.Marks.read(one.marks).first_s for one in running)
    took_s = last_us / 1e6 - first_s
    return {
        "shape": name,
        "workers": workers,
        "tasks": count,
        "per_s": count / took_s,
        "server": server_s / took_s,
        "most_shards": most,
    } | beside.figures()


def _wait_owned(target: Postgres, url: str, running: Sequence[measure.Worker]) -> int:
    """Wait until all shards have owners that stay; return the most that one has."""
    found: list[int] = []
    with closing(target.connect(url, autocommit=True)) as connection:
        while True:
            time.sleep(1.0)
            for one in running:
                one.check()
            before = found
            found = sorted(count for (count,) in connection.execute(OWNERS).fetchall())
            if sum(found) == SHARDS and len(found) == len(running) and found == before:
                return found[-1]


def text(report: dict[str, Any]) -> str:
    """Format the medians, one row for each shape and number of workers."""
    body = []
    for name in dict.fromkeys(run["shape"] for run in report["runs"]):
        mine = [run for run in report["runs"] if run["shape"] == name]
        alone = statistics.median(run["per_s"] for run in mine if run["workers"] == 1)
        for workers in sorted({run["workers"] for run in mine}):
            turns = [run for run in mine if run["workers"] == workers]
            rates = [run["per_s"] for run in turns]
            body.append(
                [
                    SHAPES[name].title,
                    f"{workers}",
                    f"{statistics.median(rates):,.0f}",
                    f"{statistics.median(rates) / alone:.2f}",
                    f"{SHARDS / max(run['most_shards'] for run in turns):.2f}",
                    f"{statistics.median(run['server'] for run in turns):.2f}",
                    f"{statistics.median(run['loop_ms'] for run in turns):.1f}",
                ]
            )
    share = report["share"]
    head = [
        "shape",
        f"workers, {share:.0%} of a processor each",
        "tasks a second",
        "times one worker",
        "by placement",
        "processors of the server",
        "fixed loop, ms",
    ]
    return rows(head, body)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--postgres", required=True, metavar="URL")
    parser.add_argument(
        "--shapes", nargs="+", choices=SHAPES, default=["plain", "function", "once"]
    )
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--share", type=float, default=0.1, help="of a processor, each")
    parser.add_argument("--tasks", type=int, default=16_000, help="plain ones for each worker")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args(arguments)
    report: dict[str, Any] = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
        "processors": os.cpu_count(),
        "share": options.share,
        "runs": [],
    }
    target = Postgres(options.postgres)
    with tempfile.TemporaryDirectory(prefix="late-bench-") as scratch:
        for turn in range(options.turns):
            for name in options.shapes:
                for workers in options.workers[:: -1 if turn % 2 else 1]:
                    try:
                        found = run(target, Path(scratch), name, workers, options)
                    except measure.GaveUp as error:
                        print(error)
                        return 1
                    finally:
                        target.clear()
                    report["runs"].append(found)
                    print(json.dumps(found), file=sys.stderr, flush=True)
    RESULT.write_text(json.dumps(report, indent=1) + "\n")
    print(text(report))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
