"""`late config`: the value of each setting and its source, and the check of a file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, cast

import msgspec
import typer

from late import config
from late.cli import options, output
from late.cli.config import catalogue, configuration, file
from late.cli.config.catalogue import SERVE, TOP, VARIABLES, WORKER, Setting
from late.cli.config.file import ConfigFile
from late.errors import ConfigError
from late.observability.logs import redact

app = typer.Typer(help="The settings: late.toml, the environment, flags.", no_args_is_help=True)

SOURCES = {"COMMANDLINE": "flag", "ENVIRONMENT": "environment", "DEFAULT_MAP": "file"}
"""The names of typer -> ours; the others are defaults."""


class Found(msgspec.Struct, frozen=True):
    """The value of one setting, without its secrets."""

    section: str
    name: str
    value: Any
    source: str
    """flag, environment, file or default."""
    where: str | None
    """The flag, the variable, or the file with the key."""


@app.command("show", context_settings={"allow_interspersed_args": False})
def show(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COMMAND [ARGUMENTS]]",
            help="worker, serve or autoscale run, with the flags that are to be seen too.",
            show_default=False,
        ),
    ] = None,
    path: Annotated[str | None, typer.Option("--config", metavar="FILE", help="The file.")] = None,
    json: options.Json = False,
) -> None:
    """Show the value of each setting, and whether it comes from a flag, the environment, the file
    or its default.

    Without a command the settings of all are shown. Passwords are left out.
    """
    if path is not None:
        file.named_file.set(path)
    given = list(words or ())
    chosen = [_split(given)] if given else [(section, []) for section in catalogue.COMMANDS]
    rows: list[Found] = []
    for section, arguments in chosen:
        parsed = _parse(context, section, arguments)
        found = file.found()
        rows += [] if rows else [_url(parsed, found)]
        # What [worker] says of `late serve` too is not said twice.
        rows += [each for each in _rows(parsed, section, found) if each not in rows]
    for warning in configuration.warnings(found):
        output.note(f"warning: {warning}")
    _print(rows, found, json)


@app.command("check")
def check(
    path: Annotated[str, typer.Argument(metavar="FILE", show_default=False)],
    json: options.Json = False,
) -> None:
    """Check a file: its keys, its values, and who can read and write it. Nothing is opened else.

    Exit code 2 if a command would refuse the file.
    """
    table, mode = file.load(path)
    wrong = list(file.problems(path, table))
    if not wrong:
        whole = ConfigFile(path, file.sections_of(table))
        faults = {configuration.fault(whole.of_worker(each)) for each in (WORKER, SERVE)}
        wrong = [f"{path}: {each}" for each in sorted(filter(None, faults))]
    unsafe = list(file.warnings(path, mode, table))
    if json:
        output.as_json({"file": path, "problems": wrong, "warnings": unsafe})
    else:
        for problem in wrong:
            output.note(f"late: {problem}")
        for warning in unsafe:
            output.note(f"warning: {warning}")
        if not wrong:
            typer.echo(f"{path} is right")
    if wrong:
        raise typer.Exit(2)


def _split(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the section of a command, and its arguments.

    Raises:
        ConfigError: it has no section.
    """
    for section, command in catalogue.COMMANDS.items():
        names = command.split()[1:]
        if list(words[: len(names)]) == names:
            return section, list(words[len(names) :])
    known = ", ".join(command.removeprefix("late ") for command in catalogue.COMMANDS.values())
    raise ConfigError(f"{' '.join(words)[:64]!r} has no settings; these have: {known}")


def _parse(context: typer.Context, section: str, arguments: list[str]) -> typer.Context:
    """Return what typer makes of a command line, without running it. No arguments: nothing is
    missing."""
    from late.cli.main import program  # which builds this command too

    names = catalogue.COMMANDS[section].split()[1:]
    command = program(names[0])
    for name in names:
        command = command.commands[name]
    from_file = {} if arguments else configuration.defaults(file.found(), section)
    return cast(
        typer.Context,
        command.make_context(
            command.name,
            list(arguments),
            parent=context.find_root(),
            resilient_parsing=not arguments,
            default_map=from_file,
        ),
    )


