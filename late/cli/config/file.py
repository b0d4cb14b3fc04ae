"""Reads `late.toml`: which file it is, and whether each key and each value is right.

The file is the one of `--config`, else of `LATE_CONFIG`, else `late.toml` in the current folder.
No other place is looked at.
"""

from __future__ import annotations

import difflib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, get_args

import msgspec
from msgspec import Meta

from late import config
from late.cli.config import catalogue
from late.cli.config.catalogue import SERVE, TOP, WORKER
from late.errors import ConfigError
from late.observability.logs import escape, redact

VARIABLE = "LATE_CONFIG"
USUAL = "late.toml"
SIZE_MAX = 1_048_576
"""Bytes of a file. One that is larger is something else."""

named_file: ContextVar[str | None] = ContextVar("late_config", default=None)
"""The file of `--config`; None for the usual one."""


class ConfigFile(msgspec.Struct, frozen=True):
    """A file whose keys and values are right."""

    path: str
    values: Mapping[str, Mapping[str, Any]]
    """Section -> key -> value."""
    warnings: tuple[str, ...] = ()

    def section(self, name: str) -> Mapping[str, Any]:
        """Return the values of a section; none if the file does not have it."""
        return self.values.get(name, {})

    def of_worker(self, section: str) -> dict[str, Any]:
        """Return the settings of a worker under a command: `[worker]`, and above it `[serve]`."""
        layers = [WORKER] if section == WORKER else [WORKER, SERVE] if section == SERVE else []
        names = config.kinds()
        return {n: v for each in layers for n, v in self.section(each).items() if n in names}

    def place(self, section: str, name: str) -> str:
        """Name a key for people."""
        return f"{self.path} {_key(section, name)}"


def chosen() -> str | None:
    """Return the path of the file to read, or None if there is none.

    Raises:
        ConfigError: it was named, and is not there.
    """
    named, source = named_file.get(), "--config"
    if named is None:
        named, source = os.environ.get(VARIABLE, "").strip() or None, VARIABLE
    if named is None:
        return USUAL if os.path.exists(USUAL) else None
    if not os.path.exists(named):
        raise ConfigError(f"{source} {named[:256]!r}: no such file")
    return named


def found() -> ConfigFile | None:
    """Read the chosen file; None if there is none.

    Raises:
        ConfigError: it cannot be read, or a key or a value is wrong.
    """
    path = chosen()
    return None if path is None else read(path)


def read(path: str) -> ConfigFile:
    """Read a file and check it.

    Raises:
        ConfigError: see `found`. Of several faults it tells the first.
    """
    table, mode = load(path)
    for problem in problems(path, table):
        raise ConfigError(problem)
    return ConfigFile(path, sections_of(table), tuple(warnings(path, mode, table)))


def load(path: str) -> tuple[dict[str, Any], int]:
    """Return the table and the mode of a file, without a check of its keys.

    Raises:
        ConfigError: it cannot be opened, is too large, or is not TOML in UTF-8.
    """
    try:
        mode = os.stat(path).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISCHR(mode)):  # a pipe would wait for its writer
            raise ConfigError(f"{path}: not a file")
        with open(path, "rb") as file:
            content = file.read(SIZE_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    if len(content) > SIZE_MAX:
        raise ConfigError(f"{path}: larger than {SIZE_MAX:,} bytes")
    import tomllib  # no command without a file waits for it

    try:
        return tomllib.loads(content.decode("utf-8-sig")), mode
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: no TOML: {escape(str(error))}") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deep") from None


def sections_of(table: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return section -> key -> value of a table without faults; 0 or 1 where it says a boolean."""
    top = {name: value for name, value in table.items() if name not in catalogue.COMMANDS}
    return {TOP: top} | {
        section: {name: _plain(value, known[name].kind) for name, value in values.items()}
        for section, values in table.items()
        if section in catalogue.COMMANDS and (known := catalogue.known(section))
    }


def problems(path: str, table: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each key that is unknown and each value that is wrong."""
    for name, value in table.items():
        if name in catalogue.COMMANDS:
            if isinstance(value, dict):
                yield from _section_problems(path, name, value)
            else:
                yield f"{path}: {name} is a section: write [{name}] above its keys"
        elif isinstance(value, dict):
            known = [f"[{each}]" for each in catalogue.COMMANDS]
            yield f"{path}: no such section: [{_short(name)}]{_near(f'[{name}]', known)}"
        else:
            yield from _section_problems(path, TOP, {name: value})


def _section_problems(path: str, section: str, values: Mapping[str, Any]) -> Iterator[str]:
    known = catalogue.known(section)
    for name, value in values.items():
        if name not in known:
            hint = _elsewhere(section, name) or _near(name, known)
            yield f"{path}: no such key: {_key(section, name)}{hint}"
            continue
        try:
            label = f"{path}: {_key(section, name)}"
            config.checked(label, _plain(value, known[name].kind), known[name].kind)
        except ConfigError as error:
            yield redact(str(error))


def _plain(value: Any, kind: Any) -> Any:
    """Return 0 or 1 for a boolean where a setting has these two numbers."""
    bounds = [each for each in get_args(kind)[1:] if isinstance(each, Meta)]
    if isinstance(value, bool) and any((each.ge, each.le) == (0, 1) for each in bounds):
        return int(value)
    return value


def _elsewhere(section: str, name: str) -> str:
    """Return the hint for a key that another section has, or nothing."""
    for other in (TOP, *catalogue.COMMANDS):
        if other != section and name in catalogue.known(other):
            return f"; it belongs {f'under [{other}]' if other else 'above the first section'}"
    return ""


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name.replace("-", "_"), [*known], n=1)
    return f"; did you mean {near[0]}?" if near else "; late config show lists those that there are"


def _key(section: str, name: str) -> str:
    return f"[{section}] {_short(name)}" if section else _short(name)


def _short(name: str) -> str:
    return escape(name[:64])


def warnings(path: str, mode: int, table: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is unsafe about the file itself."""
    if not stat.S_ISREG(mode):
        return
    if mode & stat.S_IWOTH:
        yield f"{path} can be written by everybody on this machine: chmod o-w {path}"
    if mode & stat.S_IROTH and _has_password(table):
        yield f"{path} holds a password and everybody can read it: chmod o-r {path}"


def _has_password(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_password(each) for each in value.values())
    return isinstance(value, str) and redact(value) != value
