"""`late bench`: measure a database in tables of its own."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from late.cli import output
from late.cli.options import Json, Url, UrlArgument, url_of


def bench(
    url: UrlArgument = None,
    url_option: Url = None,
    tasks: Annotated[int, typer.Option(help="Tasks to drain.", min=100, max=10_000_000)] = 20_000,
    rate: Annotated[int, typer.Option(help="Tasks a second for latency.", min=1, max=1_000)] = 100,
    seconds: Annotated[float, typer.Option(help="Time for latency.", min=0.1, max=600)] = 5.0,
    beside: Annotated[
        bool,
        typer.Option("--beside", help="Measure even where a queue is at work: it is slowed down."),
    ] = False,
    json: Json = False,
) -> None:
    """Measure enqueueing, draining and latency with one worker on this machine.

    Tables of its own are made for it and dropped afterwards: on PostgreSQL in a schema, for SQLite
    in a file beside the named one. Refuses a database that holds a queue's data unless told.
    """
    from late.cli.bench.measure import measure
    from late.cli.bench.schema import place

    with (
        place(url_of(url, url_option), beside=beside) as ours,
        tempfile.TemporaryDirectory(prefix="late-bench-") as folder,
    ):
        found = measure(ours, Path(folder), tasks=tasks, rate=rate, seconds=seconds)
    if json:
        output.as_json(found)
        return
    latency = f"{found.p50_ms:,.1f} / {found.p95_ms:,.1f} / {found.p99_ms:,.1f}"
    output.table(
        "one worker, no-ops of some 120 bytes",
        ("what", "measured>"),
        [
            ("drain, tasks/s", f"{found.drain_per_s:,.0f}"),
            ("enqueue, 1,000 a transaction, tasks/s", f"{found.enqueue_bulk_per_s:,.0f}"),
            ("enqueue, one a transaction, tasks/s", f"{found.enqueue_single_per_s:,.0f}"),
            (f"commit to start at {rate}/s, p50 / p95 / p99, ms", latency),
            ("the longest, ms", f"{found.max_ms:,.1f}"),
        ],
    )