def _rows(parsed: typer.Context, section: str, found: ConfigFile | None) -> Iterator[Found]:
    if section in (WORKER, SERVE):
        yield from _worker_rows(parsed, section, found)
    for name, setting in catalogue.sections()[section].items():
        if name in config.kinds():
            continue
        source = SOURCES.get(configuration.source_of(parsed, name), "default")
        value = setting.default if source == "default" else parsed.params.get(name)
        # What [worker] says of an option that `late serve` has too is said there.
        own = found is None or name in found.section(section)
        yield _found(setting, value, source, found, setting.section if own else WORKER)


def _worker_rows(parsed: typer.Context, section: str, found: ConfigFile | None) -> Iterator[Found]:
    flags, variables = _given(parsed, section)
    values = {} if found is None else found.of_worker(section)
    settings = configuration.settings(found, section, flags)
    for name, setting in catalogue.known(section).items():
        if name not in config.kinds():
            continue
        source: str = config.origin(name, os.environ, values, flags)
        if name in variables:
            source, setting = "environment", variables[name]
        own = source == "file" and found is not None and name in found.section(section)
        if own or name in variables:
            setting = msgspec.structs.replace(setting, section=section)
        yield _found(setting, getattr(settings, name), source, found, section if own else WORKER)


def _given(parsed: typer.Context, section: str) -> tuple[dict[str, Any], dict[str, Setting]]:
    """Return the settings of a worker that flags give, and those of them that are a variable of
    the command."""
    from late.cli.worker import settings_of

    flags = settings_of(parsed.params.get("set_") or [], None)
    variables: dict[str, Setting] = {}
    for option, value in parsed.params.items():
        name = catalogue.field_of(option)
        source = configuration.source_of(parsed, option)
        if name is None or source not in ("COMMANDLINE", "ENVIRONMENT"):
            continue
        flags[name] = value if not isinstance(value, bool) else int(value)
        if source == "ENVIRONMENT":
            setting = catalogue.known(section)[name]
            variable = VARIABLES[section] + option.upper()
            variables[name] = msgspec.structs.replace(setting, variable=variable)
    return flags, variables


def _url(parsed: typer.Context, found: ConfigFile | None) -> Found:
    setting = catalogue.sections()[TOP]["url"]
    named = {
        "flag": parsed.params.get("url"),
        "environment": os.environ.get("LATE_URL", "").strip(),
        "file": configuration.url(),
        "default": None,
    }
    source = next((each for each, value in named.items() if value), "default")
    return _found(setting, named[source], source, found, TOP)


def _found(
    setting: Setting, value: Any, source: str, found: ConfigFile | None, section: str
) -> Found:
    where: str | None = None
    match source:
        case "flag":
            where = (setting.flag or "").removesuffix("=")
        case "environment":
            where = setting.variable
        case "file" if found is not None:
            where = found.place(section, setting.name)
    return Found(setting.section, setting.name, _shown(value), source, where)


def _shown(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_shown(each) for each in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return redact(str(value))


def _print(rows: Sequence[Found], found: ConfigFile | None, json: bool) -> None:
    path = None if found is None else found.path
    if json:
        output.as_json({"file": path, "settings": rows})
        return
    output.table(
        f"Settings, {path or 'no file'}",
        ("section", "setting", "value", "from"),
        [(f"[{r.section}]" if r.section else "", r.name, _text(r.value), r.where or r.source)
         for r in rows],
    )  # fmt: skip


def _text(value: Any) -> str:
    if isinstance(value, Mapping | list):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.15g}" if isinstance(value, float) else "-" if value is None else str(value)
