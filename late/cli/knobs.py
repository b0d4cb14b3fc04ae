"""`late queue`, `late target` and `late knobs`: settings that operators change in a live fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from late.cli import known, options, output
from late.errors import ConfigError, LateError
from late.model import queue_settings as values
from late.model.queue_settings import LOCAL, REMOTE, Kind, QueueSettings

if TYPE_CHECKING:
    from late.control import Control
    from late.control.queue_deletion import QueueDeletion
    from late.control.queue_settings import SettingsChange

app = typer.Typer(
    help="All knobs that are set, who turned them, and the way back.",
    invoke_without_command=True,
    rich_markup_mode=None,
)

Words = Annotated[
    list[str],
    typer.Argument(metavar="KNOB=VALUE...", help="`default` takes a knob back.",
                   show_default=False),
]  # fmt: skip


def _change(
    kind: Kind, name: str, changes: dict[str, Any], url: str | None, json: bool, dry_run: bool
) -> None:
    with options.control_of(url) as control:
        turned = control.queues.change(kind, name, changes, dry_run=dry_run)
        notes = _why_unknown(control, turned), _why_uncounted(control, turned)
    say(turned, json, dry_run=dry_run)
    for note in notes:
        if note is not None:
            output.note(f"note: {note}")


def _why_uncounted(control: Control, turned: SettingsChange) -> str | None:
    """Return why a new bound does not hold yet: workers count what a queue holds."""
    bounds = {
        field: getattr(turned.after, field)
        for field in ("max_backlog", "key_backlog")
        if getattr(turned.after, field) != getattr(turned.before, field)
    }
    named = " and ".join(field for field, bound in bounds.items() if bound is not None)
    try:
        if not named or control.status.read(limit=1).workers:
            return None
    except LateError:
        return None
    return f"no worker is alive, and a worker counts: until one does, {named} cannot refuse"


def _why_unknown(control: Control, turned: SettingsChange) -> str | None:
    """Return why the name may be misspelt, as far as that can be known.

    A queue is there as soon as a task names it, so its knobs may come first. But an operator who
    pauses the wrong one in an outage must see it.
    """
    if turned.before != QueueSettings():
        return None
    kind, name = turned.kind, turned.name
    try:
        if kind == "target":
            if _is_target(name, control):
                return None
            return (
                f"target {name} is new here: no knob of it was set, and the file that LATE_TARGETS "
                "names does not have it (an app's own code may)"
            )
        queues = sorted({each.queue for each in control.status.read(limit=known.LOOK).queues})
    except LateError:  # what was asked is done all the same
        return None
    if name in queues:
        return None
    others = f"queues with tasks: {', '.join(queues[:20])}" if queues else "no queue has tasks yet"
    return f"queue {name} is new: no knob of it was set, and it has no tasks; {others}"


def say(turned: SettingsChange, json: bool, *, dry_run: bool = False) -> None:
    """Print a change that was made, or with a dry run would be made."""
    if json:
        output.as_json(turned)
        return
    changes = [
        (field, getattr(turned.before, field), getattr(turned.after, field))
        for field in values.NAMES
        if getattr(turned.before, field) != getattr(turned.after, field)
    ]
    subject = f"{turned.kind} {turned.name}"
    if not changes:
        typer.echo(f"{subject}: nothing to change")
        return
    for field, before, after in changes:
        verb = "would go" if dry_run else "goes"
        typer.echo(f"{subject}: {field} {verb} from {_text(before)} to {_text(after)}")
    if turned.audit_id is not None:
        typer.echo(f"workers follow within 5 s; undo: late knobs rollback {turned.audit_id}")


def _text(value: object) -> str:
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _is_target(name: str, control: Control) -> bool:
    """Return True if the target is known here, or to a worker."""
    from late.model.targets import configured, is_known

    if is_known(name, configured(())):
        return True
    return any(name == each.name for told in control.reports.all() for each in told.report.targets)


def _refuse_unknown(name: str, url: str | None) -> None:
    """Refuse a queue that has never had a task, a knob or a schedule, as far as is still known.

    Raises:
        ConfigError: nothing tells of it.
    """
    with options.control_of(url) as control:
        if not known.is_queue(control, name):
            raise ConfigError(
                f"no queue {name[:128]!r}: it has no task, no knob and no schedule, and none of "
                "its tasks ran within a day; --force pauses it all the same"
            )


def _show(kind: Kind, name: str, url: str | None, json: bool) -> None:
    """Print every knob with its value, which is the default of its kind unless it is set."""
    with options.control_of(url) as control:
        found = next((each for each in control.queues.settings(kind) if each.name == name), None)
        known = found is not None or kind == "queue" or _is_target(name, control)
    if not known:
        raise ConfigError(
            f"no target {name[:128]!r}: no knob of it is set, no worker reports it, and the file "
            "that LATE_TARGETS names does not have it"
        )
    chosen = QueueSettings() if found is None else found.knobs
    defaults = LOCAL if kind == "queue" or name == "local" else REMOTE
    held = values.effective(chosen, defaults)
    if json:
        output.as_json({"kind": kind, "name": name, "set": chosen, "effective": held})
        return
    rows = [
        (field, _text(getattr(held, field)), "set" if getattr(chosen, field) is not None else "")
        for field in values.NAMES
        if kind == "queue" or field not in values.QUEUE_ONLY
    ]
    shown = [(field, "-" if value == "default" else value, mark) for field, value, mark in rows]
    output.table(f"Knobs of {kind} {name}", ("knob", "value", ""), shown)


HELP: dict[Kind, dict[str, str]] = {
    "queue": {
        "set": "Set knobs of a queue: `late queue set payments rate=50 concurrency=20`. "
        "`key_concurrency=2 key_rate=5` limit all tasks of one limit key, such as a shop.",
        "pause": "Start none of its tasks until it is resumed. What runs goes on; producers may "
        "enqueue.",
        "resume": "Start its tasks again.",
        "show": "Show every knob of a queue, set or by default.",
    },
    "target": {
        "set": "Set knobs of a target: `late target set billing concurrency=40 breaker=0.3`.",
        "pause": "Call it no more until it is resumed.",
        "resume": "Call it again.",
        "show": "Show every knob of a target, set or by default. A target is known by its knobs, "
        "by the workers that call it, or by the file that LATE_TARGETS names.",
    },
}


def _commands(kind: Kind) -> typer.Typer:
    """Make the commands `late queue` or `late target`."""
    app = typer.Typer(
        help=f"The knobs of {kind}s: set, pause, resume, show"
        + (", delete." if kind == "queue" else "."),
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    help_of = HELP[kind]

    @app.command("set", help=help_of["set"])
    def set_(
        name: options.Name,
        words: Words,
        dry_run: options.DryRun = False,
        url_option: options.Url = None,
        json: options.Json = False,
    ) -> None:
        _change(kind, name, values.parse(words), url_option, json, dry_run)

    @app.command(help=help_of["pause"])
    def pause(
        name: options.Name,
        force: Annotated[
            bool, typer.Option("--force", help="Also a name that nothing tells of.")
        ] = False,
        url_option: options.Url = None,
        json: options.Json = False,
    ) -> None:
        if kind == "queue" and not force:
            _refuse_unknown(name, url_option)
        _change(kind, name, {"paused": True}, url_option, json, False)

    @app.command(help=help_of["resume"])
    def resume(
        name: options.Name, url_option: options.Url = None, json: options.Json = False
    ) -> None:
        _change(kind, name, {"paused": None}, url_option, json, False)

    @app.command(help=help_of["show"])
    def show(
        name: options.Name, url_option: options.Url = None, json: options.Json = False
    ) -> None:
        _show(kind, name, url_option, json)

    return app


queue, target = _commands("queue"), _commands("target")


@queue.command("delete")
def delete(
    name: options.Name,
    force: Annotated[
        bool, typer.Option("--force", help="Also while live workers serve it; never with tasks.")
    ] = False,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    url_option: options.Url = None,
    json: options.Json = False,
) -> None:
    """Take the knobs of a queue away, and leave it out of status, page and metrics.

    No task is lost: it is refused while the queue has tasks or a schedule, and a task that is
    enqueued later brings the queue back. Journal, history and dead letters stay.
    """
    with options.control_of(url_option) as control:
        if not (dry_run or yes):
            found = control.queues.delete(name, force=force, dry_run=True)
            if found.refused is not None:
                raise ConfigError(found.refused)
            options.asked(f"Delete queue {name}?", f"this takes the knobs of queue {name} away")
        done = control.queues.delete(name, force=force, dry_run=dry_run)
    output.as_json(done) if json else _deleted(done)


def _deleted(done: QueueDeletion) -> None:
    verb = "would be deleted" if done.dry_run else "is deleted"
    if done.refused is not None:
        output.line(False, {}, f"would be refused: {done.refused}")
        return
    chosen = [n for n in values.NAMES if getattr(done.knobs, n) is not None]
    taken = ", ".join(f"{n}={_text(getattr(done.knobs, n))}" for n in chosen)
    output.line(False, {}, f"queue {done.queue} {verb}; its knobs: {taken or 'none'}")
    letters = f"{done.dead} dead letters until they are purged"
    output.line(False, {}, f"kept: {letters}; journal and history until they are old")
    if done.audit_id is not None:
        output.line(False, {}, f"undo: late knobs rollback {done.audit_id}")


@app.callback()
def knobs(
    context: typer.Context,
    history: Annotated[
        bool, typer.Option("--history", help="Every change, by whom and when.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", help="Changes at most.")] = 20,
    url_option: options.Url = None,
    json: options.Json = False,
) -> None:
    """List the knobs that are set."""
    if context.invoked_subcommand is not None:
        return
    with options.control_of(url_option) as control:
        if history:
            entries = control.audit.entries(limit=limit + 1)  # One more says that there are more.
            more = len(entries) > limit
            entries = entries[:limit]
        else:
            found = control.queues.settings()
    if history:
        from late.control.audit import shortened

        columns = ("when", "who", "what", "of", "before", "after", "id")
        changes = [
            (
                output.moment(e.at_us),
                e.actor,
                e.action,
                e.subject,
                e.before,
                shortened(e.after),
                e.audit_id,
            )
            for e in entries
        ]
        output.listed(json, {"changes": entries}, "Changes", columns, changes)
        if more:
            output.note(f"the latest {limit}; there are more: --limit shows them")
        return
    rows = [
        (each.kind, each.name, field, _text(value), output.moment(each.updated_at_us))
        for each in found
        for field in values.NAMES
        if (value := getattr(each.knobs, field)) is not None
    ]
    output.listed(json, {"knobs": found}, "Knobs", ("of", "name", "knob", "value", "changed"), rows)


@app.command("rollback")
def rollback(
    audit_id: Annotated[str, typer.Argument(metavar="ID", show_default=False)],
    url_option: options.Url = None,
    json: options.Json = False,
) -> None:
    """Undo one change: `late knobs --history` lists their ids."""
    if not audit_id:
        raise ConfigError("which change? `late knobs --history` lists them")
    with options.control_of(url_option) as control:
        turned = control.queues.rollback(audit_id)
    say(turned, json)
