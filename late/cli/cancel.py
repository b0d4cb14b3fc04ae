"""`late cancel` and `late reschedule`: what is to become of one task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from late.cli import output
from late.cli.options import JsonOption, UrlOption, control_of, duration_us, instant
from late.errors import ConfigError

if TYPE_CHECKING:
    from late.control import Control

Id = Annotated[str, typer.Argument(metavar="TASK_ID", show_default=False)]
Group = Annotated[str | None, typer.Option("--group", help="In this consumer group only.")]


def cancel(
    task_id: Id, group: Group = None, url_option: UrlOption = None, json: JsonOption = False
) -> None:
    """Ask that no attempt of a task starts any more. One that runs is not interrupted.

    The owner of its shard carries it out as soon as it reads it; `late show` tells what became of
    the task.
    """
    with control_of(url_option) as control:
        vain = _vain(control, task_id, group)
        command = control.tasks.cancel(task_id, group=group)
    _said(f"asked to cancel {task_id}", vain, command, json)


def reschedule(
    task_id: Id,
    at: Annotated[
        str | None, typer.Option("--at", metavar="WHEN", help="Such as 2026-05-01T12:00:00Z.")
    ] = None,
    delay: Annotated[
        str | None, typer.Option("--in", metavar="TIME", help="From now: 90s, 15m, 2h, 0s.")
    ] = None,
    group: Group = None,
    url_option: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Give a task another due time, earlier or later; also one that waits to be retried."""
    if (at is None) == (delay is None):
        raise ConfigError("give --at or --in, and not both")
    wait_us = None if delay is None else duration_us(delay, "--in")
    moment = None if at is None else instant(at, "--at")
    with control_of(url_option) as control:
        if wait_us is not None:
            due_us = control.now() + wait_us
        else:
            assert moment is not None
            due_us = round(moment.timestamp() * 1_000_000)
        vain = _vain(control, task_id, group)
        command = control.tasks.reschedule(task_id, due_us, group=group)
    _said(f"asked to run {task_id} at {output.moment(due_us)}", vain, command, json)


def _vain(control: Control, task_id: str, group: str | None) -> str | None:
    """Why the command will change nothing, as far as that can be known now.

    Raises:
        ConfigError: no such group.
        InvalidName: not a task id.
    """
    if group is not None:
        control.groups.require([group])
    found = control.tasks.show(task_id, group=group).groups
    if all(g.state in ("unknown", "settled") for g in found):
        if any(g.state == "settled" for g in found):
            return (
                "it has ended, or its group began or was reset behind it, so this will change "
                "nothing"
            )
        return (
            "it is not where its id says (see `late show --everywhere`): if it has ended, or its "
            "group began or was reset behind it, or it never was, this will change nothing"
        )
    if all(g.state == "dead" for g in found):
        return "it is a dead letter: `late dead redrive` and `late dead edit` are for it"
    return None


def _said(text: str, vain: str | None, command: str, json: bool) -> None:
    if vain is not None:
        output.note(f"note: {vain}")
    if json:
        output.as_json({"command": command})
    else:
        typer.echo(text)
