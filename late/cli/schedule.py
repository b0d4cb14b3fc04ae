"""`late schedule`: the recurring tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from late.cli import options, output

if TYPE_CHECKING:
    from late.control.backfill import Backfill
    from late.model.task import Schedule

app = typer.Typer(
    help="Recurring tasks: list, pause, resume, run, backfill, remove.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("list")
def list_(url_option: options.Url = None, json: options.Json = False) -> None:
    """List the recurring tasks and when each is due next."""
    from late.control.schedule_view import ScheduleView

    with options.control_of(url_option) as control:
        views = [ScheduleView.of(each) for each in control.schedules.all()]
    output.listed(
        json,
        {"schedules": views},
        "Schedules",
        ("name", "rule", "zone", "next due", "task", "queue", "catch-up", "overlap", "shard>"),
        [
            (
                schedule.name,
                schedule.rule + _jitter(schedule.jitter_us),
                schedule.zone,
                "paused" if schedule.paused else output.moment(schedule.fires_at_us) or "never",
                schedule.task_name,
                schedule.queue,
                f"{schedule.catch_up} {schedule.catch_up_max}"
                if schedule.catch_up == "all"
                else schedule.catch_up,
                schedule.overlap,
                schedule.shard_id,
            )
            for schedule in views
        ],
    )


def _jitter(jitter_us: int) -> str:
    return f" +0..{output.age(jitter_us / 1e6)}" if jitter_us else ""


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
    """Enqueue its task now, besides its ticks, and print the task's id.

    With overlap `skip` it runs also beside a tick that has not ended; with `queue` behind it.
    """
    with options.control_of(url_option) as control:
        task_id = control.schedules.run(name)
    output.line(json, {"schedule": name, "task_id": task_id}, task_id)


MOMENT = "A time: 2026-05-01T12:00:00Z, or how long ago: 2h"


@app.command("backfill")
def backfill(
    name: options.Name,
    since: Annotated[str, typer.Option("--from", metavar="TIME", help=MOMENT, show_default=False)],
    url_option: options.Url = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help=MOMENT + ". Default: now.")
    ] = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    json: options.Json = False,
) -> None:
    """Enqueue the ticks of a past time that were not enqueued.

    The rule and the zone are those that the schedule has now. A tick whose task is still known is
    left out. One that ran and is gone runs again: see how far back the log goes.
    """
    with options.control_of(url_option) as control:
        now = control.now()
        since_us = options.moment_us(since, "--from", now)
        until_us = None if until is None else options.moment_us(until, "--until", now)
        if not (dry_run or yes):
            found = control.schedules.backfill(name, since_us, until_us, dry_run=True)
            _backfilled(found, json=False)
            options.asked(f"Backfill schedule {name}?", f"this enqueues {found.enqueued} tasks")
        done = control.schedules.backfill(name, since_us, until_us, dry_run=dry_run)
    _backfilled(done, json)


def _backfilled(found: Backfill, json: bool) -> None:
    would = "would be enqueued" if found.dry_run else "are enqueued"
    text = f"{found.schedule}: {found.enqueued} of {found.ticks} ticks {would}"
    if found.enqueued:
        text += f", {output.moment(found.first_us)} to {output.moment(found.last_us)}"
    output.line(json, found, text)
    if json:
        return
    if found.known:
        output.line(False, {}, f"{found.known} are known: enqueued already")
    if found.enqueued and (found.kept_us is None or (found.first_us or 0) < found.kept_us):
        which = "them" if found.kept_us is None else f"those before {output.moment(found.kept_us)}"
        runs = "would run again" if found.dry_run else "runs again"
        text = f"the log keeps nothing of {which}: what has run {runs}"
        output.line(False, {}, f"{text}; `late retention 7d` keeps more from now on")


@app.command("remove")
def remove(name: options.Name, url_option: options.Url = None, json: options.Json = False) -> None:
    """Forget a recurring task; a worker whose code still has it declares it again."""
    with options.control_of(url_option) as control:
        control.schedules.remove(name)
    output.line(json, {"removed": name}, f"{name}: removed")


def _say(schedule: Schedule, json: bool) -> None:
    from late.control.schedule_view import ScheduleView

    view = ScheduleView.of(schedule)
    due = output.moment(view.fires_at_us) or "never again"
    state = "paused" if schedule.paused else f"next due {due}"
    output.line(json, view, f"{schedule.name}: {state}")
