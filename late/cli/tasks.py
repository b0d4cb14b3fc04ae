"""`late tasks`: tasks by their state, and what is done to all that match."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, cast

import typer

from late.cli import known, options, output, task_ids
from late.cli.cancel import due_of
from late.errors import ConfigError

if TYPE_CHECKING:
    from late.control import Control
    from late.control.task_list.model import Commanded, ListedTask, State, TaskFilter, TaskPage
    from late.control.views import Moved
    from late.model.task import TaskId

Select: TypeAlias = "Callable[[Control], TaskFilter]"

app = typer.Typer(
    help="Tasks by their state: list; cancel or reschedule all that match.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
NAMES_SHOWN = 5

StateArgument = Annotated[
    str, typer.Argument(metavar="STATE", help="logged, open, running, parked, dead or done.")
]
CommandedArgument = Annotated[
    str, typer.Argument(metavar="STATE", help="logged, open, parked, or unfinished: all of these.")
]
Only = Annotated[
    list[str] | None,
    typer.Option("--id", metavar="TASK_ID", help="Only this task; may be given several times."),
]
Limit = Annotated[int, typer.Option(help="At most so many.", min=1, max=100_000)]
Everything = Annotated[bool, typer.Option("--all", help="All in this state: no filter.")]


def _selection(
    group: Annotated[str, typer.Option(help="The consumer group.")] = "default",
    queue: Annotated[str | None, typer.Option(help="Only this queue.")] = None,
    name: Annotated[str | None, typer.Option(help="Only this task name.")] = None,
    reason: Annotated[
        str | None, typer.Option(help="Parked or dead for this: retry, delay, limited, ...")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Only this ordering key.")] = None,
    tenant: Annotated[
        str | None, typer.Option(help="Only this tenant, by the fair_key of its queue.")
    ] = None,
    header: Annotated[
        str | None, typer.Option(metavar="NAME=VALUE", help="Only with this header.")
    ] = None,
    older: Annotated[
        str | None, typer.Option(metavar="TIME", help="Enqueued at least so long ago: 10m, 2h.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="Due, died, began, made or enqueued at or after: 2026-05-01T12:00Z, or 2h ago.",
        ),
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="WHEN", help="Before.")] = None,
) -> Any:
    """Return a function that makes the filter of these options."""

    def select(control: Control) -> TaskFilter:
        from late.control.task_list.model import TaskFilter

        now = control.now() if since or until else 0
        pair = options.pairs([header], "--header") if header else {}
        return TaskFilter(
            group=group, queue=queue, name=name, reason=reason, key=key, tenant=tenant,
            header=next(iter(pair.items()), None),
            older_us=options.duration_us(older, "--older") if older else 0,
            since_us=options.moment_us(since, "--since", now) if since else None,
            until_us=options.moment_us(until, "--until", now) if until else None,
        )  # fmt: skip

    return select


_filtered = options.shared(_selection, "select")


@app.command("list")
@_filtered
def list_(
    select: Select,
    state: StateArgument = "running",
    limit: Annotated[int, typer.Option(help="At most so many.", min=1, max=10_000)] = 50,
    after: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Where the page before this one ended.")
    ] = None,
    url_option: options.Url = None,
    json: options.Json = False,
) -> None:
    """List the tasks in one state, without their payloads.

    logged: not read, or not recorded. open: read by a worker: ready, limited, or running. running:
    for over two seconds, where and since when, as workers told within the last 15 s. parked: the
    next to come due first. dead and done: the latest first; done where a history is kept.

    A page looks at some thousand rows. Where a filter leaves out many it may be short, and says
    where to go on.
    """
    from late.control.task_list.model import cursor_of, key_of

    with options.control_of(url_option) as control:
        page = control.tasks.find(
            cast("State", state), select(control), after=key_of(after), limit=limit
        )
    following = cursor_of(page.after)
    if json:
        output.as_json(
            {
                "state": page.state, "now_us": page.now_us, "looked": page.looked,
                "stopped": page.stopped, "after": following, "tasks": page.tasks,
            }
        )  # fmt: skip
        return
    _table(page)
    if page.state == "running":
        output.note(
            "those that run for over two seconds, as workers told within the last 15 s; all that"
            " run: late status, in flight"
        )
    if page.stopped:
        output.note(f"looked at {page.looked:,} rows, stopped there")
    if following is not None:
        output.note(f"more: --after {following}")


def _table(page: TaskPage) -> None:
    output.table(
        f"Tasks in state {page.state}",
        ("task", "name", "queue", "shard>", *_TIMES[page.state], "attempts>", "why", "where"),
        [
            (
                *(each.task_id, each.name, each.queue, each.shard_id, *_time(page, each)),
                *(each.attempts or None, _why(each), each.worker),
            )
            for each in page.tasks
        ],
    )


_TIMES = {
    "logged": ("enqueued", "for>"),
    "open": ("enqueued", "for>"),
    "running": ("began", "for>"),
    "parked": ("due", "in>"),
    "dead": ("died", "ago>"),
    "done": ("ended", "ago>"),
}


def _time(page: TaskPage, each: ListedTask) -> tuple[str | None, str | None]:
    from late.model.task import HELD_US

    if page.state == "parked":
        due_us = each.due_at_us
        if due_us is None or due_us >= HELD_US:
            return None, "behind its key"
        in_s = (due_us - page.now_us) / 1e6
        return output.moment(due_us), output.age(in_s) if in_s >= 0 else "overdue"
    at_us = each.began_at_us if page.state == "running" else each.ended_at_us or each.created_at_us
    ago_s = None if at_us is None else max(0, page.now_us - at_us) / 1e6
    return output.moment(at_us), output.age(ago_s)


def _why(each: ListedTask) -> str | None:
    words = [each.reason or ("started" if each.started else "")]
    words.append(f"key {each.ordering_key}" if each.ordering_key else "")
    words.append(f"trace {each.trace}" if each.trace else "")
    words.append((each.error or "")[:80])
    return "  ".join(filter(None, words)) or None


@app.command("cancel")
@_filtered
def cancel(
    select: Select,
    state: CommandedArgument,
    only: Only = None,
    ids_file: task_ids.File = None,
    limit: Limit = 100_000,
    everything: Everything = False,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    url_option: options.Url = None,
    json: options.Json = False,
) -> None:
    """Cancel all tasks that match: logged, open or parked ones, or all that are unfinished. Needs a
    filter or --all.

    One that runs is not interrupted. A stage takes the rest of its workflow with it.
    """
    from functools import partial

    with options.control_of(url_option) as control:
        which, ids = _meant(select(control), only, ids_file, everything)
        call = partial(
            control.tasks.cancel_all, cast("Commanded", state), which, only=ids, limit=limit
        )
        if not dry_run and not yes:
            counted = _counted(_found(control, which, call(dry_run=True)))
            options.asked(f"Cancel {counted}?", f"this cancels {counted}")
        moved = _found(control, which, call(dry_run=dry_run))
    _report(moved, "asked to cancel", "would cancel", json)


@app.command("reschedule")
@_filtered
def reschedule(
    select: Select,
    state: CommandedArgument,
    only: Only = None,
    ids_file: task_ids.File = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="WHEN", help="Such as 2026-05-01T12:00:00Z.")
    ] = None,
    delay: Annotated[
        str | None, typer.Option("--in", metavar="TIME", help="From now: 90s, 15m, 2h, 0s.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Tasks that fall due per second from then on.", metavar="N")
    ] = None,
    limit: Limit = 100_000,
    everything: Everything = False,
    dry_run: options.DryRun = False,
    url_option: options.Url = None,
    json: options.Json = False,
) -> None:
    """Give all tasks that match another due time: logged, open or parked ones, or all that are
    unfinished. Needs a filter or --all."""
    with options.control_of(url_option) as control:
        which, ids = _meant(select(control), only, ids_file, everything)
        moved = control.tasks.reschedule_all(
            cast("Commanded", state), which, due_of(control, at, delay), only=ids, rate=rate,
            limit=limit, dry_run=dry_run,
        )  # fmt: skip
        _found(control, which, moved)
    _report(moved, "asked to reschedule", "would reschedule", json)


def _meant(
    which: TaskFilter, only: list[str] | None, ids_file: str | None, everything: bool
) -> tuple[TaskFilter, list[TaskId] | None]:
    """Return the filter, or the ids that are meant instead.

    Raises:
        ConfigError: neither, and not --all; or several of these; or a line of the file is no id.
    """
    from late.control.task_list.model import TaskFilter

    by_id = bool(only) or ids_file is not None
    given = [which != TaskFilter(group=which.group), by_id, everything]
    if sum(given) != 1:
        raise ConfigError(
            "which tasks? give a filter (see --help), --id or --ids, or --all; one of them"
        )
    read = task_ids.read(ids_file) if ids_file is not None else []
    ids = dict.fromkeys([*cast("list[TaskId]", only or []), *read])
    return which, list(ids) if by_id else None


def _found(control: Control, which: TaskFilter, moved: Moved) -> Moved:
    """Return what was found. Where that is nothing, refuse a name that nothing tells of."""
    if not moved.count:
        known.require(control, queue=which.queue, name=which.name, group=which.group)
    return moved


def _counted(moved: Moved) -> str:
    tasks = "task" if moved.count == 1 else "tasks"
    named = [f"{count:,} {name}" for name, count in moved.names.items()]
    more = [f"{len(named) - NAMES_SHOWN} other names"] if len(named) > NAMES_SHOWN else []
    which = ", ".join([*named[:NAMES_SHOWN], *more])
    counted = f"{'at least ' if moved.capped else ''}{moved.count:,} {tasks}"
    return f"{counted} ({which})" if which else counted


def _report(moved: Moved, done: str, would: str, json: bool) -> None:
    if json:
        output.as_json(moved)
        return
    typer.echo(f"{would if moved.dry_run else done} {_counted(moved)}")
    if moved.dry_run:
        for task_id in moved.task_ids:
            typer.echo(f"  {task_id}")
        if moved.count > len(moved.task_ids):
            typer.echo(f"  and {moved.count - len(moved.task_ids):,} more")
    elif moved.capped:
        output.note("there may be more that match: say it again")
