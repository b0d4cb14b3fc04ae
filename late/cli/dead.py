"""`late dead`: the tasks that will not run again by themselves."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
import typer

from late.cli import known, options, output, task_ids
from late.cli.show import errors
from late.errors import ConfigError

if TYPE_CHECKING:
    from late.control import Control, Filter
    from late.control.views import Moved
    from late.model.task import TaskId

Select: TypeAlias = "Callable[[Control], Filter]"

app = typer.Typer(
    help="Dead letters: list, show, purge, redrive, edit.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Queue = Annotated[str | None, typer.Option("--queue", help="Only this queue.")]
Name = Annotated[str | None, typer.Option("--name", help="Only this task name.")]
Reason = Annotated[str | None, typer.Option("--reason", help="Only this reason.")]
Id = Annotated[str | None, typer.Option("--id", metavar="TASK_ID", help="This task.")]
Since = Annotated[
    str | None,
    typer.Option(help="Died at or after: 2026-05-01T12:00Z, or an age such as 2h.", metavar="WHEN"),
]
Until = Annotated[str | None, typer.Option(help="Died before.", metavar="WHEN")]
Error = Annotated[
    str | None, typer.Option("--error", metavar="TEXT", help="An attempt's error holds this text.")
]
Workflow = Annotated[
    str | None,
    typer.Option("--workflow", metavar="TASK_ID", help="Tasks of the workflow of this task."),
]
Limit = Annotated[int | None, typer.Option(help="At most so many.", min=1)]
Exact = Annotated[
    bool, typer.Option("--exact", help="Count all that match, where a dry run stops at 10,000.")
]
Everything = Annotated[bool, typer.Option("--all", help="All of them: no filter.")]


def _selection(
    queue: Queue = None,
    name: Name = None,
    reason: Reason = None,
    group: options.Group = None,
    task_id: Id = None,
    since: Since = None,
    until: Until = None,
    error: Error = None,
    workflow: Workflow = None,
) -> Any:
    """Return a function that makes the filter of these options.

    The function raises `ConfigError` (no such consumer group, or a value that can match nothing)
    and `InvalidName` (not a task id).
    """

    def select(control: Control) -> Filter:
        from late.control import Filter

        now = control.now() if since or until else 0
        made = Filter(
            queue=queue,
            name=name,
            reason=reason,
            group=group,
            task_id=task_id,
            error=error,
            workflow=workflow,
            since_us=options.moment_us(since, "--since", now) if since else None,
            until_us=options.moment_us(until, "--until", now) if until else None,
        )
        made.check()
        if group is not None:  # a name misspelt must not read as "none"
            control.groups.require([group])
        return made

    return select


_filtered = options.shared(_selection, "select")


@app.command("list")
@_filtered
def list_(
    select: Select,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1, max=10_000)] = 50,
    url_option: options.Url = None,
    payload: options.Payload = False,
    json: options.Json = False,
) -> None:
    """List dead letters, the latest first."""
    with options.control_of(url_option) as control:
        which = select(control)
        found = control.dead_letters.find(which, limit=limit, payload=payload)
    output.listed(
        json,
        {"dead": found},
        "Dead letters",
        ("died", "task", "name", "queue", "group", "reason", "attempts>", "last error"),
        [
            (
                output.moment(letter.dead_at_us),
                letter.task_id,
                letter.name,
                letter.queue,
                letter.group,
                letter.reason,
                letter.attempts,
                _last(letter.errors[-1].error) if letter.errors else None,
            )
            for letter in found
        ],
    )
    if len(found) == limit and not json:
        output.note(f"the latest {limit}; --limit shows more")


def _last(error: str) -> str:
    return (error.strip().splitlines() or [""])[-1][:80]


@app.command("show")
def show(
    task_id: options.TaskId,
    group: options.Group = None,
    url_option: options.Url = None,
    payload: options.Payload = False,
    json: options.Json = False,
) -> None:
    """Show one dead letter with every attempt's error. Exit code 1 if there is none."""
    with options.control_of(url_option) as control:
        which = _selection(group=group, task_id=task_id)(control)
        found = control.dead_letters.find(which, payload=payload)
    if json:
        output.as_json({"dead": found})
    for letter in [] if json else found:
        output.fields(
            [
                ("task", letter.task_id),
                ("name", letter.name),
                ("queue", letter.queue),
                ("group", letter.group),
                ("shard", letter.shard_id),
                ("died", output.moment(letter.dead_at_us)),
                ("reason", letter.reason),
                ("attempts", letter.attempts),
                ("deaths", letter.deaths or None),
                ("enqueued", output.moment(letter.enqueued_at_us)),
                ("options", letter.options),
                ("headers", letter.headers),
                ("payload", letter.payload or f"{letter.payload_bytes:,} bytes"),
            ]
        )
        errors(letter.errors)
        typer.echo("")
    if not found:
        output.note(f"no dead letter {task_id}")
        raise typer.Exit(1)


