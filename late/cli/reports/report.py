"""`late report`: what the work cost, what a change did, and what would be enough.

The reports are in `late_spark`, loaded only here: it needs the extra `late-queue[reports]`.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from late.cli import output
from late.cli.options import Force, Json, shared
from late.cli.reports.lake import missing
from late.cli.reports.options import (
    By,
    Engine,
    From,
    Lake,
    Leaders,
    MetricFiles,
    Out,
    OwnersFile,
    Prices,
    To,
    Url,
    UsageFiles,
    Zone,
    asked,
    say,
)
from late.errors import ConfigError

if TYPE_CHECKING:
    import late_spark.commands
    from late_spark.command_capacity import CapacityReport
    from late_spark.command_impact import ImpactReport
    from late_spark.cost import CostReport

app = typer.Typer(
    help="Reports for finance and platform teams (extra late-queue[reports]).",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Asked: TypeAlias = "late_spark.commands.Asked"
_asking = shared(asked, "question")


@app.command("cost")
@_asking
def cost(
    question: Asked,
    by: By = "owner",
    leader_region: Leaders = None,
    json: Json = False,
) -> None:
    """Report what the work cost, and who caused it: each cent of a bill, or prices by quantities.

    Writes index.html, cost.xlsx, costs.csv, costs.parquet, unallocated.parquet and focus.csv.
    """
    from late_spark import commands, values

    regions = tuple(leader_region or ())
    found = commands.cost(dataclasses.replace(question, leader_regions=regions), by)
    if json:
        output.as_json(values.cost(found))
    else:
        _cost(found, question.out)


SHOWN = 20
"""Rows of a table on the terminal; its file has all."""


def _cost(found: CostReport, out: Path) -> None:
    from late_spark import money
    from late_spark.tables import header

    rows = [
        (*row.by, money.shown(row.cents, found.digits), f"{row.tasks:,}" if found.counted else "")
        for row in found.rows[:SHOWN]
    ]
    more = found.rows[SHOWN:]
    empty = [""] * (len(found.by) - 1)
    rest = money.shown(sum(row.cents for row in more), found.digits)
    left, total = (
        money.shown(cents, found.digits) for cents in (found.unallocated_cents, found.total_cents)
    )
    if more:  # So that what is seen adds up.
        rows.append((f"({len(more):,} more in costs.csv)", *empty, rest, ""))
    rows += [("(unallocated)", *empty, left, ""), ("(total)", *empty, total, "")]
    output.table("Cost", (*header(found.by), f"{found.currency}>", "tasks>"), rows)
    for each in found.warnings():
        output.note(f"warning: {output.plain(each)}")
    typer.echo(f"written: {out}")


@app.command("live")
def live(
    lake: Annotated[
        Path, typer.Option("--lake", metavar="DIR", help="The lake to follow.", show_default=False)
    ],
    prices: Prices,
    out: Out,
    day: Annotated[
        str | None, typer.Option("--day", metavar="DAY", help="2026-10-01, local; else today.",
                                 show_default=False),
    ] = None,
    by: By = "owner,queue",
    every: Annotated[
        float | None, typer.Option("--every", metavar="SECONDS", help="Go on, and look at the lake "
                                   "so often; else once.", min=1, show_default=False),
    ] = None,
    owners: OwnersFile = None,
    tz: Zone = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Report what a day has cost so far, from a lake that grows, with Spark's Structured Streaming.

    Writes live.json, and goes on from there when it runs again. Needs Java.
    """
    question = asked("", "", prices, out, lake=[lake], owners=owners, tz=tz)
    try:
        from late_spark import command_live, values
    except ModuleNotFoundError as error:
        raise missing(error) from None
    if day is None and every is not None:
        found = command_live.follow(question, by, every)
    else:
        question = command_live.of_day(question, day or command_live.today(question))
        found = command_live.run(question, by, every_s=every)
    if json:
        output.as_json(values.cost(found))
    else:
        _cost(found, out / command_live.FILE)


