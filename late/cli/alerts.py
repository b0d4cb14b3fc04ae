"""`late alerts`: list, render, dashboard."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from late.cli import options, output
from late.cli.app_loader import load_app
from late.cli.reports.lake import missing

if TYPE_CHECKING:
    from late.model.queue_settings import QueueSettings
    from late.observability.alerts import Rule

app = typer.Typer(help="Alert rules and dashboards, made from the queues.", no_args_is_help=True)

OutOption = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="File (Terraform: folder) to write; default: stdout."),
]


@app.command("list")
def list_(json: options.Json = False) -> None:
    """Show every alert that can be rendered."""
    from late.observability.alerts import ALERTS

    keys = [
        {"name": a.name, "severity": a.severity, "for": a.hold, "per_queue": a.per_queue,
         "runbook": a.runbook}
        for a in ALERTS
    ]  # fmt: skip
    output.listed(
        json,
        {"alerts": keys},
        "Alerts",
        ("alert", "severity", "for", "per queue", "runbook"),
        [(a.name, a.severity, a.hold, "yes" if a.per_queue else "", f"{a.runbook}.md")
         for a in ALERTS],
    )  # fmt: skip


@app.command()
def render(
    format: Annotated[
        Literal["prometheus", "terraform"],
        typer.Option("--format", help="The program that reads it."),
    ] = "prometheus",
    out: OutOption = None,
    target: Annotated[
        str | None,
        typer.Option("--app", metavar="MODULE:APP", help="The app whose database to ask."),
    ] = None,
    freshness: Annotated[
        str,
        typer.Option(metavar="TIME", help="Staleness within which a group is 99 % of the time."),
    ] = "60s",
    objective: Annotated[
        str, typer.Option(metavar="TIME", help="Age that the oldest task may reach, by default.")
    ] = "10m",
    owner: Annotated[str, typer.Option(help="The owner of what has none of its own.")] = "",
    runbooks: Annotated[
        str, typer.Option(metavar="URL", help="The place of the runbooks.")
    ] = "docs/runbooks",
    budgets: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Budgets of late close (YAML): a rule for each part."),
    ] = None,
    force: options.Force = False,
    url: options.Url = None,
) -> None:
    """Write alert rules, with owner, severity and objective of each queue that has them.

    They come from the knobs: late queue set payments owner=team-pay severity=page objective_s=30.
    All other queues share rules. Without a database (--url, --app or LATE_URL) there are only
    those. With --budgets, each that has a budget has a rule, and where budgets are by owner it goes
    to that owner.
    """
    from late.observability.alerts import Settings, rules

    settings = Settings(
        freshness_s=options.duration_us(freshness, "--freshness") / 1e6,
        objective_s=options.duration_us(objective, "--objective") / 1e6,
        owner=owner,
        runbooks=runbooks,
    )
    found = rules(_queue_settings(target, url), settings, _budgeted(budgets))
    files = _files(format, found)
    if out is None:
        typer.echo("\n".join(files.values()), nl=False)
        return
    for name, text in files.items():
        path = out / name if format == "terraform" else out
        output.refuse_existing(path, force=force)
        path.parent.mkdir(parents=True, exist_ok=True)
        output.write_whole(path, text)
        output.note(f"{path}: {len(found)} rules" if name != "variables.tf" else f"{path}")


def _files(format: str, found: list[Rule]) -> dict[str, str]:
    from late.observability.alerts import prometheus, terraform

    if format == "terraform":
        return terraform.files(found)
    return {"late.rules.yml": prometheus.render(found)}


def _budgeted(path: Path | None) -> dict[str, str]:
    """Return who has a budget, and the owner of that rule."""
    if path is None:
        return {}
    try:
        from late_spark.close import budgets

        return budgets.owners(path)
    except ModuleNotFoundError as error:
        raise missing(error) from None


def _queue_settings(target: str | None, url: str | None) -> dict[str, QueueSettings]:
    if target is not None:
        url = load_app(target).url
    elif options.named_url(url) is None:
        return {}
    with options.control_of(url) as control:
        return {each.name: each.knobs for each in control.queues.settings("queue")}


@app.command()
def dashboard(out: OutOption = None, force: options.Force = False) -> None:
    """Write the dashboard for Grafana: JSON to be imported."""
    from late.observability.alerts import dashboard as made

    text = made.render()
    if out is None:
        typer.echo(text, nl=False)
        return
    output.refuse_existing(out, force=force)
    output.write_whole(out, text)
    output.note(str(out))
