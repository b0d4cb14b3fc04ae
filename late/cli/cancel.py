"""`late cancel` and `late reschedule`: commands about one task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from late.cli import options, output
from late.errors import ConfigError

if TYPE_CHECKING:
    from late.control import Control


def cancel(
    task_id: options.TaskId,
    group: options.Group = None,
    url_option: options.Url = None,
    json: options.Json = False,
) -> None:
    """Ask that no attempt of a task starts any more. One that runs is not interrupted.

    The owner of its shard carries it out as soon as it reads it; `late show` tells what became of
    the task.
    """
    with options.control_of(url_option) as control:
        useless = _why_useless(control, task_id, group, cancels=True)
        command = control.tasks.cancel(task_id, group=group)
    _report(f"asked to cancel {task_id}", useless, command, json)


def reschedule(
    task_id: options.TaskId,
    at: Annotated[
        str | None, typer.Option("--at", metavar="WHEN", help="Such as 2026-05-01T12:00:00Z.")
    ] = None,
    delay: Annotated[
        str | None, typer.Option("--in", metavar="TIME", help="From now: 90s, 15m, 2h, 0s.")
    ] = None,
    group: options.Group = None,
    url_option: options.Url = None,
    json: options.Json = False,
) -> None:
    """Give a task another due time, earlier or later; also one that waits to be retried."""
    with options.control_of(url_option) as control:
        due_us = due_of(control, at, delay)
        useless = _why_useless(control, task_id, group)
        command = control.tasks.reschedule(task_id, due_us, group=group)
    _report(f"asked to run {task_id} at {output.moment(due_us)}", useless, command, json)


def due_of(control: Control, at: str | None, delay: str | None) -> int:
    """Return the due time that `--at` or `--in` asks for, in microseconds.

    Raises:
        ConfigError: both or neither, or one that cannot be read.
    """
    if (at is None) == (delay is None):
        raise ConfigError("give --at or --in, and not both")
    if at is not None:
        return round(options.instant(at, "--at").timestamp() * 1_000_000)
    return control.now() + options.duration_us(delay or "0s", "--in")


def _why_useless(
    control: Control, task_id: str, group: str | None, *, cancels: bool = False
) -> str | None:
    """Return why the command will change nothing, as far as that can be known now.

    Raises:
        ConfigError: no such group.
        InvalidName: not a task id.
    """
    from late.control.task_commands import why_useless

    if group is not None:
        control.groups.require([group])
    return why_useless(control.tasks.show(task_id, group=group), cancels=cancels)


def _report(text: str, useless: str | None, command: str, json: bool) -> None:
    if useless is not None:
        output.note(f"note: {useless}")
    output.line(json, {"command": command}, text)
