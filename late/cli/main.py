"""The program with every command. An error of any command becomes one line and an exit code."""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

import typer

from late.cli import (
    alerts,
    analyze,
    autoscale,
    cancel,
    celery,
    check,
    database,
    dead,
    demo,
    group,
    keys,
    knobs,
    metrics,
    roles,
    schedule,
    serve,
    show,
    simulate,
    size,
    status,
    targets,
    tasks,
    token,
    top,
    url,
    verify,
    worker,
    workflow,
)
from late.cli.app_loader import ImportFailed
from late.cli.bench import bench
from late.cli.config import commands as config
from late.cli.config.catalogue import SERVE, VARIABLES
from late.cli.config.configuration import RootConfig
from late.cli.config.file import named_file
from late.cli.reports import close, lake, report, throughput
from late.cli.scrub import scrubbed
from late.errors import ConfigError, InvalidTask, LateError, UnknownTask

HELP = """A transactional task queue.

The database comes from the argument URL, from --url, from the variable LATE_URL, or from late.toml.
Every command prints tables for people, and with --json one JSON document with stable keys.

Exit codes: 0 it worked; 1 it failed, or the answer is a finding; 2 the command was wrong and
nothing was done; 130 interrupted.
"""

app = typer.Typer(
    name="late",
    help=HELP,
    no_args_is_help=True,
    # Rich would cost a third of the start-up; it is loaded for tables only.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("migrate")(database.migrate)
app.command("worker")(worker.worker)
app.command("serve", context_settings={"auto_envvar_prefix": VARIABLES[SERVE].rstrip("_")})(
    serve.serve
)
app.command("enqueue")(worker.enqueue)
app.command("status")(status.status)
app.command("top")(top.top)
app.command("analyze")(analyze.analyze)
app.command("show")(show.show)
app.command("metrics")(metrics.metrics)
app.command("cancel")(cancel.cancel)
app.command("reschedule")(cancel.reschedule)
app.add_typer(tasks.app, name="tasks")
app.add_typer(workflow.app, name="workflow")
app.add_typer(dead.app, name="dead")
app.add_typer(schedule.app, name="schedule")
app.add_typer(celery.app, name="celery")
app.add_typer(token.app, name="token")
app.add_typer(keys.app, name="keys")
app.add_typer(url.app, name="url")
app.add_typer(knobs.queue, name="queue")
knobs.target.command("list")(targets.list_)
app.add_typer(knobs.target, name="target")
app.add_typer(knobs.app, name="knobs")
app.command("shards")(database.shards)
app.add_typer(group.app, name="group")
app.command("groups")(group.groups)
app.command("wait")(group.wait)
app.command("retention")(group.retention)
app.command("simulate")(simulate.simulate)
app.command("size")(size.size)
app.command("doctor")(database.doctor)
app.command("check")(check.check)
app.add_typer(config.app, name="config")
app.command("verify")(verify.verify)
app.command("rebase")(database.rebase)
app.add_typer(autoscale.app, name="autoscale")
app.add_typer(alerts.app, name="alerts")
app.add_typer(roles.app, name="roles")
app.add_typer(lake.app, name="lake")
report.app.command("throughput")(throughput.throughput)
app.add_typer(report.app, name="report")
app.command("close")(close.close)
app.command("bench")(bench.bench)
app.command("demo")(demo.demo)


@app.command("help")
def help_(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND", show_default=False)
    ] = None,
) -> None:
    """Show the help of a command, or of all."""
    asked = [*(words or ()), "--help"]
    program(asked[0])(args=asked, prog_name="late", standalone_mode=False)


def _version(wanted: bool) -> None:
    if wanted:
        from late.config import package_version

        typer.echo(f"late {package_version()}")
        raise typer.Exit


@app.callback()
def _root(
    config: RootConfig = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_version, is_eager=True
        ),
    ] = False,
) -> None:
    named_file.set(config)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code. An error that `late` raises on purpose and a command
    that cannot be read are one line on stderr; anything else is a defect and shows a traceback."""
    with scrubbed():
        code = _run(arguments)
    sys.exit(code)


def _run(arguments: Sequence[str] | None) -> int:
    code: int
    try:
        # By itself typer prints a usage of several lines, which no script can tell from output.
        words = list(sys.argv[1:] if arguments is None else arguments)
        asked = program(words[0] if words else "")
        code = asked(args=words, prog_name="late", standalone_mode=False) or 0
    except LateError as error:
        if isinstance(error, ImportFailed):
            print(error.traceback(), end="", file=sys.stderr)
        print(f"late: {_one_line(error)}", file=sys.stderr)
        code = code_of(error)
    except typer.Abort:
        print("late: not confirmed, so nothing was done", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        if (said := _misuse(error)) is None:
            raise
        print(said, file=sys.stderr)
        code = 2
    return code


@cache
def program(name: str) -> Any:
    """Return the program with the one command or group of this name, or with all if there is none.

    Typer reads every option of what it builds, and all of them take a quarter of a second.
    """
    part = copy.copy(app)
    part.registered_commands = [each for each in app.registered_commands if each.name == name]
    part.registered_groups = [each for each in app.registered_groups if each.name == name]
    found = part.registered_commands or part.registered_groups
    return typer.main.get_command(part if found else app)


def code_of(error: LateError) -> int:
    """Return 2 for a wrong command, 1 for what went wrong."""
    return 2 if isinstance(error, ConfigError | InvalidTask | UnknownTask) else 1


def _misuse(error: Exception) -> str | None:
    """Return the message for words that typer cannot read, such as an unknown option, else None.

    The error is known by its shape: typer's errors have no public class in all the versions that
    we take.
    """
    context, message = getattr(error, "ctx", None), getattr(error, "format_message", None)
    if message is None:
        return None
    text = str(message())
    if text.startswith("Usage:"):  # a group of commands without one: the list of them is the answer
        return text
    path = "late" if context is None else context.command_path
    text = " ".join(text.split()).rstrip(".")
    return f"late: {text[:1].lower()}{text[1:]}; see {path} --help"


def _one_line(error: LateError) -> str:
    return " ".join(str(error).split()) or type(error).__name__
