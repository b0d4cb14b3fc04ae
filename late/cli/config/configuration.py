"""A command with its configuration file: what the file says of its options and of its worker."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from late import config
from late.cli.config import catalogue, environment, file
from late.cli.config.catalogue import AUTOSCALER, SERVE, TOP, WORKER
from late.cli.config.file import ConfigFile
from late.errors import ConfigError

if TYPE_CHECKING:
    from late.worker.reload import Reading

_log = logging.getLogger("late.cli")

SECTIONS = {"worker": WORKER, "serve": SERVE, "run": AUTOSCALER}
"""The last word of a command's name -> its section."""


def _configure(context: typer.Context, path: str | None) -> str | None:
    """Give a command the defaults of its options from the file, before the others are read."""
    if not context.resilient_parsing:
        if path is not None:
            file.named_file.set(path)
        context.default_map = defaults(file.found(), SECTIONS[str(context.command.name)])
    return path


RootConfig = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The settings; else $LATE_CONFIG, else late.toml in this folder.",
    ),
]
Config = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The settings; else $LATE_CONFIG, else late.toml in this folder.",
        callback=_configure,
        is_eager=True,
    ),
]


def url() -> str | None:
    """Return the URL of the file, if it has one."""
    found = file.found()
    return None if found is None else found.section(TOP).get("url")


def defaults(found: ConfigFile | None, section: str) -> dict[str, Any]:
    """Return option -> value of the file. Settings of a worker are not among them: the
    environment comes before the file, and the struct knows it."""
    if found is None:
        return {}
    mine = found.section(section)
    if section == SERVE:  # what both commands have, [worker] says for both
        both = catalogue.sections()[SERVE].keys() & found.section(WORKER).keys()
        mine = {name: found.section(WORKER)[name] for name in both} | dict(mine)
    return {name: value for name, value in mine.items() if name not in config.kinds()}


def settings(
    found: ConfigFile | None, section: str, flags: Mapping[str, Any]
) -> config.WorkerConfig:
    """Return the settings of a command's worker.

    Raises:
        ConfigError: they are wrong; it names the file if the file alone is wrong.
    """
    values = {} if found is None else found.of_worker(section)
    try:
        return config.load(None, values, **flags)
    except ConfigError as error:
        if found is not None and (said := fault(values)):
            raise ConfigError(f"{found.path}: {said}") from None
        raise error


def fault(values: Mapping[str, Any]) -> str | None:
    """Return why settings of a file are wrong by themselves, or None."""
    try:
        config.load({}, values)
    except ConfigError as error:
        return str(error)
    return None


def reader(context: typer.Context, flags: Mapping[str, Any]) -> Callable[[], Reading]:
    """Return what reads the settings of a command that runs: at its start, and anew at SIGHUP.
    A file that was there must still be there: without it all would go back to the defaults.

    Args:
        flags: settings of the worker that the command line gives.
    """
    section = SECTIONS[str(context.command.name)]
    given = {n for n in context.params if source_of(context, n) in ("COMMANDLINE", "ENVIRONMENT")}
    return partial(_read, section, dict(flags), given, file.chosen())


def _read(section: str, flags: Mapping[str, Any], given: set[str], path: str | None) -> Reading:
    from late.worker.reload import Reading

    found = file.found() if path is None else file.read(path)
    listed = {name: each.default for name, each in catalogue.sections()[section].items()}
    options = {n: v for n, v in listed.items() if n not in config.kinds()}
    options |= defaults(found, section)
    command = {name: value for name, value in options.items() if name not in given}
    return Reading(settings(found, section, flags), command)


def warnings(found: ConfigFile | None) -> list[str]:
    """Return what is unsafe about the file, and which variables seem to be misspelt."""
    return [*(() if found is None else found.warnings), *environment.misspelt(os.environ)]


def warn(app_url: str | None = None) -> None:
    """Log these warnings, and that of the database. Logging is set up by now."""
    for line in warnings(file.found()):
        _log.warning(line)
    if app_url is not None:
        warn_of_database(app_url)


def warn_of_database(app_url: str) -> None:
    """Log it if commands use another database than a process with this app."""
    named = os.environ.get("LATE_URL", "").strip() or url()
    if line := environment.other_database(app_url, named):
        _log.warning(line)


def source_of(context: typer.Context, name: str) -> str:
    source = context.get_parameter_source(name)
    return "DEFAULT" if source is None else source.name
