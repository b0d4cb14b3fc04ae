"""The keys of `late.toml`, derived: those of a worker from `WorkerConfig`, the others from the
options of the commands. Nothing is declared here twice."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from late import config

TOP = ""
"""The keys before the first section."""
WORKER = "worker"
SERVE = "serve"
AUTOSCALER = "autoscaler"
COMMANDS = {WORKER: "late worker", SERVE: "late serve", AUTOSCALER: "late autoscale run"}
"""Section -> the command whose options it has."""

VARIABLES = {SERVE: "LATE_SERVE_", AUTOSCALER: "LATE_AUTOSCALER_"}
"""Section -> the beginning of the variables of the command's options."""

LIVE = config.LIVE | {"log_level"}

_NOT_IN_FILE = frozenset({"config", "json", "once", "reload", "set_", "url"})
"""Options that say what one call does, and `url`, which is for all commands."""
_KINDS = {
    "processes": int | Literal["auto"],
    "log_level": Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"],
}
"""Options whose type says more than a text."""


class Setting(msgspec.Struct, frozen=True):
    """One key of the file."""

    section: str
    name: str
    kind: Any
    """The type of its value, with its bounds."""
    default: Any
    variable: str | None
    flag: str | None
    text: str | None = None
    """The meaning; None where the struct says it."""


@functools.cache
def sections() -> Mapping[str, Mapping[str, Setting]]:
    """Return section -> name -> setting, in the order of their declarations.

    `[serve]` also takes every setting of a worker, for the worker of `late serve` alone; these are
    not listed again.
    """
    url = Setting(TOP, "url", str, None, "LATE_URL", "--url", "The database of commands.")
    found = {TOP: {"url": url}}
    for section, command in _commands().items():
        listed = [*_of_struct(command)] if section == WORKER else []
        listed += _of_command(section, command)
        found[section] = {each.name: each for each in listed}
    return found


@functools.cache
def known(section: str) -> Mapping[str, Setting]:
    """Return every key that a section may have."""
    found = sections()
    fields = {n: s for n, s in found[WORKER].items() if n in config.kinds()}
    return {**fields, **found[section]} if section == SERVE else found.get(section, {})


def option_variables() -> set[str]:
    """Return the variables of all options of the commands whose options have any."""
    commands = _commands()
    return {
        prefix + name.upper()
        for section, prefix in VARIABLES.items()
        for name, *_ in _options(commands[section])
    }


def field_of(option: str) -> str | None:
    """Return the setting of a worker that an option of a command stands for, if any."""
    names = config.kinds()
    return next((name for name in (option, f"{option}_s") if name in names), None)


def _commands() -> dict[str, Callable[..., Any]]:
    from late.cli import autoscale, serve, worker

    return {WORKER: worker.worker, SERVE: serve.serve, AUTOSCALER: autoscale.run}


def _of_struct(command: Callable[..., Any]) -> Iterator[Setting]:
    flags = {field_of(name): _flag(name, option) for name, _, option, _ in _options(command)}
    defaults = config.WorkerConfig.__struct_defaults__
    for (name, kind), default in zip(config.kinds().items(), defaults, strict=True):
        flag = flags.get(name, f"--set {name}=")
        yield Setting(WORKER, name, kind, default, config.variable_of(name), flag)


def _of_command(section: str, command: Callable[..., Any]) -> Iterator[Setting]:
    for name, kind, option, default in _options(command):
        if name in _NOT_IN_FILE or field_of(name) is not None:
            continue
        prefix = VARIABLES.get(section)
        variable = option.envvar or (None if prefix is None else prefix + name.upper())
        shown = None if default in (inspect.Parameter.empty, ...) else default
        kind = _KINDS.get(name) or _bounded(kind, option)
        yield Setting(section, name, kind, shown, variable, _flag(name, option), option.help)


def _options(command: Callable[..., Any]) -> Iterator[tuple[str, Any, Any, Any]]:
    """Yield name, type, what typer knows, and default of each option; no arguments."""
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        if get_origin(parameter.annotation) is not Annotated:
            continue
        kind, about, *_ = get_args(parameter.annotation)
        if type(about).__name__ == "OptionInfo":
            yield name, kind, about, parameter.default


def _flag(name: str, option: Any) -> str:
    declared = [each for each in option.param_decls or () if each.startswith("--")]
    return declared[0] if declared else "--" + name.replace("_", "-")


def _bounded(kind: Any, option: Any) -> Any:
    """Return the type of an option as a value of the file has it: no None, no path."""
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(each for each in get_args(kind) if each is not type(None))
    if kind is Path:
        return str
    if option.min is None and option.max is None:
        return kind
    return Annotated[kind, Meta(ge=option.min, le=option.max)]
