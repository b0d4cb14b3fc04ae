"""`late show`: one task in every place where it can be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from late.cli import options, output

if TYPE_CHECKING:
    from late.control import Control
    from late.control.views import StageView, StepView, TaskInGroup
    from late.model.task import AttemptError


def show(
    task_id: options.TaskId,
    url_option: options.Url = None,
    payload: options.Payload = False,
    everywhere: Annotated[
        bool,
        typer.Option("--everywhere", help="Look through its shard's whole log, if need be: slow."),
    ] = False,
    as_of: options.AsOf = None,
    json: options.Json = False,
) -> None:
    """Show all that is known of one task. Exit code 1 if nothing is.

    States: logged (not started), open (started, or due within moments), parked, dead, settled (it
    ended, its row is still there), unknown (settled long ago, rolled back, or never made). A
    suspect may have killed its worker, and runs on trial. Where the history of the task is kept,
    every step of it.

    The row is looked for where the id says: in its shard, within ten minutes of its time. With
    --everywhere it is also found when the producer's clock was wrong, or its transaction long.

    --as-of: as it stood at a past moment, as far as that is known.
    """
    with options.control_of(url_option) as control:
        found = control.tasks.show(task_id, payload=payload, everywhere=everywhere, as_of=as_of)
        runs = {} if json or as_of else _runs(control, task_id)
    known = any(group.state != "unknown" for group in found.groups)
    if json:
        output.as_known_json(found)
    else:
        output.fields(
            [
                ("task", found.task_id),
                ("shard", found.shard_id),
                ("name", found.name),
                ("queue", found.queue),
                ("made", f"{output.moment(found.made_at_us)} by the producer's clock"),
                ("enqueued", output.moment(found.enqueued_at_us)),
                ("position", found.position),
                ("options", found.options),
                ("headers", found.headers),
                ("payload", found.payload or _size(found.payload_bytes)),
            ]
        )
        unclear = {each.field for each in found.as_of.not_known} if found.as_of else ()
        for group in found.groups:
            told = f"groups[{group.group}].state" not in unclear
            _group(group, runs.get(group.group), told=told)
        stages(found.workflow, this=found.task_id)
        output.not_known(found.as_of)
    if not known:
        if as_of and found.enqueued_at_us is not None:
            if found.as_of and found.as_of.at_us < found.enqueued_at_us:
                output.note("it was not enqueued by then")
        elif not everywhere:
            output.note(
                "no row of it where its id says: it ended and its row was removed, it was rolled "
                "back, or it never was; --everywhere looks through its shard's whole log"
            )
        raise typer.Exit(1)


def _runs(control: Control, task_id: str) -> dict[str, str]:
    """Say by group where a task runs, as workers report it: the database has one that runs again as
    parked, until its end is settled."""
    found: dict[str, str] = {}
    for each in control.reports.all():
        told = each.report if each.running else None
        for run in () if told is None else (*told.stuck, *told.runs):
            if run.task_id == task_id:
                where = run.where or each.report.address
                words = f"attempt {run.attempt}, since {output.moment(run.since_us)}, on {where}"
                late = "; it is past its time-out" if run in each.report.stuck else ""
                found.setdefault(run.group, words + late)
    return found


def _size(count: int | None) -> str | None:
    return None if count is None else f"{count:,} bytes (--payload shows them)"


def stages(found: tuple[StageView, ...], *, this: str | None = None) -> None:
    """Print the stages of a workflow, each below those that it waits for; nothing without stages.

    Args:
        this: the task that is shown, whose id is known.
    """
    if not found:
        return
    typer.echo("\nworkflow")
    depth: dict[int, int] = {}
    for each in found:
        depth[each.stage] = 1 + max([depth[before] for before in each.after], default=0)
        words = [f"{each.stage:>4}  {each.state:9}", "  " * depth[each.stage] + each.name]
        if each.on_failure:
            words.append("on failure")
        elif each.after:
            words.append(f"after {', '.join(map(str, each.after))}")
        words.append("(this task)" if each.task_id == this else each.task_id)
        typer.echo("  ".join(words))


def _group(group: TaskInGroup, running: str | None, *, told: bool = True) -> None:
    typer.echo("")
    output.fields(
        [
            ("group", group.group),
            ("state", group.state if told else None),
            ("running", running),
            ("ended", group.outcome),
            ("reason", group.reason),
            ("due", output.moment(group.due_at_us)),
            ("died", output.moment(group.dead_at_us)),
            ("held by key", group.held_key),
            ("attempts", group.attempts),
            ("deaths", group.deaths or None),
            ("suspect", "a worker died while it ran: it runs on trial" if group.suspect else None),
            ("owner", group.owner),
            ("edited to", group.payload),
        ]
    )
    if group.history:
        steps(group.history)
    else:
        errors(group.errors)


def steps(found: tuple[StepView, ...]) -> None:
    """Print the steps of a task, one line each."""
    for step in found:
        detail = step.detail
        words = [f"  {output.moment(step.at_us)}  {step.event}"]
        if detail.attempt is not None:
            words.append(f"attempt {detail.attempt}")
        if detail.busy_us is not None:
            words.append(f"{detail.busy_us / 1_000:.1f} ms at {output.plain(detail.target)}")
        if detail.until_us is not None:
            words.append(f"until {output.moment(detail.until_us)}")
        words += [output.plain(text) for text in (detail.reason, detail.error) if text]
        typer.echo("  ".join([*words, output.plain(step.worker)]))


def errors(found: tuple[AttemptError, ...]) -> None:
    """Print the attempts' errors, one line each: the last line of a text names the fault."""
    for error in found:
        lines = error.error.strip().splitlines() or [""]
        worker = f"  {output.plain(error.worker)}" if error.worker else ""
        typer.echo(
            f"  attempt {error.attempt}  {output.moment(error.at_us)}{worker}"
            f"  {output.plain(lines[-1])}"
        )
