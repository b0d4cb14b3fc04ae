"""`late report`: what the work cost, what a change did, and what would be enough.

The reports are in `late_spark`, which comes with the extra `late[spark]` and is loaded only here.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from late.cli import output
from late.errors import ConfigError

if TYPE_CHECKING:
    from late_spark.commands import Asked

app = typer.Typer(
    help="Reports for finance and platform teams, on Spark (extra late[spark], Java 17).",
    no_args_is_help=True,
    rich_markup_mode=None,
)

From = Annotated[
    str, typer.Option("--from", metavar="DAY", help="2026-03, 2026-03-01: local, included.",
                      show_default=False),
]  # fmt: skip
To = Annotated[
    str, typer.Option("--to", metavar="DAY", help="Likewise, not included.", show_default=False)
]
Prices = Annotated[
    Path, typer.Option("--prices", metavar="FILE", help="The price book (YAML).",
                       show_default=False),
]  # fmt: skip
Out = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="The report's folder.", show_default=False)
]
Url = Annotated[
    str | None, typer.Option("--url", "-u", metavar="URL", help="The database with the usage; "
                             "else $LATE_URL, unless --usage is given.", show_default=False),
]  # fmt: skip
UsageFiles = Annotated[
    str | None, typer.Option("--usage", metavar="PATH", help="Parquet files of usage instead.",
                             show_default=False),
]  # fmt: skip
Lake = Annotated[
    Path | None, typer.Option("--lake", metavar="DIR", help="Read this lake; with --url also what "
                              "the journal has behind it.", show_default=False),
]  # fmt: skip
Bills = Annotated[
    list[Path] | None, typer.Option("--bill", metavar="FILE", help="A bill in FOCUS 1.x columns "
                                    "(CSV) instead of prices; may be repeated."),
]  # fmt: skip
MetricFiles = Annotated[
    list[Path] | None, typer.Option("--metrics", metavar="FILE", help="Metrics of the database; "
                                    "may be repeated."),
]  # fmt: skip
Leaders = Annotated[
    list[str] | None, typer.Option("--leader-region", metavar="REGION", help="Metrics of other "
                                   "regions are a replica's; may be repeated."),
]  # fmt: skip
OwnersFile = Annotated[
    Path | None, typer.Option("--owners", metavar="FILE", help="Owners by pattern of queue and "
                              "task (YAML), before the queues' labels.", show_default=False),
]  # fmt: skip
Zone = Annotated[
    str | None, typer.Option("--tz", metavar="ZONE", help="Days and months of this time zone; "
                             "else the price book's.", show_default=False),
]  # fmt: skip
Force = Annotated[bool, typer.Option("--force", help="Replace a report that is there.")]
By = Annotated[
    str, typer.Option("--by", metavar="NAMES", help="Some of owner, queue, task, group, tenant, "
                      "line, driver, region; separated by commas."),
]  # fmt: skip


def asked(
    from_: str, to: str, prices: Path, out: Path, url: str | None, usage: str | None,
    bills: list[Path] | None, metrics: list[Path] | None, leaders: list[str] | None,
    owners: Path | None, tz: str | None, force: bool, lake: Path | None,
) -> Asked:  # fmt: skip
    """The options that all reports share; loads what they need.

    Raises:
        ConfigError: the extra is not installed, or both a URL and files are given.
    """
    from late.cli.options import url_of

    try:
        from late_spark.commands import Asked, Source
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"reports need what the extra brings ({error.name} is missing): "
            'pip install "late[spark]"'
        ) from None
    if usage and (url or lake):
        raise ConfigError("give --usage, or --url and --lake, not both")
    if usage:
        source = Source(usage=usage)
    else:
        # A lake is enough by itself; a database in the environment is not added unasked.
        source = Source(url=url if lake and not url else url_of(url), lake=lake)
    return Asked(
        source=source, from_=from_, to=to, prices=prices, out=out, tz=tz, bills=bills or (),
        metrics=metrics or (), leader_regions=leaders or (), owners=owners, force=force, say=say,
    )  # fmt: skip


def say(text: str) -> None:
    """Progress, on standard error."""
    print(f"[report] {text}", file=sys.stderr, flush=True)


@app.command("cost")
def cost(
    from_: From,
    to: To,
    prices: Prices,
    out: Out,
    by: By = "owner",
    url: Url = None,
    usage: UsageFiles = None,
    lake: Lake = None,
    bill: Bills = None,
    metrics: MetricFiles = None,
    leader_region: Leaders = None,
    owners: OwnersFile = None,
    tz: Zone = None,
    force: Force = False,
) -> None:
    """What the work cost, and who caused it: every cent of a bill, or of prices times quantities.

    Writes index.html, cost.xlsx, costs.csv, costs.parquet, unallocated.parquet and focus.csv.
    """
    options = asked(
        from_, to, prices, out, url, usage, bill, metrics, leader_region, owners, tz, force, lake
    )
    from late_spark import commands, money
    from late_spark.tables import header

    found = commands.cost(options, by)
    rows = [
        (*row.by, money.shown(row.cents, found.digits), f"{row.tasks:,}") for row in found.rows[:20]
    ]
    empty = [""] * (len(found.by) - 1)
    left, total = (
        money.shown(cents, found.digits) for cents in (found.unallocated_cents, found.total_cents)
    )
    rows += [("(unallocated)", *empty, left, ""), ("(total)", *empty, total, "")]
    output.table("Cost", (*header(found.by), f"{found.currency}>", "tasks>"), rows)
    typer.echo(f"written: {out}")


@app.command("impact")
def impact(
    from_: From,
    to: To,
    prices: Prices,
    out: Out,
    at: Annotated[
        str | None, typer.Option("--at", metavar="DAY", help="The day of the change; without it, "
                                 "the first day with work of --queue.", show_default=False),
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", help="Only what this queue costs; without --at, its "
                                 "launch, and what it did to everything.", show_default=False),
    ] = None,
    confidence: Annotated[float, typer.Option("--confidence", help="Of the intervals.")] = 0.95,
    budget: Annotated[
        str | None, typer.Option("--budget", metavar="AMOUNT", help="For the month in which the "
                                 "range ends; else the price book's.", show_default=False),
    ] = None,
    url: Url = None,
    usage: UsageFiles = None,
    lake: Lake = None,
    bill: Bills = None,
    metrics: MetricFiles = None,
    owners: OwnersFile = None,
    tz: Zone = None,
    force: Force = False,
) -> None:  # fmt: skip
    """What a change did to cost and speed, which days were unusual, and where the month will end.

    Writes index.html, changes.csv, anomalies.csv and days.csv.
    """
    options = asked(
        from_, to, prices, out, url, usage, bill, metrics, None, owners, tz, force, lake
    )
    from late_spark import command_impact

    found = command_impact.run(options, at, queue=queue, confidence=confidence, budget=budget)
    rows = [
        (c.measure, f"{c.before:,.2f}", f"{c.after:,.2f}",
         f"{command_impact.shown(c.difference.low)} to {command_impact.shown(c.difference.high)}",
         c.verdict())
        for c in found.changes
    ]  # fmt: skip
    output.table(found.title, ("measure", "before>", "after>", "difference>", "so it is"), rows)
    for each in found.anomalies[:5]:
        typer.echo(output.plain(each.said(found.currency)))
    made = found.forecast
    typer.echo(
        f"{made.month}: {made.so_far:,.2f} {found.currency} so far, "
        f"{made.end.estimate:,.2f} expected at its end; {made.verdict()}"
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
    tz: Annotated[str, typer.Option("--tz", help="Days of this time zone.")] = "UTC",
    force: Force = False,
) -> None:  # fmt: skip
    """What would be enough: shards, nodes and knobs against the recorded load, if it grows.

    Writes index.html, queues.csv and verdicts.csv.
    """
    source = asked(
        from_, to, Path(), out, url, usage, None, None, None, None, None, force, lake
    ).source
    from late_spark import capacity as pure
    from late_spark import command_capacity

    wanted = command_capacity.WhatIf(
        source=source, from_=from_, to=to, out=out, growth=growth, knobs=set_ or (),
        shards=shards, shard_rate=shard_rate, nodes=nodes, metrics=metrics or (), tz=tz,
        force=force, say=say,
    )  # fmt: skip
    found = command_capacity.run(wanted)
    columns, rows = command_capacity.table(found, pure.settings(wanted.knobs))
    output.table("Queues", columns, rows[:20])
    output.table(
        "Shards and nodes", ("what", "question", "answer", "enough"),
        [(v.subject, v.question, v.answer, {None: "", True: "yes", False: "no"}[v.enough])
         for v in found.verdicts],
    )  # fmt: skip
    typer.echo(f"written: {out}")
