"""Shapes of tasks beside other queues, on PostgreSQL: late and one peer in turns.

A peer takes part in what it does naturally: the mix needs ordering keys, unique keys, priorities
and delays in one queue. An UPDATE of a peer goes through a pool of its own, as its jobs would do
it, and happens at least once; late's stands beside it in `ctx.once()`, in a
transaction shared by several tasks, and the same way.
"""

from __future__ import annotations

import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg

from bench.peers import cost, roster, workloads
from bench.peers.adapters.mix import delay_s
from bench.peers.environments import Unavailable, bring_up, installed
from bench.peers.programs import Failed, Running
from bench.shapes.drains import FILLED_PER_S, Marks, lateness
from bench.shapes.tasks import LARGE, ROWS, SMALL
from bench.steady.loop import Beside
from bench.targets import Postgres

PEERS = ("graphile-worker", "pg-boss", "pgqueuer", "procrastinate", "oban")
LEAST = 1_000


@dataclass(frozen=True, slots=True)
class Contest:
    """One row: the tasks of late and of a peer that stand beside each other."""

    title: str
    ours: str = "nothing"
    theirs: str = "nothing"
    note: str = SMALL
    share: float = 1.0
    peers: tuple[str, ...] = PEERS

    @property
    def delays(self) -> bool:
        return self.ours == "mixed"


CONTESTS = {
    "plain": Contest("plain"),
    "large": Contest("payload of 2 KB", note=LARGE, share=0.5),
    "once": Contest("one UPDATE, of late in `ctx.once()`", "update", "update", share=0.1),
    "shared": Contest("one UPDATE, of late with `transaction=True`", "shared", "update", share=0.2),
    "pooled": Contest("one UPDATE, own pool on both sides", "pooled", "update", share=0.1),
    "mix": Contest(
        "the mix", "mixed", "mixed", LARGE, 0.4, ("graphile-worker", "procrastinate")
    ),
}  # fmt: skip


def tasks(count: int, contest: Contest, peer: roster.Peer) -> int:
    """Return the number of tasks of one drain: fewer where they would take minutes."""
    return max(LEAST, round(count * contest.share * peer.share))


def order(turn: int) -> tuple[str, str]:
    """Return who comes first: late and the peer in turn."""
    return ("late", "peer") if turn % 2 == 0 else ("peer", "late")


@dataclass(frozen=True, slots=True)
class Match:
    """late and one peer, each ready to run."""

    late: workloads.Bench
    peer: workloads.Bench

    def play(self, contest: Contest, count: int, turn: int) -> dict[str, Any]:
        """Drain both once; the ratio is that of their rates.

        Raises:
            Failed: one of the programs failed, or nothing moved.
        """
        found: dict[str, Any] = {}
        for side in order(turn):
            bench, task = (
                (self.late, contest.ours) if side == "late" else (self.peer, contest.theirs)
            )
            found[side] = drain(bench, contest, task, tasks(count, contest, bench.peer))
        return found | {"ratio": found["late"]["per_s"] / found["peer"]["per_s"]}


def drain(bench: workloads.Bench, contest: Contest, task: str, count: int) -> dict[str, Any]:
    """Drain one backlog, from the first start of a handler until the storage holds nothing
    unfinished."""
    told = {"BENCH_NOTE": str(len(contest.note)), "BENCH_TASK": task}
    given = bench.environment.variables | told
    bench = replace(bench, environment=replace(bench.environment, variables=given))
    with bench.fresh() as (program, _):
        with closing(psycopg.connect(program.url, autocommit=True)) as connection:
            connection.execute(
                "insert into business select n, 'order' from generate_series(0, %s) n", (ROWS - 1,)
            )
        start_s = time.time() + count / FILLED_PER_S if contest.delays else 0.0
        program.run("bulk", 0, count, task, *([start_s] if contest.delays else []))
        time.sleep(max(0.0, start_s - time.time()))
        server = cost.postmaster(program.url)
        with Beside() as beside:
            server_s = cost.cpu_s(server)
            with program.worker() as running:
                end = workloads.emptied(bench, program.url, count, [running])
                life_s = cost.cpu_s(running.process.pid)
            server_after_s = cost.cpu_s(server)
    seconds = {
        "worker_us": end.worker_cpu_s,
        "life_us": life_s,
        "server_us": _less(server_after_s, server_s),
    }
    costs = {name: 1e6 * taken / count for name, taken in seconds.items() if taken is not None}
    rate = {"tasks": count, "per_s": count / end.seconds}
    return rate | costs | _late(running, start_s if contest.delays else None) | beside.figures()


def _less(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before


def _late(running: Running, start_s: float | None) -> dict[str, float]:
    if start_s is None:
        return {}
    found = workloads.marks.parse(workloads.marks.lines(running.marks)).started
    started = {number: at_ns / 1e9 for number, at_ns in found.items()}
    return lateness([Marks(0.0, 0.0, started)], {n: start_s + delay_s(n) for n in started})


def measure(
    server: Postgres,
    options: Namespace,
    report: dict[str, Any],
    keep: Callable[[str], None],
) -> None:
    """Measure the contests into the report; what fails is written down and stops nothing else."""
    known = roster.read()
    report["peers"] = {}
    with tempfile.TemporaryDirectory(prefix="late-bench-") as scratch:
        matches: dict[str, Match] = {}
        for name in options.peers:
            try:
                matches[name] = Match(
                    *(_bench(known[one], server, Path(scratch)) for one in ("late", name))
                )
            except Unavailable as reason:
                gave_up(report, name, "all", 0, reason)
                continue
            peer = matches[name].peer
            report["peers"][name] = {
                "title": peer.peer.title,
                "settings": peer.peer.settings,
                "installed": installed(peer.peer, peer.environment),
                "shapes": {},
            }
        for turn in range(options.turns):
            for name, match in matches.items():
                for shape in options.contests:
                    contest = CONTESTS[shape]
                    if name not in contest.peers:
                        continue
                    keep(f"turn {turn + 1}, late and {name}: {shape}")
                    try:
                        found = match.play(contest, options.count, turn)
                    except (Failed, OSError, psycopg.Error) as reason:
                        gave_up(report, name, shape, turn, reason)
                        continue
                    shapes = report["peers"][name]["shapes"]
                    entry = {"title": contest.title, "turns": []}
                    shapes.setdefault(shape, entry)["turns"].append(found)


def gave_up(report: dict[str, Any], where: str, shape: str, turn: int, reason: Exception) -> None:
    """Write down a drain that has no figures."""
    entry = {"where": where, "shape": shape, "turn": turn + 1, "reason": str(reason)}
    report["gave_up"].append(entry)


def _bench(peer: roster.Peer, server: Postgres, folder: Path) -> workloads.Bench:
    return workloads.Bench(peer, bring_up(peer), server, "", folder)
