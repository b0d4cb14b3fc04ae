"""`late celery`: what of a project works here, its `beat_schedule`, and its move by shares."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from late.cli import options, output
from late.cli.app_loader import load
from late.cli.ramp import ramp
from late.errors import ConfigError

if TYPE_CHECKING:
    from late.celery.beat import Entry
    from late.celery.scan.report import Scan
    from late.celery.scan.tasks import Use

app = typer.Typer(help="Move from Celery.", no_args_is_help=True)
app.command("ramp")(ramp)


@app.command("scan")
def scan(
    target: Annotated[
        str, typer.Argument(metavar="PATH|MODULE:APP", help="A folder, a file, or Celery's app.")
    ] = ".",
    every: Annotated[bool, typer.Option("--all", help="Show each task with its uses.")] = False,
    fail_on: Annotated[
        Literal["edit", "unsupported"] | None,
        typer.Option(help="Exit with 1 if a task has this verdict or a worse one."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Tell of each Celery task whether it works with `late.celery`, and what stands in its way.

    The verdicts are for `late.celery` alone. With the router a task or a call with an option that
    it lacks stays on Celery; what a function uses in its body fails on the side of late.
    `same`: it works as it is. `edit`: a line has to change. `unsupported`: it stays on Celery, or
    is written anew. Source is read and not imported; with MODULE:APP the app is imported too, the
    folder that holds its package is read, and tasks that the app has and the source does not show
    are listed. They count as `edit`, and if no task is found at all the exit code is 1.
    """
    from late.celery.scan import report
    from late.celery.scan.registered import scan_app
    from late.celery.scan.verdict import ORDER

    path = Path(target)
    if path.exists():
        found = report.scan(path)
    elif "/" in target or target.endswith(".py"):
        raise ConfigError(f"there is no {target}")
    else:
        found = scan_app(load(target), target.partition(":")[0])
    if json:
        output.as_json(_document(found))
    else:
        _show(found, every=every)
    failed = fail_on is not None and ORDER.index(found.worst) >= ORDER.index(fail_on)
    if failed or (found.unseen and not found.tasks):
        raise typer.Exit(1)


@app.command("beat")
def beat(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:APP", help="The app that has the beat_schedule.")
    ],
    into: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:APP",
            help="The late.celery.Celery or Router that has the tasks; MODULE:APP if it is one.",
            show_default=False,
        ),
    ] = None,
    write: Annotated[
        bool,
        typer.Option("--apply/--dry-run", help="Write the schedules, or only say what they are."),
    ] = False,
    json: options.Json = False,
) -> None:
    """Show the entries of a `beat_schedule` as schedules of late, and with --apply write them.

    Stop Celery's beat before --apply: from then on workers fire the entries. A beat that calls
    `late.celery.beat.leave_to_late` leaves them out when it starts again. The exit code is 1 if an
    entry stays on Celery.
    """
    from late.celery import Celery
    from late.celery import beat as beats

    source, app = beats.sides(load(target), load(into) if into else None)
    entries = beats.read(source)
    if isinstance(app, Celery):
        entries = beats.declare(entries, app)
    elif into or write:
        raise ConfigError(f"{into or target} is no late.celery.Celery and no Router: name one"
                          " with --into")  # fmt: skip
    written = beats.apply(entries, app) if write and isinstance(app, Celery) else []
    output.listed(
        json,
        {"entries": [_entry(entry) for entry in entries], "written": written},
        "Entries of beat_schedule",
        ("entry", "task", "cadence", "rule", "zone", "first tick", "verdict"),
        [
            (e.key, e.task, e.cadence, e.rule, e.zone, output.moment(e.next_due_us()),
             e.reason or "late")
            for e in entries
        ],
    )  # fmt: skip
    if not json:
        typer.echo(f"{len(written)} schedules written" if write else "nothing is written: stop "
                   "Celery's beat, then give --apply (docs/celery-beat.md)")  # fmt: skip
    if any(entry.reason for entry in entries):
        raise typer.Exit(1)


def _entry(entry: Entry) -> dict[str, object]:
    return {
        "entry": entry.key,
        "schedule": entry.name,
        "task": entry.task,
        "cadence": entry.cadence,
        "rule": entry.rule,
        "zone": entry.zone,
        "next_due_at_us": entry.next_due_us(),
        "verdict": "late" if entry.reason is None else "celery",
        "reason": entry.reason,
    }


def _document(found: Scan) -> dict[str, object]:
    verdicts = found.verdicts()
    return {
        "tasks": [
            {
                "name": task.name,
                "path": task.path,
                "line": task.line,
                "verdict": verdicts[task.name],
                "uses": [_use(use) for use in found.uses_of(task)],
            }
            for task in found.tasks
        ],
        "calls": [
            {"call": c.name, "tasks": c.tasks, "path": c.path, "line": c.line,
             "uses": [_use(use) for use in c.uses]}
            for c in found.calls
        ],
        "others": [_use(use) for use in found.others],
        "counts": found.counts(),
        "missing": found.missing(),
        "silent": [_use(use) for use in found.silent()],
        "at_most_once": found.at_most_once,
        "unreadable": found.unreadable,
        "unseen": found.unseen,
    }  # fmt: skip


def _use(use: Use) -> dict[str, object]:
    return {
        "feature": use.feature,
        "verdict": use.verdict,
        "path": use.path,
        "line": use.line,
        "note": use.note,
    }


def _show(found: Scan, *, every: bool) -> None:
    counts = found.counts()
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in counts)
    typer.echo(f"{len(found.tasks)} tasks: {told}; {len(found.calls)} calls")
    typer.echo("verdicts for late.celery alone: with the router, a task or call with an option that"
               " it lacks stays on Celery")  # fmt: skip
    typer.echo("what a function uses in its body (self, retry) fails on late: edit it before the"
               " first percent")  # fmt: skip
    if every:
        verdicts = found.verdicts()
        output.table(
            "Tasks",
            ("task", "where", "verdict", "because of"),
            [
                (
                    task.name,
                    f"{task.path}:{task.line}",
                    verdicts[task.name],
                    ", ".join(
                        sorted({u.feature for u in found.uses_of(task) if u.verdict != "same"})
                    ),
                )
                for task in found.tasks
            ],
        )
    output.table(
        "What is not the same, by the tasks that it blocks",
        ("verdict", "feature", "tasks>", "uses>", "for one", "what to do"),
        [(m.verdict, m.feature, m.tasks, m.uses, m.first, m.note) for m in found.missing()],
    )
    _tell_silent(found)


def _tell_silent(found: Scan) -> None:
    """Name what raises no error and is different, and what the scan has not seen."""
    if found.at_most_once:
        typer.echo(
            f"{found.at_most_once} tasks without acks_late run at most once on Celery. Here every "
            "task runs at least once: they must bear a repeat."
        )
    for use in found.silent():
        typer.echo(f"{use.path}:{use.line}: {use.feature}: {use.note}")
    for file in found.unreadable:
        typer.echo(f"{file.path}:{file.line}: not read: {file.reason}")
    if found.unseen:
        typer.echo("registered, and not found in the source: " + ", ".join(found.unseen))
