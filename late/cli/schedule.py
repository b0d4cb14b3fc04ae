"""`late schedule`: the recurring tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from late.cli import options, output

if TYPE_CHECKING:
    from late.model.task import Schedule

app = typer.Typer(
    help="Recurring tasks: list, pause, resume, run, remove.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("list")
def list_(url_option: options.Url = None, json: options.Json = False) -> None:
    """List the recurring tasks and when each is due next."""
    from late.control.views import ScheduleView

    with options.control_of(url_option) as control:
        found = control.schedules.all()
    output.listed(
        json,
        {"schedules": [ScheduleView.of(schedule) for schedule in found]},
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
def pause(name: options.Name, url_option: options.Url = None, json: options.Json = False) -> None:
    """Fire no more ticks until it is resumed. Workers hear of it within seconds."""
    with options.control_of(url_option) as control:
        _say(control.schedules.pause(name), json)


@app.command("resume")
def resume(name: options.Name, url_option: options.Url = None, json: options.Json = False) -> None:
    """Fire again. What came due during the pause is left out."""
    with options.control_of(url_option) as control:
        _say(control.schedules.resume(name), json)


@app.command("run")
def run(name: options.Name, url_option: options.Url = None, json: options.Json = False) -> None:
    """Enqueue its task now, besides its ticks, and print the task's id."""
    with options.control_of(url_option) as control:
        task_id = control.schedules.run(name)
    output.line(json, {"schedule": name, "task_id": task_id}, task_id)


@app.command("remove")
def remove(name: options.Name, url_option: options.Url = None, json: options.Json = False) -> None:
    """Forget a recurring task; a worker whose code still has it declares it again."""
    with options.control_of(url_option) as control:
        control.schedules.remove(name)
    output.line(json, {"removed": name}, f"{name}: removed")


def _say(schedule: Schedule, json: bool) -> None:
    from late.control.views import ScheduleView

    due = output.moment(schedule.next_due_at_us) or "never again"
    state = "paused" if schedule.paused else f"next due {due}"
    output.line(json, ScheduleView.of(schedule), f"{schedule.name}: {state}")
