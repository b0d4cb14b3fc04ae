"""Commands about the autoscaler: simulate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from late.cli import output
from late.cli.options import JsonOption
from late.errors import ConfigError

app = typer.Typer(help="Let the database's size follow its load.", no_args_is_help=True)

PolicyOption = Annotated[
    Path | None,
    typer.Option("--policy", "-p", metavar="FILE", help="TOML; see docs/autoscaler.md."),
]


@app.command()
def simulate(
    trace: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="daily, friday, burst, rough, or CSV with a column `load`: nodes at 100 % CPU, "
            "one line a minute.",
        ),
    ],
    policy: PolicyOption = None,
    chart: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with the charts.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file.")] = False,
    seed: Annotated[int, typer.Option(help="Of noise, gaps and failures.")] = 7,
    json: JsonOption = False,
) -> None:
    """Show what a policy would have done on a load, beside the rules of other autoscalers.

    Needs no database. The clairvoyant that costs are compared with has the least size for the
    target at every minute.
    """
    from late.autoscaler import chart as charts
    from late.autoscaler import policy as policies
    from late.autoscaler import simulator, traces

    if chart is not None and chart.exists() and not force:
        raise ConfigError(f"{chart} is there already: give --force to write over it")
    chosen = simulator.SHIPPED_POLICY if policy is None else policies.read(policy)
    make = traces.SHIPPED.get(trace)
    if make is None and not Path(trace).exists():
        known = ", ".join(traces.SHIPPED)
        raise ConfigError(f"no trace {trace[:128]!r}: neither a file nor one of {known}")
    load = traces.read(Path(trace)) if make is None else make()
    runs = simulator.compare(load, chosen, seed=seed)
    if chart is not None:
        output.write_whole(chart, charts.page(load, chosen, runs))
    if json:
        figures = {run.name: run.figures for run in runs}
        output.as_json({"trace": load.name, "minutes": len(load.load), "runs": figures})
        return
    columns = [charts.COLUMNS[0], *(f"{name}>" for name in charts.COLUMNS[1:])]
    output.table(f"Trace {load.name}", columns, [charts.cells(run) for run in runs])
    if chart is not None:
        output.note(f"chart: {chart}")
