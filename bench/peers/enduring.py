"""W7: round after round of tasks beside what keeps a database from forgetting.

A transaction that has written stays open, and three queries of a report overlap, so that there is
always a snapshot as old as the measurement. PostgreSQL can then remove no dead row: who deletes or
updates a row for each task wades through all that were. The queries sleep instead of computing:
what they take is a snapshot and not a processor.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from typing import Any

import psycopg

from bench.peers import marks, workloads

QUERIES = 3
QUERY_S = 120.0
RATE = 100
"""Tasks a second, after the rounds, whose time from commit to start is taken."""


@contextmanager
def held(url: str) -> Iterator[None]:
    """Hold the old transaction and run the queries for the time of the block."""
    with ExitStack() as stack:
        holder = stack.enter_context(closing(psycopg.connect(url)))
        holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        holder.execute("insert into business values (-1, 'held')")
        over = threading.Event()
        for number in range(QUERIES):
            reader = stack.enter_context(closing(psycopg.connect(url, autocommit=True)))
            thread = threading.Thread(target=_report, args=(reader, number, over))
            thread.start()
            stack.callback(_ended, reader, thread)
        stack.callback(over.set)
        yield


def _ended(reader: psycopg.Connection, thread: threading.Thread) -> None:
    while thread.is_alive():
        reader.cancel_safe()
        thread.join(0.1)


def _report(reader: psycopg.Connection, number: int, over: threading.Event) -> None:
    """One query after the other, each begun a third after its neighbour."""
    over.wait(QUERY_S / QUERIES * number)
    while not over.is_set():
        try:
            reader.execute("select count(*), pg_sleep(%s) from business", (QUERY_S,))
        except psycopg.errors.QueryCanceled:
            return


def endure(bench: workloads.Bench, sizes: workloads.Sizes, *, hold: bool) -> dict[str, Any]:
    """Tasks a second of each round, from the first of its inserts until the storage knows all as
    finished; and then the time from commit to start.

    Raises:
        Failed: one of the peer's programs failed, or nothing moved.
    """
    commits = bench.folder / "commits"
    count = max(1_000, round(sizes.tasks * bench.peer.share))
    rates = []
    with bench.fresh() as (program, _), program.worker() as running:
        program.run("bulk", 0, workloads.WARM_UP)
        workloads.emptied(bench, program.url, workloads.WARM_UP, [running])
        with held(program.url) if hold else nullcontext():
            for turn in range(sizes.rounds):
                done = workloads.WARM_UP + turn * count
                taken_s = program.run("bulk", done, count)["seconds"]
                began = time.monotonic() - taken_s
                workloads.emptied(bench, program.url, done + count, [running])
                rates.append(count / (time.monotonic() - began))
            program.run("produce", RATE, sizes.seconds, commits)
            committed = marks.pairs(commits)
            found = workloads.started(running, len(committed))
    lags = marks.lags_ms(committed, found.started)
    return {"held": hold, "per_s": rates, **marks.summary(lags, sizes.seconds)}
