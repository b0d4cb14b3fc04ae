"""`late schedule`: the recurring tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from late.cli import output
from late.cli.options import JsonOption, UrlOption, control_of

if TYPE_CHECKING:
    from late.model.task import Schedule

app = typer.Typer(
    help="Recurring tasks: list, pause, resume, run, remove.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]


@app.command("list")
def list_(url_option: UrlOption = None, json: JsonOption = False) -> None:
    """List the recurring tasks and when each is due next."""
    with control_of(url_option) as control:
        found = control.schedules.all()
    if json:
        output.as_json({"schedules": [_keys(schedule) for schedule in found]})
        return
    output.table(
        "Schedules",
        ("name", "rule", "zone", "next due", "task", "queue", "catch-up", "overlap", "shard>"),
        [
            (
                schedule.name,
                schedule.rule,
                schedule.zone,
                "paused" if schedule.paused else output.moment(schedule.next_due_at_us) or "never",
                schedule.task_name,
                schedule.queue,
                f"{schedule.catch_up} {schedule.catch_up_max}"
                if schedule.catch_up == "all"
                else schedule.catch_up,
                schedule.overlap,
                schedule.shard_id,
            )
            for schedule in found
        ],
    )


@app.command("pause")
def pause(name: Name, url_option: UrlOption = None, json: JsonOption = False) -> None:
    """Fire no more ticks until it is resumed. Workers hear of it within seconds."""
    with control_of(url_option) as control:
        found = control.schedules.pause(name)
    _say(found, json)


@app.command("resume")
def resume(name: Name, url_option: UrlOption = None, json: JsonOption = False) -> None:
    """Fire again. What came due during the pause is left out."""
    with control_of(url_option) as control:
        found = control.schedules.resume(name)
    _say(found, json)


@app.command("run")
def run(name: Name, url_option: UrlOption = None, json: JsonOption = False) -> None:
    """Enqueue its task now, besides its ticks; prints the task's id."""
    with control_of(url_option) as control:
        task_id = control.schedules.run(name)
    if json:
        output.as_json({"schedule": name, "task_id": task_id})
    else:
        typer.echo(task_id)


@app.command("remove")
def remove(name: Name, url_option: UrlOption = None, json: JsonOption = False) -> None:
    """Forget a recurring task; a worker whose code still has it declares it again."""
    with control_of(url_option) as control:
        control.schedules.remove(name)
    if json:
        output.as_json({"removed": name})
    else:
        typer.echo(f"{name}: removed")


def _say(schedule: Schedule, json: bool) -> None:
    if json:
        output.as_json(_keys(schedule))
    elif schedule.paused:
        typer.echo(f"{schedule.name}: paused")
    else:
        due = output.moment(schedule.next_due_at_us) or "never again"
        typer.echo(f"{schedule.name}: next due {due}")


def _keys(schedule: Schedule) -> dict[str, Any]:
    """Return every field but the payload, which may be confidential."""
    import msgspec

    keys = msgspec.structs.asdict(schedule)
    keys["payload_bytes"] = len(keys.pop("payload"))
    return keys
