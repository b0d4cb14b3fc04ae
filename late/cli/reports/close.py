"""`late close 2026-10`: the month for finance, in one folder with one page."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from late.cli import options, output
from late.cli.reports.options import (
    AcceptGaps,
    Bills,
    By,
    Engine,
    Lake,
    Leaders,
    MetricFiles,
    Out,
    OwnersFile,
    Prices,
    Url,
    UsageFiles,
    Zone,
    asked,
)

if TYPE_CHECKING:
    from late_spark.close.command import Done


def close(
    month: Annotated[
        str, typer.Argument(metavar="MONTH", help="2026-10, local.", show_default=False)
    ],
    prices: Prices,
    out: Out,
    by: By = "owner",
    budgets: Annotated[
        Path | None, typer.Option("--budgets", metavar="FILE", help="Budgets of months (YAML); "
                                  "else the price book's.", show_default=False),
    ] = None,
    releases: Annotated[
        Path | None, typer.Option("--releases", metavar="FILE", help="Names and times of releases "
                                  "(YAML): what each did.", show_default=False),
    ] = None,
    business: Annotated[
        list[Path] | None, typer.Option("--business", metavar="FILE", help="What the business "
                                        "counted by day (CSV), for the cost of each order; may be "
                                        "repeated."),
    ] = None,
    counted: Annotated[
        list[str] | None, typer.Option("--counted", metavar="NAME", help="What handlers count with "
                                       "ctx.count, for the cost of each; may be repeated."),
    ] = None,
    url: Url = None,
    usage: UsageFiles = None,
    lake: Lake = None,
    bill: Bills = None,
    metrics: MetricFiles = None,
    leader_region: Leaders = None,
    owners: OwnersFile = None,
    tz: Zone = None,
    engine: Engine = "auto",
    accept_gaps: AcceptGaps = False,
    force: options.Force = False,
    json: options.Json = False,
) -> None:  # fmt: skip
    """Close a month: its cost beside the last month and the budget, with what must be known first.

    Writes one folder: a page to sign, one for each owner, a workbook, tables and signoff.json, a
    hash over all inputs and outputs. Run again, it finds the same or says what changed. A month
    that still runs is forecast to its end.
    """
    question = asked(
        month, month, prices, out, url=url, usage=usage, lake=lake, bill=bill, metrics=metrics,
        owners=owners, tz=tz, engine=engine, accept_gaps=accept_gaps, force=force,
    )  # fmt: skip
    from late_spark import values
    from late_spark.close import command

    question = dataclasses.replace(question, leader_regions=tuple(leader_region or ()))
    done = command.run(
        question, month, by, budgets, releases=releases, business=business or (),
        counted=counted or (),
    )  # fmt: skip
    if json:
        output.as_json(values.close(done))
    else:
        _said(done, out)


def _said(done: Done, out: Path) -> None:
    from late_spark import money
    from late_spark.tables import header

    of = done.close

    def shown(cents: int | None) -> str:
        return "" if cents is None else money.shown(cents, of.this.digits)

    rows = [
        (*row.name, shown(row.this), shown(row.last), shown(row.change), shown(row.budget))
        for row in (*of.rows()[:20], of.total())
    ]
    columns = (*header(of.this.by), f"{of.month}>", f"{of.before}>", "change>", "budget>")
    output.table(of.this.title, columns, rows)
    end = of.outlook.end
    if end is not None:
        typer.echo(
            f"{end.days_seen} days are known; expected at the month's end: "
            f"{shown(of.cents(end.end.estimate))} {of.this.currency}; {end.verdict()}"
        )
    for unusual in of.outlook.unusual[:5]:
        typer.echo(output.plain(unusual.said(of.this.currency)))
    for each in of.warnings():
        output.note(f"warning: {output.plain(each)}")
    for each in done.changes:
        output.note(f"changed: {output.plain(each)}")
    typer.echo(f"sign-off: {done.signed.hash}")
    typer.echo(f"unchanged: {out}" if done.unchanged else f"written: {out}")
