"""`late workflow`: a list of workflows, and one as a whole, by the id of any of its tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

from late.cli import options, output
from late.cli.dead import report
from late.cli.show import errors, stages

if TYPE_CHECKING:
    from late.control.views import TaskView
    from late.control.workflows import State, WorkflowPage, WorkflowStages, WorkflowView

app = typer.Typer(
    help="Workflows: list, show, cancel, wait, redrive.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
PARKED = "parked"
WAITS_SHOWN = 5
"""The parked tasks that a workflow says the reason of: each is looked up by itself."""
AnyTask = Annotated[
    str, typer.Argument(metavar="ID", help="The id of any of its tasks.", show_default=False)
]


@app.command("list")
def list_(
    url: options.UrlArgument = None,
    url_option: options.Url = None,
    state: Annotated[
        str | None,
        typer.Option(metavar="STATE", help="Only running, failed, done or cancelled ones."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="TASK", help="Only those whose first task is this one.")
    ] = None,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1, max=10_000)] = 50,
    after: Annotated[
        str | None, typer.Option(metavar="ID", help="Where the page before this one ended.")
    ] = None,
    json: options.Json = False,
) -> None:
    """List workflows, the newest first. Those that need attention: --state failed.

    failed: a task of it is a dead letter, has expired or was discarded; others may still run.
    cancelled: also while tasks that ran then have not ended. waiting: tasks that wait for others,
    also for those that have failed. A task for failures counts once it has started.

    A page looks at 100,000 tasks. Where a filter leaves out many it may be short, and says where
    to go on. A workflow is kept as long as the journal, and while a task of it can end.
    """
    with options.control_of(url, url_option) as control:
        page = control.workflows.find(
            cast("State | None", state), name=name, after=after, limit=limit
        )
    output.listed(
        json,
        page,
        "Workflows",
        ("workflow", "first task", "made", "age>", "state", "done>", "running>", "waiting>",
         "dead>"),
        [_row(page, each) for each in page.workflows],
    )  # fmt: skip
    if json or page.after is None:
        return
    if len(page.workflows) < limit:
        output.note(f"looked at {page.looked:,} tasks, stopped there")
    output.note(f"more: --after {page.after}")


def _row(page: WorkflowPage, each: WorkflowView) -> tuple[object, ...]:
    age = output.age(max(0, page.now_us - each.made_at_us) / 1e6)
    return (
        each.workflow_id, each.name, output.moment(each.made_at_us), age, each.state,
        f"{each.done}/{each.tasks}", each.running, each.waiting, each.dead,
    )  # fmt: skip


@app.command("show")
def show(task_id: AnyTask, url_option: options.Url = None, json: options.Json = False) -> None:
    """Show a workflow, each task below those that it waits for. Exit code 1 if there is none.

    Of up to five parked tasks the reason and the last error are told, such as arguments that do not
    fit. The errors of those that are dead: late dead list --workflow ID.
    """
    with options.control_of(url_option) as control:
        found = _known(control.workflows.show(task_id), task_id)
        parked = [each for each in found.stages if each.state == PARKED]
        waits = [] if json else [control.tasks.show(each.task_id) for each in parked[:WAITS_SHOWN]]
    if json:
        output.as_json(found)
        return
    output.fields(
        [
            ("workflow", found.workflow_id),
            ("first task", found.name),
            ("made", f"{output.moment(found.made_at_us)} by the producer's clock"),
            ("state", found.state),
            ("tasks", _counted(found)),
        ]
    )
    stages(found.stages)
    for task in waits:
        _waits(task)
    if len(parked) > len(waits):
        output.note(f"{len(parked) - len(waits):,} parked tasks more: late show ID")


def _waits(task: TaskView) -> None:
    """Print why a stage is parked, with its last error."""
    for group in task.groups:
        if group.state == PARKED:
            until = "" if group.due_at_us is None else f" until {output.moment(group.due_at_us)}"
            typer.echo(f"\n{task.name} {task.task_id} is parked{until}: {group.reason}")
            errors(group.errors[-1:])


@app.command("cancel")
def cancel(task_id: AnyTask, url_option: options.Url = None, json: options.Json = False) -> None:
    """Ask that no task of a workflow starts any more. What runs is not interrupted.

    It is the same as `late cancel` with any of its tasks. Exit code 1 if there is none.
    """
    with options.control_of(url_option) as control:
        found = _known(control.workflows.show(task_id), task_id)
        command = control.tasks.cancel(task_id)
    if not found.running and not found.waiting:
        output.note("note: it has ended, so this will change nothing")
    said = f"asked to cancel workflow {found.workflow_id}: {_counted(found)}"
    output.line(json, {"command": command}, said)


@app.command("wait")
def wait(
    task_id: AnyTask,
    timeout: Annotated[
        str | None, typer.Option(metavar="TIME", help="Such as 30s or 5m. Default: for ever.")
    ] = None,
    url_option: options.Url = None,
    json: options.Json = False,
) -> None:
    """Wait until no task of a workflow runs, or will without a redrive.

    Exit code 0 if all are done; 1 if it failed or was cancelled, if the time was up, or if there
    is none. Wait after the commit.
    """
    timeout_s = None if timeout is None else options.duration_us(timeout, "--timeout") / 1_000_000
    with options.control_of(url_option) as control:
        found = _known(control.workflows.wait(task_id, timeout_s=timeout_s), task_id)
    output.line(json, found, f"{found.state}: {_counted(found)}")
    if found.state != "done":
        raise typer.Exit(1)


@app.command("redrive")
def redrive(
    task_id: AnyTask,
    dry_run: options.DryRun = False,
    url_option: options.Url = None,
    json: options.Json = False,
) -> None:
    """Send all dead letters of a workflow back to run again; it goes on if they end well.

    Those of the default group, which decides how it goes on. Exit code 1 if there is none.
    """
    from late.control import Filter
    from late.model.task import DEFAULT_GROUP

    with options.control_of(url_option) as control:
        _known(control.workflows.show(task_id), task_id)
        which = Filter(workflow=task_id, group=DEFAULT_GROUP)
        moved = control.dead_letters.redrive(which, dry_run=dry_run)
    report(moved, "redriven", "would redrive", json)


def _known(found: WorkflowStages | None, task_id: str) -> WorkflowStages:
    """Return the workflow, or end with exit code 1."""
    if found is None:
        output.note(f"no workflow has a task {task_id}: it was removed, rolled back, or never was")
        raise typer.Exit(1)
    return found


def _counted(found: WorkflowView) -> str:
    parts = {"running": found.running, "waiting": found.waiting, "failed": found.failed,
             "cancelled": found.cancelled}  # fmt: skip
    others = "".join(f", {n} {word}" for word, n in parts.items() if n)
    return f"{found.done} of {found.tasks} done{others}"