@app.command("purge")
@_filtered
def purge(
    select: Select,
    ids_file: task_ids.File = None,
    limit: Limit = None,
    everything: Everything = False,
    dry_run: options.DryRun = False,
    exact: Exact = False,
    yes: options.Yes = False,
    url_option: options.Url = None,
    json: options.Json = False,
) -> None:
    """Delete dead letters for good, the oldest first. Needs a filter or --all."""
    with options.control_of(url_option) as control:
        which, only = _meant(select(control), ids_file, everything)
        call = partial(control.dead_letters.purge, which, only=only, limit=limit, exact=exact)
        if not dry_run and not yes:
            counted = _counted(_found(control, which, call(dry_run=True)))
            options.asked(f"Delete {counted} for good?", f"this deletes {counted} for good")
        moved = _found(control, which, call(dry_run=dry_run))
    report(moved, "deleted", "would delete", json)


@app.command("redrive")
@_filtered
def redrive(
    select: Select,
    ids_file: task_ids.File = None,
    limit: Limit = None,
    everything: Everything = False,
    dry_run: options.DryRun = False,
    exact: Exact = False,
    rate: Annotated[
        float | None, typer.Option(help="Tasks that fall due per second, from now on.", metavar="N")
    ] = None,
    url_option: options.Url = None,
    json: options.Json = False,
) -> None:
    """Send dead letters back to run again, the oldest first. Needs a filter or --all.

    They keep their ids, their attempts count from zero, and they start within seconds if a worker
    owns their shard; with --rate, spread over time, for which nobody has to stay.
    """
    with options.control_of(url_option) as control:
        which, only = _meant(select(control), ids_file, everything)
        if exact and not dry_run:
            raise ConfigError("--exact is for --dry-run: what is redriven is counted anyway")
        moved = control.dead_letters.redrive(
            which, only=only, limit=limit, dry_run=dry_run, rate=rate, exact=exact
        )
        if not moved.count:
            known.require(control, queue=which.queue, name=which.name, group=which.group)
        killers = _killers(control, which, only, moved) if dry_run or which.reason else 0
    report(moved, "redriven", "would redrive", json)
    if killers and not json:
        output.note(
            f"under {killers:,} of them workers died (killed_worker): mend their code first, or"
            " they may kill others"
        )


@app.command("edit")
def edit(
    task_id: options.TaskId,
    payload: Annotated[
        str,
        typer.Option("--payload", metavar="JSON", help="Its new arguments by name; - reads stdin.",
                     show_default=False),
    ],
    group: options.Group = None,
    url_option: options.Url = None,
    json: options.Json = False,
) -> None:  # fmt: skip
    """Run one dead letter again with other arguments, which are checked when it runs. The worker
    that owns its shard does it, so no redrive is needed: one before that runs it unedited."""
    text = sys.stdin.read() if payload == "-" else payload
    with options.control_of(url_option) as control:
        commands = control.tasks.edit(task_id, text.encode(), group=group)
    said = f"asked to run {task_id} again with {len(text.encode()):,} bytes of arguments"
    output.line(json, {"commands": commands}, said)
    if not json:
        output.note("its worker starts it by itself; a redrive before that would do so unedited")


def _meant(
    which: Filter, ids_file: str | None, everything: bool
) -> tuple[Filter, list[TaskId] | None]:
    """Return the filter, and the ids of the file if one is given.

    Raises:
        ConfigError: neither, and not --all; or --all with one; or a line of the file is no id.
    """
    filtered = any(value is not None for value in msgspec.structs.astuple(which))
    if (filtered or ids_file is not None) and everything:
        raise ConfigError("give a filter or --all, not both")
    if not (filtered or ids_file is not None or everything):
        raise ConfigError("which dead letters? give a filter (see --help), --ids, or --all")
    return which, task_ids.read(ids_file) if ids_file is not None else None


def _killers(control: Control, which: Filter, only: list[TaskId] | None, moved: Moved) -> int:
    """Count those under which workers died, as far as it costs no look of its own to send them
    back: of a dry run, and where the filter names them."""
    from late.model.task import KILLED_WORKER

    if which.reason == KILLED_WORKER or not moved.count:
        return moved.count
    if which.reason is not None:
        return 0
    which = msgspec.structs.replace(which, reason=KILLED_WORKER)
    return control.dead_letters.redrive(which, only=only, dry_run=True).count


def _found(control: Control, which: Filter, moved: Moved) -> Moved:
    """Return what was found. Where that is nothing, refuse a name that nothing tells of."""
    if not moved.count:
        known.require(control, queue=which.queue, name=which.name, group=which.group)
    return moved


def _counted(moved: Moved) -> str:
    letters = "dead letter" if moved.count == 1 else "dead letters"
    return f"{'at least ' if moved.capped else ''}{moved.count:,} {letters}"


def report(moved: Moved, done: str, would: str, json: bool) -> None:
    """Print what was moved, or would be."""
    if json:
        output.as_json(moved)
        return
    typer.echo(f"{would if moved.dry_run else done} {_counted(moved)}")
    if moved.dry_run:
        for task_id in moved.task_ids:
            typer.echo(f"  {task_id}")
        if moved.count > len(moved.task_ids):
            typer.echo(f"  and {moved.count - len(moved.task_ids):,} more")
    if moved.capped:
        from late.control.dead_letters.dry_run import LOOKED

        output.note(f"{LOOKED:,} dead letters were looked at; --exact counts all")
