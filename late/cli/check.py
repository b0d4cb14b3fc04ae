"""`late check`: could an app run what waits in a database?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from late.cli import options, output
from late.cli.app_loader import emptiness, load_app
from late.cli.worker import AppArgument

if TYPE_CHECKING:
    from late.control.workers import Fleet


def check(
    target: AppArgument,
    url: options.UrlArgument = None,
    url_option: options.Url = None,
    limit: Annotated[
        int, typer.Option(help="Rows looked at per group, shard and place.", min=1)
    ] = 10_000,
    json: options.Json = False,
) -> None:
    """Compare an app with the tasks that wait in a database, before it is deployed.

    Names tasks without a handler, arguments that would not fit, and lanes of the app that the
    database does not have. Exit code 1 if there are any. Stages of workflows that wait count too.
    The app's own database is asked if no URL is given.

    For information, it compares the app with the live workers of its group: tasks that they handle
    and it does not, and those with another signature. It also names a schedule that would run its
    task twice, beside one that was stored under another name.
    """
    from late.app.handlers import handlers_of

    app = load_app(target)
    if warning := emptiness(app, target):
        output.note(warning)
    with options.control_of(url, url_option or (None if url else app.url)) as control:
        found = control.misfits(app.tasks, app.routes, limit=limit)
        fleet = control.compare_handlers(handlers_of(app), group=app.group)
        lanes = {each.name for each in control.lanes.all()}
        doubles = control.schedules.doubles(app.schedules)
    missing = sorted({task.lane for task in app.tasks.values() if task.lane} - lanes)
    for lane in missing:
        output.note(f"tasks of this app name the lane {lane!r}, which this database does not have")
    for name, other in doubles:
        output.note(
            f"the schedule {name!r} runs its task at the times of the schedule {other!r}, which the"
            f" database has and this app has not: give it name={other!r}, or remove that one"
        )
    if json:
        output.as_json(msgspec.structs.replace(found, fleet=fleet))
    else:
        output.table(
            "Tasks that this app cannot run",
            ("name", "tasks>", "why", "such as"),
            [(each.name, f"{each.tasks:,}", each.why, each.example) for each in found.misfits],
        )
        typer.echo(f"{found.looked:,} looked at" + (", there are more" if found.capped else ""))
        _compared(fleet)
    if found.misfits or missing:
        raise typer.Exit(1)


def _compared(fleet: Fleet) -> None:
    for title, names in (
        ("Not in this app", fleet.missing),
        ("Another signature", fleet.differ),
    ):
        if names:
            output.table(title, ("name", "live workers>"), [(n.name, n.workers) for n in names])
    told = f" ({fleet.undeclared} without declared handlers)" if fleet.undeclared else ""
    typer.echo(f"compared with {fleet.workers} live workers{told}")
