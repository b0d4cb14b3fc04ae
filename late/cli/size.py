"""`late size`: what a load will cost, before there is a database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from late.cli import output
from late.cli.options import Json, duration_us
from late.errors import ConfigError

if TYPE_CHECKING:
    from late.model.size.estimate import Estimate

STORES = ("postgresql", "spanner", "sqlite")
_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")


def size(
    rate: Annotated[
        float, typer.Option(help="Tasks a second, the mean of a day.", show_default=False)
    ],
    payload: Annotated[int, typer.Option(help="Bytes of the arguments of one task.")] = 120,
    delayed: Annotated[
        float, typer.Option(help="Share of the tasks that wait for more than 10 s, 0 to 1.")
    ] = 0.0,
    retries: Annotated[float, typer.Option(help="Further attempts per task, on average.")] = 0.0,
    groups: Annotated[int, typer.Option(help="Consumer groups that read the log.")] = 1,
    retention: Annotated[
        str, typer.Option(metavar="TIME", help="How long the log keeps what is settled.")
    ] = "0s",
    journal: Annotated[
        str, typer.Option(metavar="TIME", help="How long settlements are kept.")
    ] = "7d",
    workers: Annotated[int, typer.Option(help="Worker processes.")] = 1,
    shards: Annotated[int, typer.Option(help="Shards of the lane.")] = 8,
    store: Annotated[
        str, typer.Option(metavar="STORE", help="postgresql, spanner or sqlite.")
    ] = "postgresql",
    json: Json = False,
) -> None:
    """Estimate bytes, WAL, connections, processors and Spanner's operations of a load.

    It connects to nothing. The constants were measured by `make bench-steady`.
    """
    from late.model.size.estimate import Load, estimate
    from late.model.size.figures import FIGURES

    if store not in STORES:
        raise ConfigError(f"--store {store[:64]!r}: one of {', '.join(STORES)}")
    load = Load(
        rate=rate,
        payload=payload,
        delayed=delayed,
        retries=retries,
        groups=groups,
        retention_s=duration_us(retention, "--retention") / 1e6,
        journal_s=duration_us(journal, "--journal") / 1e6,
        workers=workers,
        shards=shards,
    )
    figures = FIGURES[store]
    found = estimate(load, figures)
    if json:
        given = {"store": store, "load": load, "measured": figures.measured}
        output.as_json(given | {"estimate": found})
        return
    output.table(
        f"{rate:g} tasks a second of {payload:,} bytes on {store}; measured {figures.measured}",
        ("what", "a day>", "kept or held>"),
        (row for row in rows(found) if row[1] is not None or row[2] is not None),
    )
    output.note(
        f"Processors that take {figures.loop_ms:.1f} ms for the fixed loop; see docs/sizing.md."
    )


def rows(found: Estimate) -> Iterator[tuple[str, str | None, str | None]]:
    """Yield the table: quantity, its amount a day, and what of it stays."""
    yield "task log", amount(found.log_bytes_per_day), amount(found.log_bytes_kept)
    yield (
        "settlement journal",
        amount(found.journal_bytes_per_day),
        amount(found.journal_bytes_kept),
    )
    yield "rows of the journal", number(found.journal_rows_per_day), None
    yield "WAL of the producers", amount(found.wal_producers_bytes_per_day), None
    yield "WAL of the workers", amount(found.wal_workers_bytes_per_day), None
    yield "connections of the workers", None, number(found.connections)
    yield "processors of the workers", None, cores(found.workers_cpu_cores)
    yield "processors of the database", None, cores(found.server_cpu_cores)
    yield "Spanner: reads and queries", number(found.spanner_reads_per_day), None
    yield "Spanner: commits", number(found.spanner_commits_per_day), None
    yield "Spanner: mutations", number(found.spanner_mutations_per_day), None


def amount(value: float | None) -> str | None:
    """Format bytes with three digits, in powers of 1,000 as providers bill them."""
    if value is None:
        return None
    step = 0
    while value >= 999.5 and step < len(_UNITS) - 1:
        value, step = value / 1_000, step + 1
    return f"{value:.3g} {_UNITS[step]}"


def number(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}"


def cores(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f} cores"
