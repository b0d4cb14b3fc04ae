"""`late celery`: what of a project works here, its `beat_schedule`, and its move by shares."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from late.cli import options, output
from late.cli.app_loader import load
from late.cli.knobs import say
from late.errors import ConfigError
from late.model.task import DEFAULT_GROUP

if TYPE_CHECKING:
    from late.celery.beat import Entry
    from late.celery.scan.report import Scan
    from late.celery.scan.tasks import Use
    from late.control.status.celery_shares import Side

app = typer.Typer(help="Move from Celery.", no_args_is_help=True)


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

    `same`: it works as it is. `edit`: a line has to change. `unsupported`: it stays on Celery, or
    is written anew. Source is read and not imported; with MODULE:APP the app is imported too, and
    tasks that it has and the source does not show are listed.
    """
    from late.celery.scan import report
    from late.celery.scan.features import ORDER
    from late.celery.scan.registered import scan_app

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
    if fail_on is not None and ORDER.index(found.worst) >= ORDER.index(fail_on):
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
            help="The late.celery.Celery that has the tasks; MODULE:APP itself if it is one.",
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

    source = load(target)
    app = load(into) if into else source
    entries = beats.read(source)
    if isinstance(app, Celery):
        entries = beats.declare(entries, app)
    elif into or write:
        raise ConfigError(f"{into or target} is no late.celery.Celery: name one with --into")
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


Share = Annotated[
    str | None,
    typer.Argument(metavar="PERCENT|on|off", show_default=False,
                   help="The share of the calls that late takes; off: none until it is on again."),
]  # fmt: skip


@app.command("ramp")
def ramp(
    task: Annotated[
        str | None, typer.Argument(metavar="TASK", help="A task's name.", show_default=False)
    ] = None,
    share: Share = None,
    since: Annotated[
        str, typer.Option("--since", metavar="TIME", help="Count from here: an age or a time.")
    ] = "1h",
    group: options.Group = None,
    dry_run: options.DryRun = False,
    url_option: options.Url = None,
    json: options.Json = False,
) -> None:
    """Show how tasks move from Celery to late, or set the share of a task: `ramp shop.send 50`.

    Producers follow within 5 s. The counts are those of late's journal: calls and their ends here,
    and calls that Celery's broker was given. What Celery's workers do with them Celery knows.
    """
    from late.control.status import celery_shares

    with options.control_of(url_option) as control:
        if task is not None and share is not None:
            turned = control.queues.change(
                "queue", celery_shares.PREFIX + task, _asked(share), dry_run=dry_run
            )
        else:
            since_us = options.moment_us(since, "since", control.now())
            found = celery_shares.read(control, since_us=since_us, group=group or DEFAULT_GROUP)
    if task is not None and share is not None:
        say(turned, json, dry_run=dry_run)
        return
    shown = [each for each in found if task in (None, each.task)]
    columns = ("task", "late", "calls>", "errors>", "dead>", "late p50>", "p99>", "Celery: calls>",
               "errors>", "dead>", "late p50>", "p99>", "not supported")  # fmt: skip
    rows = [
        (
            each.task,
            f"{100 * each.share:g}%" + ("" if each.on else " off"),
            *_side(each.late),
            *_side(each.celery),
            ", ".join(f"{reason} {n}" for reason, n in sorted(each.unsupported.items())),
        )
        for each in shown
    ]
    output.listed(json, {"tasks": shown}, "Tasks on their way from Celery", columns, rows)


def _asked(share: str) -> dict[str, object]:
    """Return the knobs for a percentage, `on` or `off`."""
    if share in ("on", "off"):
        return {"closed": True if share == "off" else None}
    try:
        return {"late_share": float(share.removesuffix("%")) / 100}
    except ValueError:
        raise ConfigError(f"the share is 0..100, on or off, got {share[:32]!r}") from None


def _side(side: Side) -> tuple[object, ...]:
    waits = [None if s is None else f"{s:.3f} s" for s in (side.late_p50_s, side.late_p99_s)]
    return (side.calls, side.errors, side.dead, *waits)