@app.command("impact")
@_asking
def impact(
    question: Asked,
    at: Annotated[
        str | None, typer.Option("--at", metavar="DAY", help="The day of the change, or a time: "
                                 "then that day is on neither side.", show_default=False),
    ] = None,
    release: Annotated[
        str | None, typer.Option("--release", metavar="NAME", help="The change is this release of "
                                 "the file --releases.", show_default=False),
    ] = None,
    releases: Annotated[
        Path | None, typer.Option("--releases", metavar="FILE", help="A line NAME: TIME for each "
                                  "release (YAML).", show_default=False),
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", help="Only this queue; without --at and --release, "
                                 "its launch, and what it did to everything.", show_default=False),
    ] = None,
    confidence: Annotated[
        float, typer.Option("--confidence", help="The confidence of the intervals.")
    ] = 0.95,
    budget: Annotated[
        str | None, typer.Option("--budget", metavar="AMOUNT", help="For the month in which the "
                                 "range ends; else the price book's.", show_default=False),
    ] = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Report what a change did to cost and speed, which days were unusual, how the month ends.

    Writes index.html, changes.csv, anomalies.csv and days.csv.
    """
    if (release is None) != (releases is None):
        raise ConfigError("give --release and --releases together")
    from late_spark import command_impact, values

    named = None if releases is None or release is None else (releases, release)
    found = command_impact.run(
        question, at, queue=queue, release=named, confidence=confidence, budget=budget
    )
    if json:
        output.as_json(values.impact(found))
    else:
        _impact(found, question.out)


def _impact(found: ImpactReport, out: Path) -> None:
    from late_spark import command_impact

    rows = [
        (c.measure, found.currency if c.unit == "money" else c.unit, *command_impact.sides(c),
         f"{command_impact.shown(c.difference.low)} to {command_impact.shown(c.difference.high)}",
         c.verdict())
        for c in found.changes
    ]  # fmt: skip
    output.table(
        found.title, ("measure", "unit", "before>", "after>", "difference>", "verdict"), rows
    )
    for each in found.anomalies[:5]:
        typer.echo(output.plain(each.said(found.currency)))
    made = found.forecast
    typer.echo(
        f"{made.month}: {made.so_far:,.2f} {found.currency} so far, "
        f"{made.end.estimate:,.2f} expected at its end; "
        f"{made.verdict()}.{command_impact.unseen(found)}"
    )
    typer.echo(f"written: {out}")


@app.command("capacity")
def capacity(
    from_: From,
    to: To,
    out: Out,
    growth: Annotated[float, typer.Option("--growth", help="The recorded load, times this.")] = 1.0,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="QUEUE.KNOB=NUMBER", help="Try "
                                       "concurrency or rate of a queue; may be repeated."),
    ] = None,
    shards: Annotated[int | None, typer.Option("--shards", help="Try so many shards.")] = None,
    shard_rate: Annotated[
        float, typer.Option("--shard-rate", help="Tasks per second that a shard may have.")
    ] = 1_000.0,
    nodes: Annotated[
        int | None, typer.Option("--nodes", help="Try so many nodes (needs --metrics).")
    ] = None,
    metrics: MetricFiles = None,
    url: Url = None,
    usage: UsageFiles = None,
    lake: Lake = None,
    engine: Engine = "auto",
    tz: Annotated[str, typer.Option("--tz", help="Days of this time zone.")] = "UTC",
    force: Force = False,
    json: Json = False,
) -> None:  # fmt: skip
    """Report what would be enough: shards, nodes and knobs against the recorded load, if it grows.

    Writes index.html, queues.csv and verdicts.csv.
    """
    question = asked(from_, to, Path(), out, url=url, usage=usage, lake=lake, engine=engine)
    from late_spark import command_capacity, values

    wanted = command_capacity.WhatIf(
        source=question.source, from_=from_, to=to, out=out, growth=growth, knobs=set_ or (),
        shards=shards, shard_rate=shard_rate, nodes=nodes, metrics=metrics or (), tz=tz,
        force=force, say=say,
    )  # fmt: skip
    found = command_capacity.run(wanted)
    if json:
        output.as_json(values.capacity(found))
    else:
        _capacity(found, out)


def _capacity(found: CapacityReport, out: Path) -> None:
    from late_spark import command_capacity

    columns, rows = command_capacity.table(found)
    output.table("Queues", columns, rows[:SHOWN])
    if len(rows) > SHOWN:
        output.note(f"{len(rows) - SHOWN:,} more queues are in the report")
    output.table(
        "Shards and nodes", ("what", "question", "answer", "enough"),
        [(v.subject, v.question, v.answer, {None: "", True: "yes", False: "no"}[v.enough])
         for v in found.verdicts],
    )  # fmt: skip
    typer.echo(f"written: {out}")
